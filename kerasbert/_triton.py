"""Triton and TensorFlow in one process."""

import importlib.util
import sys


def import_triton():
    """Import Triton, where it is installed beside TensorFlow, before TensorFlow is.

    Each brings LLVM along. Triton 3.9 aborts the process where TensorFlow is in it already; the
    other order works. PyTorch imports Triton, when it is imported or with the first optimizer, and
    so does `transformers`. Where TensorFlow came first it is too late.
    """
    if {"triton", "tensorflow"} & sys.modules.keys():
        return
    if all(importlib.util.find_spec(name) for name in ("triton", "tensorflow")):
        import triton  # noqa: F401
