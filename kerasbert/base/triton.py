"""Import order of Triton and TensorFlow."""

import importlib.util
import sys


def import_triton():
    """Import Triton before TensorFlow if both are installed and neither is imported yet.

    Both contain LLVM, and Triton 3.9 aborts the process if TensorFlow is already imported; the
    other order works. PyTorch (on import or with the first optimizer) and `transformers` import
    Triton.
    """
    if {"triton", "tensorflow"} & sys.modules.keys():
        return
    if all(importlib.util.find_spec(name) for name in ("triton", "tensorflow")):
        import triton  # noqa: F401
