"""Base classes of encoders and tasks that are safe to build while other threads use their models.

Keras makes a subclass of `keras.Model` functional by changing the bases of its class when an object
is created, and KerasHub changes the bases of its tasks back and forth each time. Meanwhile, a model
in another thread has neither `call` nor outputs. Here the functional class is among the bases from
the start, so Keras changes nothing, and the method resolution order does not depend on KerasHub's
own models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras_hub

from kerasbert.backend import KeepsWeights
from kerasbert.base import keras_internals

if TYPE_CHECKING:
    from typing import Any

_Functional = keras_internals.functional()


class Backbone(KeepsWeights, keras_hub.models.Backbone, _Functional):
    """`keras_hub.models.Backbone`, functional from the start."""


class _FunctionalPipeline(keras_internals.pipeline_model(), _Functional):
    """`PipelineModel` with a fixed functional base, after `keras_hub.models.Task` in the bases."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _Functional.__init__(self, *args, **kwargs)


class Task(KeepsWeights, keras_hub.models.Task, _FunctionalPipeline):
    """`keras_hub.models.Task`, functional from the start."""
