"""Settings that must be made before Keras imports its backend.

Public packages import this module first.
"""

import importlib.util
import os
import sys

# By default, PyTorch's idle threads busy-wait for 3 ms or more, which makes tf.data 12 times slower
# on 2 cores. Threads that sleep at once double the latency of one short text. With this setting
# they busy-wait for about 0.1 ms (GNU's OpenMP; others sleep at once). It has no effect after the
# import of torch, and is set for PyTorch only: JAX and TensorFlow do not compute with OpenMP.
if (
    "OMP_WAIT_POLICY" not in os.environ
    and "keras" not in sys.modules
    # If the variable is not set, keras.json may name PyTorch.
    and os.environ.get("KERAS_BACKEND", "torch") == "torch"
):
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
# Triton and TensorFlow both contain LLVM. Triton 3.9 aborts the process if TensorFlow is already
# imported; the other order works. Triton is imported by `transformers`, and by PyTorch when PyTorch
# is imported or its first optimizer is created.
if not {"triton", "tensorflow"} & sys.modules.keys():
    if all(importlib.util.find_spec(name) for name in ("triton", "tensorflow")):
        import triton  # noqa: F401
