"""Bases of encoders and tasks, whose classes stay as they are while other threads use them.

Keras makes a subclass of `keras.Model` functional by changing the bases of its classes when an
object is made, and KerasHub changes those of its tasks back and forth each time: a model that
another thread calls meanwhile has no `call`, and no outputs. Here the functional class is among the
bases from the start, so that neither happens. Both keep the order of the bases, whatever KerasHub's
own models change.
"""

import keras_hub

from kerasbert import private_names
from kerasbert.backend import KeepsWeights

_Functional = private_names.functional()


class Backbone(KeepsWeights, keras_hub.models.Backbone, _Functional):
    """`keras_hub.models.Backbone`, functional from the start."""


class _Unchanging(private_names.pipeline_model(), _Functional):
    """KerasHub's base of tasks, after `keras_hub.models.Task` among the bases."""

    def __init__(self, *args, **kwargs):
        _Functional.__init__(self, *args, **kwargs)


class Task(KeepsWeights, keras_hub.models.Task, _Unchanging):
    """`keras_hub.models.Task`, functional from the start."""
