"""PyTorch kernels: dense, norm, attention, dropout, Adam, graphs and several processes.

See `kerasbert.backend` for the arguments.
"""

import atexit
import contextlib
import datetime
import functools
import os
import shutil

import keras
from keras import ops

from kerasbert import backend
from kerasbert.base import keras_internals
from kerasbert.base.memory import keep_freed_memory, keep_large_blocks

KERAS_EXPORTS = ("torch",)


def keep_memory():
    """Also keep large blocks, such as attention probabilities."""
    keep_freed_memory()
    keep_large_blocks()


@functools.cache
def on_gpu():
    """Return whether Keras computes on a GPU."""
    # Not PyTorch's current device, which is "meta" while Keras builds a model.
    return keras_internals.torch_device() == "cuda"


def dense(inputs, weights, bias=None, activation=None, training=False):
    """Fuse matmul and bias, on a CPU with oneDNN's newer interface.

    PyTorch's defaults took longer on an AMD processor: MKL for float32 by a sixth, the older oneDNN
    interface for bfloat16 by a tenth.
    """
    if bias is None:
        return None
    import torch

    weights, bias = map(ops.convert_to_tensor, (weights, bias))

    def function(rows):
        if _is_for_onednn(rows, weights, bias):
            outputs = _onednn_product(rows, weights, bias)
        else:
            outputs = torch.addmm(bias, rows, weights)
        return outputs if activation is None else activation(outputs)

    return backend.by_rows(inputs, function)


def _is_for_onednn(*tensors):
    import torch

    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return False
    if not torch.backends.mkldnn.is_available():
        return False
    if any(t.device.type != "cpu" or t.dtype != tensors[0].dtype for t in tensors):
        return False
    dtype = tensors[0].dtype
    return dtype == torch.float32 or (
        dtype == torch.bfloat16 and keras_internals.onednn_takes_bfloat16()
    )


def _onednn_product(rows, weights, bias=None):
    """Multiply `rows` (R, D) by `weights` (D, U) and add the bias."""
    import torch

    tensors = [rows, weights] if bias is None else [rows, weights, bias]
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return _onednn_function().apply(rows, weights, bias)
    return keras_internals.onednn_linear()(rows, weights.t(), bias, "none", [], "")


@functools.cache
def _onednn_function():
    """Return `_onednn_product` with a gradient, which PyTorch's operation lacks."""
    import torch

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(context, rows, weights, bias):
            context.save_for_backward(rows, weights)
            with torch.no_grad():
                return _onednn_product(rows, weights, bias)

        @staticmethod
        def backward(context, gradient):
            rows, weights = context.saved_tensors
            of_rows, of_weights, of_bias = context.needs_input_grad
            return (
                _onednn_product(gradient, weights.t()) if of_rows else None,
                rows.t() @ gradient if of_weights else None,
                gradient.sum(0) if of_bias else None,
            )

    return Product


def highest_of_tokens(x):
    """Use `max`, whose gradient stores indices and takes half the memory of `amax`."""
    return x.max(dim=1).values


def norm(x, gamma, beta, epsilon, training=False):
    """Use PyTorch's kernel in the dtype of `x`; internally it computes in float32."""
    import torch

    x = ops.convert_to_tensor(x)
    weights = [None if w is None else ops.convert_to_tensor(w, x.dtype) for w in (gamma, beta)]
    return torch.nn.functional.layer_norm(x, x.shape[-1:], *weights, epsilon)


def dropout(x, rate, seed):
    """Draw 16 random bits per element on a CPU, for a rate exact to 2 ** -17.

    Each draw serves four elements, in less than half the time of PyTorch's dropout.
    """
    import torch

    x = ops.convert_to_tensor(x)
    # Explicit seeds need Keras' generator.
    is_seeded = seed.get_config()["seed"] is not None
    if x.device.type != "cpu" or rate >= 1 or is_seeded or torch.compiler.is_compiling():
        return None
    count = x.numel()
    bits = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    bits = bits.view(torch.int16)[:count].view(x.shape)
    zeros = min(round(rate * 2**16), 2**16 - 1)
    keep = bits >= zeros - 2**15
    return x * keep.to(x.dtype).mul_(2**16 / (2**16 - zeros))


