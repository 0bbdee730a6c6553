"""Settings that must precede the import of Keras' backend; public packages import this first."""

import os
import sys

from kerasbert.base.triton import import_triton

# PyTorch's idle threads busy-wait for 3 ms or more, which starves tf.data (12 times slower on 2
# cores); sleeping at once doubles the latency of one short text. So they spin for about 0.1 ms
# first (GNU's OpenMP only; others sleep at once). This has no effect after the import of torch.
if "OMP_WAIT_POLICY" not in os.environ and "keras" not in sys.modules:
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
import_triton()
