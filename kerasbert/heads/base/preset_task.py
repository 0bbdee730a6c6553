"""Base class of task models: weights, presets and copies of an encoder with a head."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras

from kerasbert.base import keras_internals
from kerasbert.base.from_preset import FromPreset
from kerasbert.base.keywords import config_of
from kerasbert.base.parts import head_weights, own_preprocessor
from kerasbert.encoder import functional
from kerasbert.encoder.building import check_arguments, own_task, task_of
from kerasbert.encoder.keras_export import KerasExport
from kerasbert.layers.block import only_blocks_remat
from kerasbert.text.long_texts import LongTexts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Self

    from kerasbert.base.aliases import AnyPath, Found, Tensor


def _trained(name):
    """Return Keras' property `name`, such as `trainable_weights`, without `untrained_weights`.

    JAX gives unused weights a gradient of zero, so weight decay would shrink them.
    """

    def get(task: Any) -> list[Any]:
        return _without(task.untrained_weights(), getattr(functional.Task, name).fget(task))

    return property(get)


def _not_trained(all_weights, trained):
    """Return a property: the weights of `all_weights` not in `trained`."""

    def get(task: Any) -> list[Any]:
        return _without(getattr(task, trained), getattr(task, all_weights))

    return property(get)


def _without(left_out, variables):
    left_out = set(map(id, left_out))
    return [variable for variable in variables if id(variable) not in left_out]


def _set_preprocessor(task, value):
    check = getattr(value, "check_family", None)
    if check is not None:
        check(getattr(task.backbone, "family", None))
    long = getattr(value, "long", task.long)
    if long.has_windows != task.long.has_windows:
        name = type(task).__name__
        raise ValueError(
            f"The preprocessor has long={long.mode!r}, but this {name} has long="
            f"{task.long.mode!r}; load it with {name}.from_preset(preset, long=...)."
            if task.takes_long
            else f"A {name} does not support long={long.mode!r}; use 'truncate' or 'head_tail'."
        )
    functional.Task.preprocessor.fset(task, value)


class PresetTask(FromPreset, KerasExport, functional.FillsIn, functional.Task):
    """Base class of `BertTask`: a head on an encoder, without training."""

    # Name of the row in `kerasbert.kinds`.
    kind = None
    # Whether a checkpoint must contain the head.
    needs_head = True
    # Whether the outputs depend on the encoder's pooler.
    uses_pooler = False
    # For texts that do not fit into a row; is it an argument of the class.
    long = LongTexts()
    takes_long = False

    preprocessor = functional.Task.preprocessor.setter(_set_preprocessor)
    trainable_variables = _trained("trainable_variables")
    trainable_weights = _trained("trainable_weights")
    non_trainable_variables = _not_trained("variables", "trainable_variables")
    non_trainable_weights = _not_trained("weights", "trainable_weights")
    check_arguments = classmethod(check_arguments)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        only_blocks_remat([self, *self.operations])

    def _check_encoder(self, backbone, has_all=False):
        """Raise for an encoder of another class than the task's `backbone_cls`.

        `has_all` also excludes subclasses with own layers.
        """
        is_other = self.backbone_cls in getattr(backbone, "replaced_bases", ())
        if not isinstance(backbone, self.backbone_cls) or (has_all and is_other):
            raise ValueError(
                f"backbone is a {type(backbone).__name__}, but {type(self).__name__} needs a "
                f"{self.backbone_cls.__name__}."
            )

    def _set_parts(self, backbone, preprocessor, has_all=False, long=None, **settings):
        """Check and set the encoder and the preprocessor, with `settings` of the preprocessor."""
        self._check_encoder(backbone, has_all)
        self.backbone = backbone
        preprocessor = own_preprocessor(
            backbone, preprocessor, self.preprocessor_cls, long, **settings
        )
        self._set_long(long, preprocessor)
        self.preprocessor = preprocessor

    def _set_long(self, long, preprocessor):
        """Set `long`; `None` means the preprocessor's."""
        if self.takes_long:
            self.long = LongTexts.of(getattr(preprocessor, "long", None) if long is None else long)

    def _window_inputs(self):
        """Return the inputs of the encoder, with an axis for windows if texts have several."""
        inputs = dict(self.backbone.input)
        if not self.long.has_windows:
            return inputs
        return {
            name: keras.Input((None, *x.shape[1:]), dtype=x.dtype, name=name)
            for name, x in inputs.items()
        }

    def _set_given(self, given, defaults):
        """Set settings as attributes; `None` means the default."""
        for name, value in given.items():
            setattr(self, name, defaults[name] if value is None else value)

    def untrained_weights(self) -> list[Any]:
        """Return the weights of an unused pooler, which are never trained."""
        if self.uses_pooler or not self.backbone.pooler:
            return []
        return self.backbone.pooled_dense.weights

    @classmethod
    def needs_files(cls, kwargs: Any) -> bool:
        return "preprocessor" not in kwargs

    @classmethod
    def from_source(cls, source: Found, load_weights: bool = True, **kwargs: Any) -> Self:
        saved = source.task()[0] if source.is_own else None
        if hasattr(saved, "from_members"):
            return saved.from_members(source, load_weights, cls, **kwargs)
        return (own_task if source.is_own else task_of)(cls, source, load_weights, **kwargs)

    @classmethod
    def needs_pooler(cls, settings: Any) -> bool:
        """Return whether a head with these settings needs an encoder with a pooler."""
        return settings.get("pooling", "pooler") == "pooler"

    @classmethod
    def output_weight(cls, settings: Any) -> str:
        """Return the name of a weight that every checkpoint with this head has, or `None`."""
        return "logits/kernel"

    @classmethod
    def with_preprocessor_settings(cls, config: dict[str, Any], settings: Any) -> Any:
        """Return a saved config with settings of its preprocessor, if any."""
        return config

    def fill_in(self, inputs: Tensor) -> dict[str, Any]:
        """Add the optional inputs that are missing."""
        return self.backbone.fill_in(inputs)

    def quantize(self, mode: str | None = None, **kwargs: Any) -> None:
        """Quantize the encoder, for example to int8, but not the small head."""
        self.backbone.quantize(mode, **kwargs)
        self.train_function = self.test_function = self.predict_function = None

    def with_layers(self, layers: Sequence[int]) -> Self:
        """Return a trainable copy with only some of the encoder's layers.

        Args:
            layers: list of ints. See `BertBackbone.with_layers`.
        """
        settings = {**config_of(self), "preprocessor": self.preprocessor}
        settings.pop("name")
        model = self.from_config({**settings, "backbone": self.backbone.with_layers(layers)})
        for weight, copy in zip(head_weights(self), head_weights(model), strict=True):
            copy.assign(keras.ops.convert_to_numpy(weight))
        return model

    # Optimizer states are only in `.keras` files.

    def save_task_weights(self, filepath: AnyPath) -> None:
        """Save the weights of the head."""
        keras.saving.save_weights(self, filepath, objects_to_skip=_all_but_head(self))

    def load_task_weights(self, filepath: AnyPath) -> None:
        """Load the weights of the head."""
        keras.saving.load_weights(self, filepath, objects_to_skip=_all_but_head(self))


def _all_but_head(task):
    # Uncompiled models have no optimizer.
    return [*keras_internals.flatten_layers(task.backbone), getattr(task, "optimizer", None)]