def cross_entropy(labels, logits):
    """Use one operation on a GPU."""
    if not on_gpu():
        return None
    import torch

    losses = torch.nn.functional.cross_entropy(
        logits.flatten(0, -2), labels.flatten().long(), reduction="none"
    )
    return losses.reshape(labels.shape)


def first_choice(logits):
    """Use argmax, which is fast on PyTorch."""
    return ops.argmax(logits, axis=-1)


def heads_attention(query, key, value, mask=None, dropout=0.0, seed=None, maps=False):
    """Use PyTorch's kernel (with dropout on a GPU only), or matmuls for few tokens on a CPU."""
    if maps or (dropout and not on_gpu()):
        return None
    most = SHORT_TRAINED if _trains_in_bfloat16(query) else SHORT
    if not on_gpu() and max(query.shape[1], key.shape[1]) <= most:
        return short_attention(query, key, value, mask), None
    return fused_attention(query, key, value, mask, dropout), None


# On a CPU, PyTorch's kernel is slower than matmuls over all heads for up to `SHORT` tokens, and in
# bfloat16 training for up to `SHORT_TRAINED`, where its gradient takes ten times as long with 40
# tokens and twice as long with 128.
SHORT = 32
SHORT_TRAINED = 128


def _trains_in_bfloat16(query):
    import torch

    return query.dtype is torch.bfloat16 and query.requires_grad and torch.is_grad_enabled()


def short_attention(query, key, value, mask=None):
    """Compute attention by matmuls over all heads; see `fused_attention` for the arguments.

    The dtype is at least float32, except for the matmuls in bfloat16 training.
    """
    import torch

    batch, length, num_heads, width = query.shape
    rows = [x.transpose(1, 2).flatten(0, 1) for x in (query, key, value)]  # (B * N, T, H)
    if not _trains_in_bfloat16(query):
        rows = [backend.at_least_float32(x) for x in rows]
    scores = backend.at_least_float32(torch.bmm(rows[0], rows[1].transpose(1, 2))) * width**-0.5
    if mask is not None:
        scores = scores.view(batch, num_heads, length, -1)
        scores = (scores + _added(mask, scores.dtype)).flatten(0, 1)
    maps = torch.softmax(scores, -1).to(rows[2].dtype)
    outputs = torch.bmm(maps, rows[2]).to(query.dtype)
    return outputs.view(batch, num_heads, length, width).transpose(1, 2)


def _added(mask, dtype):
    """Turn a mask into a bias on scores; with a bool mask a fully masked row would give NaN."""
    import torch

    mask = ops.convert_to_tensor(mask, "bool")
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min / 2)


def fused_attention(query, key, value, mask=None, dropout=0.0):
    """Compute attention by one kernel, with dropout of the attention probabilities.

    Args:
        query: (B, S, N, H).
        key, value: (B, T, N, H).
        mask: bool, broadcastable to (B, N, S, T), or `None`.
        dropout: float.
    """
    import torch

    mask = None if mask is None else _added(mask, query.dtype)
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))  # (B, N, T, H)
    outputs = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout
    )
    return outputs.transpose(1, 2)


def update_cache(cache, values, index):
    import torch

    if torch.is_grad_enabled():
        return None
    # In place, since a copy is as large as the cache. Beams of a prompt start as views of the same
    # memory, which `contiguous` separates.
    return cache.contiguous().index_copy_(2, index + torch.arange(values.shape[2]), values)


def is_known(size):
    """Accept symbolic sizes too, on which dynamic graphs record guards."""
    import torch

    return isinstance(size, (int, torch.SymInt))


