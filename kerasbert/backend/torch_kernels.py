"""PyTorch kernels: dense, norm, attention, dropout, Adam and graphs.

See `kerasbert.backend` for the arguments.
"""

import contextlib
import functools
import os
import shutil

import keras
import torch
from keras import ops

from kerasbert import backend
from kerasbert.backend.graphs import Graphs, beside_prediction
from kerasbert.backend.layers import at_least_float32, by_rows
from kerasbert.backend.torch_processes import (  # noqa: F401
    data_parallel,
    is_lost_process,
    join_processes,
    launched,
    mean_of_replicas,
    of_all_replicas,
    on_devices,
    rows_of_process,
    sum_over_processes,
)
from kerasbert.base import keras_internals

KERAS_EXPORTS = ("torch",)


@functools.cache
def on_gpu():
    """Return whether Keras computes on a GPU."""
    # PyTorch's current device is "meta" while Keras builds a model.
    return keras_internals.torch_device() == "cuda"


# === Steps ===


@torch.no_grad()
def adversarial_step(model, arguments, perturbed, perturbations, keeps_clean):
    """Change weights in place for the second pass, then restore them.

    Layers recomputed in another thread would not see a stateless scope.
    """
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(arguments[0])
    trained = model.trainable_weights[:]
    wanted = {id(weight): weight.value for weight in [*trained, *perturbed]}
    values = [weight.value for weight in perturbed]

    @torch.enable_grad()
    def run(tensors):
        y_pred = model(x, training=True)
        loss = model.compute_loss(x, y, y_pred, sample_weight, training=True)
        scaled = model.optimizer.scale_loss(loss)
        return loss, y_pred, torch.autograd.grad(scaled, tensors, allow_unused=True)

    frozen = [one for one in values if not one.requires_grad]
    try:
        for one in frozen:
            one.requires_grad_(True)
        loss, y_pred, clean = run(list(wanted.values()))
    finally:
        for one in frozen:
            one.requires_grad_(False)
    rows = keras.tree.flatten(x)[0].shape[0]
    keras_internals.loss_tracker(model).update_state(loss, sample_weight=rows)
    clean = dict(zip(wanted, clean, strict=True))
    copies = [one.clone() for one in values]
    added = perturbations(copies, [clean[id(weight)] for weight in perturbed])
    try:
        for value, one in zip(values, added, strict=True):
            value.add_(one)
        *_, gradients = run([weight.value for weight in trained])
    finally:
        for value, copy in zip(values, copies, strict=True):
            value.copy_(copy)
    if keeps_clean:
        gradients = backend.sums([clean[id(weight)] for weight in trained], gradients)
    model.optimizer.apply(list(gradients), trained)
    return model.compute_metrics(x, y, y_pred, sample_weight)


# === Layers and losses ===


def dense(inputs, weights, bias=None, activation=None, training=False):
    """Fuse matmul and bias; on a CPU, use oneDNN's newer interface.

    On an AMD processor, MKL took a sixth longer for float32, and the older oneDNN interface a tenth
    longer for bfloat16.
    """
    if bias is None:
        return None
    weights, bias = map(ops.convert_to_tensor, (weights, bias))

    def function(rows):
        if _is_for_onednn(rows, weights, bias):
            outputs = _onednn_product(rows, weights, bias)
        else:
            outputs = torch.addmm(bias, rows, weights)
        return outputs if activation is None else activation(outputs)

    return by_rows(inputs, function)


def _is_for_onednn(*tensors):
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
    tensors = [rows, weights] if bias is None else [rows, weights, bias]
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return _OneDnnProduct.apply(rows, weights, bias)
    return keras_internals.onednn_linear()(rows, weights.t(), bias, "none", [], "")


class _OneDnnProduct(torch.autograd.Function):
    """`_onednn_product` with a gradient, which PyTorch's operation lacks."""

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


def highest_of_tokens(x):
    """Use `max`, whose gradient takes half the memory of `amax`."""
    return x.max(dim=1).values


def norm(x, gamma, beta, epsilon, training=False):
    """Use PyTorch's kernel, which computes in float32."""
    x = ops.convert_to_tensor(x)
    weights = [None if w is None else ops.convert_to_tensor(w, x.dtype) for w in (gamma, beta)]
    return torch.nn.functional.layer_norm(x, x.shape[-1:], *weights, epsilon)


