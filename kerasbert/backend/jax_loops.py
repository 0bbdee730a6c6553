"""Loops on JAX that keep the weights in the model.

During `fit`, `evaluate` and `predict`, Keras takes the weights out of a model, donates their
buffers to each step, and puts them back at the end. An exception or Ctrl-C leaves it without
weights.
"""

import threading
import time

import keras

from kerasbert.base import keras_internals
from kerasbert.base.process import uninterrupted

_training = set()  # Ids of the threads that are in a step.


class KeepsWeights:
    """Mixin that keeps the weights in the model; it must come before Keras' model as a base class.

    `predict` and `evaluate` do not donate the weights. A step of `fit` donates them, so its results
    are assigned to the variables right after the step, which takes a few microseconds.
    """

    # === Overrides of Keras' private methods; see `kerasbert.base.keras_internals` ===

    def _purge_model_variables(self, **groups):
        """Do nothing, so that the model keeps its variables.

        Donated buffers are freed anyway.
        """

    def _get_jax_state(self, purge_model_variables=False, **groups):
        variables = {
            "trainable_variables": lambda: self.trainable_variables,
            "non_trainable_variables": lambda: self.non_trainable_variables,
            "optimizer_variables": lambda: self.optimizer.variables,
            "metrics_variables": lambda: self.metrics_variables,
        }
        state = [make() for name, make in variables.items() if groups.get(name)]
        # The key is the number of groups, because `predict` and `evaluate` may run in two threads.
        # It is in `__dict__`, because Keras would track an attribute.
        self.__dict__.setdefault("_state_variables", {})[len(state)] = state
        return _values(state)

    def jax_state_sync(self):
        """Mark the state as synced: variables are up to date."""
        self._jax_state_synced = True

    @property
    def _jax_state_synced(self):
        return threading.get_ident() not in self.__dict__.get("_looping", ())

    @_jax_state_synced.setter
    def _jax_state_synced(self, value):
        # Each thread has its own loop.
        looping = self.__dict__.setdefault("_looping", set())
        (looping.discard if value else looping.add)(threading.get_ident())

    def _make_function(self, step_function, concatenate_outputs=False):
        def step(state, data):
            thread = threading.get_ident()
            with uninterrupted():
                _training.add(thread)
                try:
                    outputs, state = step_function(state, data)
                    self._keep(state)
                finally:
                    _training.discard(thread)
            return outputs, state

        # `predict` changes no variables.
        step = step_function if concatenate_outputs else step
        return super()._make_function(step, concatenate_outputs)

    def _keep(self, state):
        """Assign the state of a step of `fit` or `evaluate` to the variables.

        `evaluate` does not assign trainable weights, which `fit` in another thread may have
        updated.
        """
        groups = list(zip(self.__dict__["_state_variables"][len(state)], state))
        for variables, values in groups[1:] if len(state) == 3 else groups:
            for variable, value in zip(variables, values, strict=True):
                keras_internals.set_value(variable, value)

    def make_predict_function(self, force=False):
        """Create the step of `predict`."""
        if force or self.predict_function is None:
            run = self._compiled(lambda state, data: self.predict_step(state, data)[0])

            def step(state, data):
                variables = self.__dict__["_state_variables"][len(state)]
                return with_weights(variables, lambda values: run(values, data)), state

            self.predict_function = self._make_function(step, concatenate_outputs=True)
        return self.predict_function

    def make_test_function(self, force=False):
        """Create the step of `evaluate`."""
        if force or self.test_function is None:
            # The returned state keeps its sharding.
            shardings = None
            if keras.distribution.distribution() is not None:
                _, non_trainable, _, metrics = self._get_state_sharding_spec()
                shardings = (None, (non_trainable, metrics))
            run = self._compiled(self._changed_by_test, shardings)

            def step(state, data):
                logs, changed = run(state, data)
                return logs, (state[0], *changed)

            self.test_function = self._make_function(step)

    def _changed_by_test(self, state, data):
        logs, (_, *changed) = self.test_step(state, data)
        return logs, tuple(changed)

    def _compiled(self, function, out_shardings=None):
        """Compile a function if the model uses JIT; its arguments are not donated."""
        if self.run_eagerly or not self.jit_compile:
            return function
        import jax

        return jax.jit(function, out_shardings=out_shardings)


def _values(groups):
    return tuple([variable.value for variable in group] for group in groups)


def with_weights(groups, run):
    """Call a function on values of variables that another thread may train.

    During a step of `fit`, JAX reports donated weights as deleted; the call is then repeated.

    Args:
        groups: list of lists of variables.
        run: function of their values, a tuple of lists.
    """
    before = None
    while True:
        values = _values(groups)
        # Before the call, because JAX logs each failed one.
        if not (_training and any(value.is_deleted() for value in values[0])):
            try:
                return run(values)
            except (RuntimeError, ValueError) as error:
                is_same = before is not None and all(map(_are_same, values, before))
                if "deleted" not in str(error) or (is_same and not _training):
                    raise
        before = values
        time.sleep(0.001)


def _are_same(values, others):
    return all(value is other for value, other in zip(values, others))
