"""Weight decay exclusions and learning rate multipliers by weight name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keras import ops

from kerasbert import backend
from kerasbert.backend.optimizers import clip_by_global_norm, decay
from kerasbert.base import keras_internals
from kerasbert.base.keywords import ChecksKeywords

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any


#: Names of weights without weight decay, as parts of their paths.
NO_DECAY = ("bias", "gamma", "beta")


#: Peak learning rate of fine-tuning for encoders whose presets record none: the middle one of the
#: three for Base and Large in arXiv 1810.04805, appendix A.3. Small encoders need at least ten
#: times as much.
FINETUNING_LEARNING_RATE = 3e-5


#: Names of weights that fuse several matrices, and the number of these matrices.
MUON_PARTS = {"qkv": 3}


def norm_of(x):
    return ops.sqrt(ops.sum(ops.square(x)))


class ByWeight(ChecksKeywords):
    """Mixin for weight decay exclusions and learning rate multipliers; must be the first base.

    A name matches whole parts of a weight's path: "bias" matches every bias,
    "transformer_layer_1" all weights of that layer.
    """

    def __init__(
        self,
        *args: Any,
        no_decay: Sequence[str] = NO_DECAY,
        learning_rate_multipliers: Mapping[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.no_decay = tuple(no_decay or ())
        self.learning_rate_multipliers = learning_rate_multipliers
        for name, value in self._multipliers().items():
            if value < 0:
                raise ValueError(
                    f"learning_rate_multipliers['{name}'] is {value}; it must be a factor of the "
                    "learning rate, at least 0."
                )
        self._decays, self._shares = {}, {}

    def build(self, variables: Any) -> None:
        if self.built:
            return
        super().build(variables)
        for variable in variables:
            key, path = keras_internals.variable_key(self, variable), f"/{variable.path}/"
            self._decays[key] = not any(f"/{name}/" in path for name in self.no_decay)
            self._shares[key] = 1.0
            for name, value in self._multipliers().items():
                if f"/{name}/" in path:
                    self._shares[key] *= value

    def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
        """Set `no_decay`; names match whole parts of a path, and a saved model keeps them."""
        if self.built:
            raise ValueError(
                "exclude_from_weight_decay() must be called before the optimizer is built; call it "
                "before training, or pass no_decay."
            )
        self.no_decay = (*(variable.path for variable in var_list or ()), *(var_names or ()))

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "no_decay": list(self.no_decay),
            "learning_rate_multipliers": self._multipliers() or None,
        }

    def _multipliers(self):
        return dict(self.learning_rate_multipliers or {})

    def _use_weight_decay(self, variable):
        return self._decays[keras_internals.variable_key(self, variable)]

    def _groups(self, variables, kind):
        """Group variables by `kind(key)`; return pairs `(kind, positions)`, usually only one."""
        groups = {}
        for position, variable in enumerate(variables):
            groups.setdefault(kind(keras_internals.variable_key(self, variable)), []).append(
                position
            )
        return groups.items()

    def _clip_gradients(self, grads):
        # TensorFlow's sparse gradient of embeddings has a row per occurrence of a token, of which
        # Keras computes norms and squares. Adding 0.0 sums the rows.
        grads = [ops.add(g, 0.0) if hasattr(g, "dense_shape") else g for g in grads]
        grads = backend.sum_over_replicas(grads)
        if (self.global_clipnorm or 0) > 0 and not (self.clipnorm or self.clipvalue):
            return clip_by_global_norm(grads, self.global_clipnorm)
        return super()._clip_gradients(grads)

    def _all_reduce_sum_gradients(self, grads_and_vars):
        # Keras would clip before it sums over replicas.
        return grads_and_vars

    def _apply_weight_decay(self, variables):
        if not self.weight_decay:
            return
        full, decayed = self.weight_decay, [v for v in variables if self._use_weight_decay(v)]
        for share, rows in self._groups(decayed, self._shares.get):
            weights = [decayed[i] for i in rows]
            if not decay(weights, full * share, lambda: self.learning_rate):
                self.weight_decay = full * share
                super()._apply_weight_decay(weights)
        self.weight_decay = full

    def _backend_update_step(self, grads, variables, learning_rate):
        for share, rows in self._groups(variables, self._shares.get):
            super()._backend_update_step(
                [grads[i] for i in rows], [variables[i] for i in rows], learning_rate * share
            )