def dropout(x, rate, seed):
    """On a CPU, draw 16 random bits per element, which rounds the rate by at most 2 ** -17.

    Each draw serves four elements, in less than half the time of PyTorch's dropout.
    """
    x = ops.convert_to_tensor(x)
    # With a user's seed, numbers must come from Keras' generator.
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
    """On a GPU, use PyTorch's single operation."""
    if not on_gpu():
        return None
    losses = torch.nn.functional.cross_entropy(
        logits.flatten(0, -2), labels.flatten().long(), reduction="none"
    )
    return losses.reshape(labels.shape)


def first_choice(logits):
    """Use argmax, which is fast on PyTorch."""
    return ops.argmax(logits, axis=-1)


# === Attention ===


def heads_attention(query, key, value, mask=None, dropout=0.0, seed=None, maps=False, bias=None):
    """Use PyTorch's kernel, or on a CPU `short_attention` for few tokens.

    With dropout, PyTorch's kernel is used on a GPU only.
    """
    if maps or (dropout and not on_gpu()):
        return None
    most = SHORT_TRAINED if _trains_in_bfloat16(query) else SHORT
    if not on_gpu() and max(query.shape[1], key.shape[1]) <= most:
        return short_attention(query, key, value, mask, bias), None
    return fused_attention(query, key, value, mask, dropout, bias), None


# On a CPU, PyTorch's kernel is slower than matmuls over all heads for up to `SHORT` tokens, or in
# bfloat16 training `SHORT_TRAINED`: its gradient takes ten times as long with 40 tokens, and twice
# with 128.
SHORT = 32
SHORT_TRAINED = 128


def _trains_in_bfloat16(query):
    return query.dtype is torch.bfloat16 and query.requires_grad and torch.is_grad_enabled()


def short_attention(query, key, value, mask=None, bias=None):
    """Compute attention by matmuls over all heads; see `fused_attention` for the arguments.

    The dtype is at least float32, except for the matmuls in bfloat16 training.
    """
    batch, length, num_heads, width = query.shape
    rows = [x.transpose(1, 2).flatten(0, 1) for x in (query, key, value)]  # (B * N, T, H)
    if not _trains_in_bfloat16(query):
        rows = [at_least_float32(x) for x in rows]
    scores = at_least_float32(torch.bmm(rows[0], rows[1].transpose(1, 2))) * width**-0.5
    if mask is not None or bias is not None:
        scores = scores.view(batch, num_heads, length, -1)
        scores = (scores + _added(mask, bias, scores.dtype)).flatten(0, 1)
    maps = torch.softmax(scores, -1).to(rows[2].dtype)
    outputs = torch.bmm(maps, rows[2]).to(query.dtype)
    return outputs.view(batch, num_heads, length, width).transpose(1, 2)


def _added(mask, bias, dtype):
    """Merge a mask and a bias into one bias.

    With a bool mask, PyTorch's kernel gives NaN for a fully masked row.
    """
    lowest = torch.finfo(dtype).min / 2
    mask = None if mask is None else ops.convert_to_tensor(mask, "bool")
    bias = None if bias is None else ops.convert_to_tensor(bias).to(dtype)
    if bias is None and mask is not None:
        return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, lowest)
    return bias if mask is None else torch.where(mask, bias, lowest)


def fused_attention(query, key, value, mask=None, dropout=0.0, bias=None):
    """Compute attention by PyTorch's kernel, with dropout of the attention probabilities.

    Args:
        query: (B, S, N, H).
        key, value: (B, T, N, H).
        mask: bool, broadcastable to (B, N, S, T), or `None`.
        dropout: float.
        bias: floats, broadcastable to (B, N, S, T), or `None`.
    """
    added = _added(mask, bias, query.dtype)
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))  # (B, N, T, H)
    outputs = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=added, dropout_p=dropout
    )
    return outputs.transpose(1, 2)


def update_cache(cache, values, index):
    if torch.is_grad_enabled():
        return None
    # In place, because a copy would be large. Beams of a prompt start as views of one memory;
    # `contiguous` separates them.
    return cache.contiguous().index_copy_(2, index + torch.arange(values.shape[2]), values)


def is_known(size):
    """Return True for symbolic sizes too, with guards."""
    return isinstance(size, (int, torch.SymInt))


# === Optimizers ===


