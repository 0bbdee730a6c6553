"""The mean of the outputs of several tasks.

K members, B batch, C classes.
"""

import keras
import numpy as np
from keras import ops

from kerasbert.heads.base.head_metrics import NUMBERS, PAIRS, PLACES, SEVERAL


class Mean(keras.layers.Layer):
    """Layer that combines the outputs of the members of an ensemble.

    It is called on shared inputs or on a dict of member number, as a string, to inputs.

    Args:
        members: list of K tasks.
    """

    def __init__(self, members, **kwargs):
        super().__init__(dtype="float32", autocast=False, **kwargs)
        self.members = members
        self.built = True

    def call(self, inputs, training=None):
        own = [inputs.get(str(number), inputs) for number in range(len(self.members))]
        outputs = [member(x, training=training) for member, x in zip(self.members, own)]
        return combined(self.members, outputs)

    @property
    def metrics(self):
        return []  # The members' metrics are left out, because they are not updated.

    def compute_output_spec(self, inputs, training=None):
        return keras.tree.map_structure(
            lambda x: keras.KerasTensor(x.shape, "float32"), self.members[0].output
        )


def combined(members, outputs):
    """Combine the outputs of K members, such as logits (B, C).

    Class probabilities are averaged and returned as logits; numbers, and logits of positions and
    choices, directly.
    """
    forms = members[0].metric_forms()
    if isinstance(forms, dict):
        return {
            name: _mean(form, [(member, found[name]) for member, found in zip(members, outputs)])
            for name, (form, _) in forms.items()
        }
    return _mean(forms[0], list(zip(members, outputs)))


def _mean(form, found):
    """Combine K outputs of the same form, a list of `(member, output)`."""
    if form in (NUMBERS, PLACES, PAIRS):
        return sum(ops.cast(output, "float32") for _, output in found) / len(found)
    if form == SEVERAL:
        yes, no = zip(*(_log_odds(member, output) for member, output in found))
        return _log_mean(yes) - _log_mean(no)
    return _log_mean([_log_probabilities(member, output) for member, output in found])


def _log_probabilities(member, outputs):
    temperature = _temperature(member)
    if member.gives_logits():
        return ops.log_softmax(outputs / temperature, axis=-1)
    odds = _log(outputs)
    return odds if temperature == 1 else ops.log_softmax(odds / temperature, axis=-1)


def _log_odds(member, outputs):
    """Return the logarithms of p and of 1 - p, for the probability p of each class."""
    yes, no = (outputs, 0.0) if member.gives_logits() else (_log(outputs), _log(1.0 - outputs))
    temperature = _temperature(member)
    if temperature == 1 and not member.gives_logits():
        return yes, no
    logits = (yes - no) / temperature
    return ops.log_sigmoid(logits), ops.log_sigmoid(-logits)


def _temperature(member):
    """Return the divisor of a member's logits."""
    return getattr(member, "temperature", 1.0)


def _log(probabilities):
    return ops.log(ops.maximum(ops.cast(probabilities, "float32"), 1e-12))


def _log_mean(logs):
    return ops.logsumexp(ops.stack(logs), axis=0) - float(np.log(len(logs)))