def clip_by_global_norm(gradients, most):
    """Skip the second pass on a CPU unless the norm exceeds `most`."""
    import torch

    if on_gpu() or torch.compiler.is_compiling():
        return None
    # Computed by row, since PyTorch's norm of a large table is wrong in the fourth digit.
    lengths = [
        torch.linalg.vector_norm(torch.atleast_1d(g), dim=-1).flatten()
        for g in gradients
        if g is not None
    ]
    length = torch.cat(lengths).square().sum().sqrt()
    if length <= most:
        return gradients
    scale = most / length
    scale = scale + (length - length)  # NaN if the norm is infinite.
    return [g if g is None else g * scale for g in gradients]


def adam_steps(variables, gradients, beta_1, beta_2, rate, epsilon, means, squares, highest=None):
    """Update in one pass on a CPU, otherwise with a few operations on all weights at once."""
    import torch

    tensors = *variables, *gradients
    # The fused pass ignores strides.
    is_plain = all(t.is_cpu and t.is_contiguous() for t in tensors)
    is_plain = is_plain and len({t.dtype for t in tensors}) == 1
    if is_plain and not torch.compiler.is_compiling():
        # At this step number the kernel's bias correction is 1; ours is in `rate` and `epsilon`.
        steps = [torch.tensor(1e9)] * len(variables)
        with torch.no_grad():
            keras_internals.fused_adam()(
                variables,
                gradients,
                means,
                squares,
                highest or [],
                steps,
                lr=float(rate),
                beta1=beta_1,
                beta2=beta_2,
                weight_decay=0.0,
                eps=float(epsilon),
                amsgrad=highest is not None,
                maximize=False,
            )
        return True
    each = keras_internals.foreach
    with torch.no_grad():
        each("lerp_")(means, gradients, 1 - beta_1)
        each("mul_")(squares, beta_2)
        each("addcmul_")(squares, gradients, gradients, 1 - beta_2)
        if highest is not None:
            each("maximum_")(highest, squares)
            squares = highest
        roots = each("sqrt")(squares)
        each("add_")(roots, epsilon)
        steps = each("div")(means, roots)
        each("mul_")(steps, rate)
        each("sub_")(variables, steps)
    return True


def check_compiling(jit_compile):
    """Raise if `torch.compile` lacks a C++ compiler, with a shorter error than its own."""
    compiler = os.environ.get("CXX", "g++")
    if jit_compile is True and not on_gpu() and shutil.which(compiler) is None:
        raise ValueError(
            f"jit_compile=True needs a C++ compiler on PyTorch, but '{compiler}' was not found; "
            "install one, set the environment variable CXX to yours, or omit jit_compile."
        )


def value_and_gradient(function, x):
    import torch

    x = ops.convert_to_tensor(x).detach().requires_grad_()
    with torch.enable_grad():
        values = function(x)
        (gradient,) = torch.autograd.grad(values.sum(), x)
    return ops.convert_to_numpy(values), ops.convert_to_numpy(gradient)


def predict_batch(model, features):
    """Predict with a graph of PyTorch operations for all sizes, after enough calls.

    Keras' Python overhead takes longer than a small model's computation. Weights are arguments of
    the graph, so they are always current. Tracing takes as long as the overhead of about 100
    batches.
    """
    import torch

    is_own = type(model).predict_step is not keras.Model.predict_step
    if is_own or model.jit_compile or not _runs_graphs(model):
        return None
    inputs = {name: torch.tensor(features[name]) for name in sorted(features)}
    graphs = backend.beside_prediction(model, functools.partial(backend.Graphs, OFTEN, MOST_GRAPHS))
    outputs = _by_graph(graphs, model, lambda inputs: model.predict_step((inputs,)), inputs)
    return None if outputs is None else keras.tree.map_structure(ops.convert_to_numpy, outputs)


# A graph of six layers is traced in 2 s, and saves 13 ms per batch of 32, 25 ms per single text.
# Single rows, rows of one token and rows of up to `SHORT` tokens have their own graphs.
OFTEN, MOST_GRAPHS = 64, 8
# For loops with one step per token.
OFTEN_IN_LOOPS = 256


