"""Where the backend computes, and what it keeps for gradients."""

import contextlib
import functools

import keras

from kerasbert.backend import jax as _jax
from kerasbert.backend import torch as _torch


@functools.cache
def on_gpu():
    """Whether the backend computes on a GPU."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        return any(device.startswith("gpu") for device in keras.distribution.list_devices())
    return {"jax": _jax, "torch": _torch}[backend].on_gpu()


def jax_on_gpu():
    """Whether that is JAX on a GPU, where XLA needs some help to be fast."""
    return keras.backend.backend() == "jax" and on_gpu()


def without_gradients():
    """A context in which PyTorch keeps nothing for gradients; the other backends see it."""
    if keras.backend.backend() == "torch":
        return _torch.without_gradients()
    return contextlib.nullcontext()
