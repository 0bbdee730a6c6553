"""Base classes of encoders and tasks, safe for threads that build models.

When a model is created, Keras makes its class functional by changing its bases, and KerasHub
changes those of tasks back and forth. Meanwhile, a model of the class in another thread has neither
`call` nor outputs. These classes have the functional class among their bases from the start, so
nothing changes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras_hub

from kerasbert.backend import KeepsWeights
from kerasbert.base import keras_internals
from kerasbert.base.parts import encoder_of
from kerasbert.base.process import check_process
from kerasbert.encoder.model_summary import ShownInNotebooks

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import Tensor

_Functional = keras_internals.functional()


class Backbone(ShownInNotebooks, KeepsWeights, keras_hub.models.Backbone, _Functional):
    """`keras_hub.models.Backbone`, functional from the start."""


class _FunctionalPipeline(keras_internals.pipeline_model(), _Functional):
    """`PipelineModel` with a fixed functional base.

    It comes after `keras_hub.models.Task` in the bases of `Task`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _Functional.__init__(self, *args, **kwargs)


class Task(ShownInNotebooks, KeepsWeights, keras_hub.models.Task, _FunctionalPipeline):
    """`keras_hub.models.Task`, functional from the start."""


class FillsIn:
    """Mixin that adds missing inputs by the method `fill_in`; it must precede Keras' class."""

    def __call__(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Any:
        check_process()  # Before the first tensor, for which JAX may compile.
        if isinstance(inputs, dict) and has_ids(inputs):
            encoder_of(self).check_padding(inputs)
            inputs = self.fill_in(inputs)
        return super().__call__(inputs, *args, **kwargs)

    def call(
        self, inputs: Tensor, training: bool | None = None, mask: Tensor = None, **kwargs: Any
    ) -> Tensor:
        if (
            isinstance(inputs, dict)
            and "global_attention_mask" in inputs.keys() - self.input.keys()
        ):
            raise ValueError(
                f"The inputs have a global_attention_mask, but this {type(self).__name__} has no "
                "such input; leave it out, or load a Longformer with global_tokens='given'."
            )
        # On JAX, `fit` and `predict` skip `__call__`.
        return super().call(self.fill_in(inputs), training=training, mask=None, **kwargs)


def has_ids(x):
    """Return whether inputs are a dict with a key `...token_ids`, or a tuple of these."""
    if isinstance(x, tuple):
        return bool(x) and all(map(has_ids, x))
    return isinstance(x, dict) and any(name.endswith("token_ids") for name in x)