def run_in_loop(model, step, inputs):
    """Run a step with a graph after enough calls; see `predict_batch`."""
    if not _runs_graphs(model):
        return None
    graphs = model.__dict__.setdefault("_loop_graphs", backend.Graphs(OFTEN_IN_LOOPS, MOST_GRAPHS))
    return _by_graph(graphs, model, step, inputs)


def _runs_graphs(model):
    import torch

    return not torch.is_autocast_enabled("cpu") and not on_gpu() and backend.runs_graphs(model)


def _by_graph(graphs, model, step, inputs):
    """Compute `step(inputs)`, a dict of tensors, by a graph; `None` if there is none yet."""
    import torch

    variables = model.variables
    weights = [variable.value for variable in variables]
    shapes = (*((name, x.shape, x.dtype) for name, x in inputs.items()), *map(id, variables))
    with torch.no_grad():
        graph = graphs.of(
            shapes,
            lambda: _Graph(step, variables, weights, inputs),
            lambda graph: graph.fits(variables, weights, inputs),
        )
        return None if graph is None or graph.module is None else graph.module(weights, inputs)


class _Graph:
    """A model's step as a graph of PyTorch operations, with guards on its arguments.

    Attributes:
        module: function of weights and inputs; `None` if the model cannot be traced.
    """

    def __init__(self, run, variables, weights, inputs):
        from torch.fx.experimental.proxy_tensor import make_fx

        self._variables = variables

        def step(weights, inputs):
            with keras.StatelessScope(state_mapping=list(zip(variables, weights))):
                return run(inputs)

        try:
            with keras_internals.sizes_apart():
                self.module = make_fx(step, tracing_mode="symbolic")(weights, inputs)
            arguments = [n.meta["val"] for n in self.module.graph.find_nodes(op="placeholder")]
            self._shapes = self.module.shape_env
            self._guards = self._shapes.produce_guards_expression(arguments, ignore_static=False)
        except Exception:
            # Custom layers that read values cannot be traced.
            self.module = None

    def fits(self, variables, weights, inputs):
        """Return whether the graph is valid for these arguments."""
        if list(map(id, variables)) != list(map(id, self._variables)):
            return False
        if self.module is None or self._guards is None:
            return True
        arguments = [*weights, *inputs.values()]
        return self._shapes.evaluate_guards_expression(self._guards, arguments)


def predicts_by_batch():
    """Return whether this is a CPU, where a graph saves at least a tenth of the time."""
    return not on_gpu()


def without_gradients():
    import torch

    return torch.no_grad()


@contextlib.contextmanager
def full_float32():
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def of_all_replicas(x):
    """Gather from all processes; numbers of rows may differ, other axes are zero-padded."""
    import torch
    from torch import distributed

    if not _are_several():
        return None
    rank, count = distributed.get_rank(), distributed.get_world_size()
    sizes = torch.zeros(count, x.ndim, dtype=torch.int64, device=x.device)
    sizes[rank] = torch.tensor(x.shape)
    distributed.all_reduce(sizes)
    missing = (sizes.amax(dim=0) - sizes[rank]).tolist()
    padding = [size for missed in reversed(missing) for size in (0, missed)]
    parts = _gathered().apply(torch.nn.functional.pad(x, padding))
    parts = [part[:rows] for part, rows in zip(parts, sizes[:, 0].tolist())]
    return torch.cat([*parts[rank:], *parts[:rank]])


def mean_of_replicas(x):
    """Average over all processes, without gradients from the others."""
    from torch import distributed

    if not _are_several():
        return None
    total = x.detach().clone()
    distributed.all_reduce(total)
    return total / distributed.get_world_size()


def _are_several():
    from torch import distributed

    return distributed.is_available() and distributed.is_initialized()


