"""`PresetBackbone`, the base class of encoders: presets, LoRA, quantization and the config."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING

import keras

from kerasbert.base import keras_internals
from kerasbert.base.errors import check_value
from kerasbert.base.files import read_json
from kerasbert.base.from_preset import FromPreset
from kerasbert.base.keywords import own_class
from kerasbert.base.memory import collect_once, keep_freed_memory
from kerasbert.base.subclasses import as_called
from kerasbert.encoder import functional
from kerasbert.encoder.building import backbone_of, check_arguments, own_backbone
from kerasbert.encoder.keras_export import KerasExport
from kerasbert.layers.block import only_blocks_remat

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Self

    from kerasbert.base.aliases import AnyPath, Found, Tensor


class PresetBackbone(FromPreset, KerasExport, functional.FillsIn, functional.Backbone):
    """Base class of `BertBackbone` and other models without a head."""

    # Constructor arguments that the config and the attributes store.
    setting_names = ()
    check_arguments = classmethod(check_arguments)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        keep_freed_memory()
        super().__init__(*args, **kwargs)
        only_blocks_remat([self, *self.operations])
        for layer in keras_internals.flatten_layers(self, include_self=False):
            policy = layer.dtype_policy
            if isinstance(policy, keras.dtype_policies.DTypePolicyMap):
                # Keras does not look into a map for quantized layers, so set the layer's own
                # policy.
                keras_internals.set_policy(layer, policy[layer.path or layer.name])

    def _set_settings(self, given, kinds):
        """Check the types of the settings among the arguments, and set them as attributes."""
        for name in self.setting_names:
            check_value(name, given[name], kinds[name])
            setattr(self, name, given[name])

    @classmethod
    def needs_files(cls, kwargs: Any) -> bool:
        return False

    @classmethod
    def from_source(cls, source: Found, load_weights: bool = True, **kwargs: Any) -> Self:
        build = own_backbone if source.is_own else backbone_of
        return build(cls, source, load_weights, **kwargs)

    @classmethod
    def from_own_preset(cls, directory: AnyPath, **kwargs: Any) -> Self:
        saved = read_json(os.path.join(directory, "config.json"))
        if kwargs.get("dtype") is None:
            # KerasHub's loader drops saved policies, which quantized layers need.
            dtype = saved["config"].get("dtype")
            if isinstance(dtype, dict) and dtype["class_name"] == "DTypePolicyMap":
                kwargs["dtype"] = dtype
        made, config = as_called(saved, cls)
        if made in (None, own_class(cls)) or not issubclass(made, cls):
            return super().from_own_preset(directory, **kwargs)
        kwargs.pop("load_weights", None)
        return made.from_config({**config, "dtype": None, **kwargs})

    def check_padding(self, inputs: Tensor) -> None:
        """Warn about arrays whose padding other packages treat differently."""

    def quantize(self, mode: str | None = None, **kwargs: Any) -> None:
        """Quantize projections and embeddings, for example to int8; see `keras.Model.quantize`."""
        # `collect_once`, because Keras collects garbage for each weight that it replaces.
        with collect_once(), warnings.catch_warnings():
            # Keras warns about each layer without weights to quantize.
            warnings.filterwarnings("ignore", ".*does not have a `quantize` method")
            super().quantize(mode, **kwargs)

    def default_lora_layer_names(self) -> list[str]:
        """Return the names of the layers that `enable_lora` adapts by default."""
        return ["qkv", "query", "kv"]

    def enable_lora(self, rank: int, target_layer_names: Sequence[str] | None = None) -> None:
        """Freeze the encoder and train low-rank adapters (arXiv 2106.09685) of some of its layers.

        Args:
            rank: rank of the adapters.
            target_layer_names: list of layer names; `None` adapts the query-key-value
                projections.
        """
        super().enable_lora(rank, target_layer_names)
        # Keras keeps biases of adapted layers trainable, but `save_lora_weights` omits them.
        for weight in self.trainable_weights:
            weight.trainable = weight.name.startswith("lora_")

    def get_config(self) -> dict[str, Any]:
        dtype = self.dtype_policy
        quantized = {
            layer.path: layer.dtype_policy
            for layer in keras_internals.flatten_layers(self)
            if layer.quantization_mode is not None
        }
        if quantized and not isinstance(dtype, keras.dtype_policies.DTypePolicyMap):
            # KerasHub's map drops the policy of layers that are not quantized.
            dtype = keras.dtype_policies.DTypePolicyMap(dtype.name, quantized)
        return {
            "name": self.name,
            "trainable": self.trainable,
            "dtype": keras.dtype_policies.serialize(dtype),
            **{name: getattr(self, name) for name in self.setting_names},
        }