def clip_by_global_norm(gradients, most):
    """On a CPU, skip the second pass unless the norm exceeds `most`."""
    if on_gpu() or torch.compiler.is_compiling():
        return None
    # By row: PyTorch's norm of a large table is wrong in the fourth digit.
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
    """Update by one fused pass on a CPU, else by a few operations on all weights."""
    tensors = *variables, *gradients
    # The fused pass ignores strides, so tensors must be contiguous.
    is_plain = all(t.is_cpu and t.is_contiguous() for t in tensors)
    is_plain = is_plain and len({t.dtype for t in tensors}) == 1
    if is_plain and not torch.compiler.is_compiling():
        # With this step number the kernel corrects no bias.
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


# === Steps ===


def check_compiling(jit_compile, adversarial=None):
    """Raise if `torch.compile` lacks a C++ compiler."""
    if jit_compile is True and adversarial:
        raise ValueError(
            f"jit_compile=True cannot compile the two passes of adversarial='{adversarial}' on "
            "PyTorch; omit one of the two."
        )
    compiler = os.environ.get("CXX", "g++")
    if jit_compile is True and not on_gpu() and shutil.which(compiler) is None:
        raise ValueError(
            f"jit_compile=True needs a C++ compiler on PyTorch, but '{compiler}' was not found; "
            "install one, set the environment variable CXX to yours, or omit jit_compile."
        )


def value_and_gradient(function, x):
    x = ops.convert_to_tensor(x).detach().requires_grad_()
    with torch.enable_grad():
        values = function(x)
        (gradient,) = torch.autograd.grad(values.sum(), x)
    return ops.convert_to_numpy(values), ops.convert_to_numpy(gradient)


def without_gradients():
    return torch.no_grad()


@contextlib.contextmanager
def full_float32():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def random_states():
    """Return the states of the global generators, which dropout without a seed uses."""
    states = {"random/cpu": torch.get_rng_state().numpy()}
    if torch.cuda.is_available():
        for number, state in enumerate(torch.cuda.get_rng_state_all()):
            states[f"random/cuda_{number}"] = state.numpy()
    return states


def set_random_states(states):
    for name, state in states.items():
        device = name.partition("/")[2]
        state = torch.from_numpy(state.copy())
        if device == "cpu":
            torch.set_rng_state(state)
        else:
            torch.cuda.set_rng_state(state, int(device.removeprefix("cuda_")))


# === Graphs ===


# A graph of six layers is traced in 2 s, and saves 13 ms per batch of 32 texts or 25 ms per text.
# Single rows, single tokens and up to `SHORT` tokens have own graphs.
OFTEN, MOST_GRAPHS = 64, 8


def predict_batch(model, features):
    """Predict with a graph of PyTorch operations for all sizes, after `OFTEN` calls.

    Keras' Python code takes longer than a small model's computation; tracing takes as long as about
    100 batches of it. Weights are arguments, so they are current.
    """
    is_own = type(model).predict_step is not keras.Model.predict_step
    if is_own or model.jit_compile or not _runs_graphs(model):
        return None
    inputs = {name: torch.tensor(features[name]) for name in sorted(features)}
    graphs = beside_prediction(model, functools.partial(Graphs, OFTEN, MOST_GRAPHS))
    outputs = _by_graph(graphs, model, lambda inputs: model.predict_step((inputs,)), inputs)
    return None if outputs is None else keras.tree.map_structure(ops.convert_to_numpy, outputs)


# `OFTEN` in loops of one step per token.
OFTEN_IN_LOOPS = 256


def run_in_loop(model, step, inputs):
    """Run a step with a graph after `OFTEN_IN_LOOPS` calls; see `predict_batch`."""
    if not _runs_graphs(model):
        return None
    graphs = model.__dict__.setdefault("_loop_graphs", Graphs(OFTEN_IN_LOOPS, MOST_GRAPHS))
    return _by_graph(graphs, model, step, inputs)


def _runs_graphs(model):
    return not torch.is_autocast_enabled("cpu") and not on_gpu() and backend.runs_graphs(model)


def _by_graph(graphs, model, step, inputs):
    """Compute `step(inputs)` with a graph; return `None` if there is no graph yet."""
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
        module: the graph of weights and inputs, or `None`.
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
            # Custom layers may read values.
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
    """Return True on a CPU, where a graph saves at least a tenth of the time."""
    return not on_gpu()
