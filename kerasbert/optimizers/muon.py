"""The Muon optimizer for matrices, with AdamW for all other weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import keras
from keras import ops

from kerasbert.base import keras_internals
from kerasbert.base.errors import check_whole
from kerasbert.optimizers.weights import MUON_PARTS, NO_DECAY, ByWeight

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any


@keras.saving.register_keras_serializable(package="kerasbert")
class Muon(ByWeight, keras.optimizers.Muon):
    """Muon: orthogonalized momentum for hidden matrices, Adam for all other weights.

    Adam updates biases, norms, embeddings and the last layer of a head. Updates of matrices are
    scaled to the usual size of Adam's (`rms_rate`), so that both share learning rate and weight
    decay. Adam has bias correction here; the "adamw" of `pretrain` has none, with larger first
    updates, so tune the learning rates of "muon" and "adamw" separately.

    Besides the arguments of `keras.optimizers.Muon`, it has those of all optimizers here, and
    `parts`, which orthogonalizes fused queries, keys and values as three matrices.

    Args:
        learning_rate: float, or a schedule such as `LinearDecay`.
        weight_decay: float. Applies also to weights that Adam updates.
        momentum: decay of the moving average of a matrix's gradients.
        epsilon: Adam's epsilon.
        global_clipnorm: limit on the global gradient norm.
        parts: dict of parts of paths to ints, the number of equally wide matrices that a weight
            fuses, such as `{"qkv": 3}`.
        exclude_layers: list of regular expressions; Adam updates weights whose path matches one.
        no_decay: list of names, or parts of paths, of weights without decay.
        learning_rate_multipliers: dict of parts of paths to factors of the learning rate; see
            `layerwise_learning_rates`.
        **kwargs: see `keras.optimizers.Muon`, for example `ns_steps`.

    Example:

    >>> from kerasbert.optimizers import LinearDecay, Muon
    >>> optimizer = Muon(LinearDecay(1e-3, steps=1000, warmup_steps=100))
    >>> optimizer.get_config()["parts"]
    {'qkv': 3}

    Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon; update scale: Liu et al.
    2025, arXiv 2502.16982.
    """

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        weight_decay: float = 0.01,
        momentum: float = 0.95,
        epsilon: float = 1e-6,
        global_clipnorm: float = 1.0,
        parts: Mapping[str, Any] = MUON_PARTS,
        exclude_layers: Sequence[str] = ("logits", "mlm_head/decoder"),
        no_decay: Any = NO_DECAY,
        learning_rate_multipliers: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            learning_rate,
            weight_decay=weight_decay,
            # Both weight decays are equal, because `ByWeight` applies the same to all weights.
            adam_weight_decay=weight_decay,
            momentum=momentum,
            epsilon=epsilon,
            global_clipnorm=global_clipnorm,
            exclude_layers=list(exclude_layers or ()),
            no_decay=no_decay,
            learning_rate_multipliers=learning_rate_multipliers,
            **kwargs,
        )
        self.parts = dict(parts or {})
        for name, count in self.parts.items():
            check_whole(f"parts['{name}']", count)
        self._cuts = {}

    def build(self, variables: Any) -> None:
        if self.built:
            return
        super().build(variables)
        for variable in variables:
            if keras_internals.steps_by_adam(self, variable):
                continue
            path, width = f"/{variable.path}/", variable.shape[1]
            cut = math.prod(count for name, count in self.parts.items() if f"/{name}/" in path)
            if width % cut:
                raise ValueError(
                    f"'{variable.path}' has width {width}, which parts={self.parts} cannot split "
                    f"into {cut} equal matrices; remove its entry from parts."
                )
            self._cuts[keras_internals.variable_key(self, variable)] = cut

    def _muon_update_step(self, gradient, variable, lr, m):
        cut = self._cuts[keras_internals.variable_key(self, variable)]
        gradient = ops.cast(gradient, variable.dtype)
        self.assign_add(m, gradient + (self.momentum - 1) * m)
        step = gradient + self.momentum * m if self.nesterov else m
        steps = [
            self.lr_adjust(self.zeropower_via_newtonschulz5(part, self.ns_steps))
            for part in ops.split(step, cut, axis=1)
        ]
        self.assign_sub(variable, ops.cast(lr, variable.dtype) * ops.concatenate(steps, axis=1))

    def get_config(self) -> dict[str, Any]:
        config = {**super().get_config(), "parts": self.parts}
        del config["adam_weight_decay"]
        return config
