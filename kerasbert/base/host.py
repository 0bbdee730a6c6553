"""Settings that must be made before Keras imports its backend.

Public packages import this module first.
"""

import importlib.util
import os
import sys

# PyTorch's idle threads busy-wait for 3 ms or more, which makes tf.data 12 times slower on 2 cores;
# sleeping at once doubles the latency of one short text. This makes it about 0.1 ms (GNU's OpenMP;
# others sleep at once). It must precede the import of torch; JAX and TensorFlow do not use OpenMP.
if (
    "OMP_WAIT_POLICY" not in os.environ
    and "keras" not in sys.modules
    # keras.json may name PyTorch.
    and os.environ.get("KERAS_BACKEND", "torch") == "torch"
):
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
# Triton 3.9 aborts the process if TensorFlow is imported before it, because both contain LLVM.
# `transformers`, PyTorch and its first optimizer import Triton.
if not {"triton", "tensorflow"} & sys.modules.keys():
    if all(importlib.util.find_spec(name) for name in ("triton", "tensorflow")):
        import triton  # noqa: F401