@functools.cache
def _gathered():
    import torch
    from torch import distributed

    class Gathered(torch.autograd.Function):
        """Gathers the equally shaped tensors of all processes in a tuple; gradients are summed."""

        @staticmethod
        def forward(context, x):
            parts = [torch.empty_like(x) for _ in range(distributed.get_world_size())]
            distributed.all_gather(parts, x.contiguous())
            return tuple(parts)

        @staticmethod
        def backward(context, *gradients):
            total = torch.stack(gradients)
            distributed.all_reduce(total)
            return total[distributed.get_rank()]

    return Gathered


def data_parallel(model, **kwargs):
    """Average the gradients of all processes in `fit` with `DistributedDataParallel`."""
    import torch

    if not torch.distributed.is_initialized():
        raise ValueError(
            "data_parallel() found no process group; start the script with torchrun, and call "
            "torch.distributed.init_process_group() first."
        )
    # KerasHub would register the weights with PyTorch only in the first step, too late.
    keras_internals.track_variables(model)
    # Weights that a task does not use, such as the pooler's, get no gradient.
    kwargs = {"find_unused_parameters": True, **kwargs}
    forward = torch.nn.parallel.DistributedDataParallel(model, **kwargs)

    class Through:
        """The model, called through `DistributedDataParallel`."""

        def __call__(self, *args, **kwargs):
            return forward(*args, **kwargs)

        def __getattr__(self, name):
            return getattr(model, name)

    step = type(model).train_step
    model.train_step = lambda data: step(Through(), data)
    return model


def launched():
    """Read torchrun's environment variables, and select this process' GPU."""
    import torch

    count = int(os.environ.get("WORLD_SIZE") or 1)
    if count > 1 and torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK") or 0))
    return int(os.environ.get("RANK") or 0), count


def join_processes():
    """Connect to the processes that torchrun started."""
    import torch
    from torch import distributed

    if not _are_several():
        if launched()[1] < 2 or not distributed.is_available():
            return 0, 1
        kinds = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        # The first process may write examples for hours while the others wait.
        distributed.init_process_group(kinds, timeout=datetime.timedelta(hours=12))
        # Without this the group's threads may fail during interpreter shutdown.
        atexit.register(_leave_processes)
    return distributed.get_rank(), distributed.get_world_size()


def _leave_processes():
    from torch import distributed

    if _are_several():
        distributed.destroy_process_group()


def on_devices(devices, mesh, layout_map):
    """Check that each process has one device."""
    from torch import distributed

    backend.check_no_mesh(mesh)
    if devices not in (None, 1):
        raise ValueError(
            f"devices={devices} is not supported on PyTorch, where each device has its own "
            f"process; start this with `torchrun --nproc-per-node {devices}`, without devices."
        )
    if not _are_several():
        return contextlib.nullcontext(((0, 1), 1))
    count = distributed.get_world_size()
    return contextlib.nullcontext(((distributed.get_rank(), count), count))


def sum_over_processes(values):
    """Sum on the CPU with gloo."""
    import torch
    from torch import distributed

    if not _are_several():
        return None
    total = torch.tensor(values, dtype=torch.float64)
    distributed.all_reduce(total)
    return total.tolist()


def rows_of_process(shard, training):
    """Return all rows for `evaluate`, whose results are not averaged."""
    return shard if training else (0, 1)


def is_lost_process(error):
    """Recognize errors of gloo and NCCL, which have no class of their own."""
    said = ("Connection closed by peer", "Connection reset", "Broken pipe", "gloo", "NCCL")
    return isinstance(error, RuntimeError) and any(part in str(error) for part in said)


def random_states():
    """Return the states of the global generators, which dropout without a seed uses."""
    import torch

    states = {"random/cpu": torch.get_rng_state().numpy()}
    if torch.cuda.is_available():
        for number, state in enumerate(torch.cuda.get_rng_state_all()):
            states[f"random/cuda_{number}"] = state.numpy()
    return states


def set_random_states(states):
    import torch

    for name, state in states.items():
        device = name.partition("/")[2]
        state = torch.from_numpy(state.copy())
        if device == "cpu":
            torch.set_rng_state(state)
        else:
            torch.cuda.set_rng_state(state, int(device.removeprefix("cuda_")))
