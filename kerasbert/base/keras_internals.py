"""Functions that wrap private names of Keras, KerasHub, TensorFlow, JAX and PyTorch.

See `kerasbert.base.private_names` for the reasons; no other file mentions them.
"""

import sys

# Names used as strings elsewhere: a keyword, a path and a graph attribute.
PYTHON_WORKFLOW = "_allow_python_workflow"
GRADIENT_ACCUMULATOR = "_gradient_accumulator"
XLA_MUST_COMPILE = "_XlaMustCompile"


# === Layers and models ===


def flatten_layers(layer, include_self=True):
    """Return all layers inside a layer or model, at any depth."""
    return layer._flatten_layers(include_self=include_self)


def set_policy(layer, policy):
    """Set one layer's dtype policy, without changing a shared policy map."""
    layer._dtype_policy = policy


def was_called(layer):
    """Whether a layer or model has been called."""
    return layer._called


def without_remat(operation):
    """Exempt an operation from `keras.RematScope`."""
    operation._remat_mode = None


def run_through_graph(model, inputs, replace):
    """Run a functional model, with each operation replaced by `replace(operation)`."""
    return model._run_through_graph(inputs, replace)


def set_value(variable, value):
    """Assign a value of the same shape and dtype to a variable, without checks."""
    variable._value = value


def functional():
    """Return the class of `keras.Model(inputs, outputs)`."""
    from keras.src.models.functional import Functional

    return Functional


def pipeline_model():
    """Return KerasHub's base class of tasks."""
    from keras_hub.src.utils.pipeline_model import PipelineModel

    return PipelineModel


def set_initializer(variable, initializer):
    """Set the initializer of a variable that has no value yet."""
    variable._initializer = initializer


# === Training ===


def compiled_metrics(model):
    """Return the container of a model's compiled metrics, or `None`."""
    return model._compile_metrics


def forget_metrics(model):
    """Remove the metrics of an earlier `compile`."""
    model._compile_metrics = None


def loss_tracker(model):
    """Return a model's metric that tracks the mean loss."""
    return model._loss_tracker


def function_of(metric):
    """Return the function that a `MeanMetricWrapper` averages."""
    return metric._fn


def build_on(model, batch):
    """Build a compiled model's metrics and optimizer, like a first step."""
    model._symbolic_build(data_batch=batch)


def in_order(model, logs):
    """Convert results by name to those of `evaluate`: a list or one number."""
    return model._flatten_metrics_in_order(logs)


def in_strategy(model):
    """Whether a model on TensorFlow was created in the scope of a `tf.distribute` strategy."""
    return model._distribute_strategy is not None


def model_of(callback):
    """Return a callback's model without synchronizing its weights."""
    return callback._model


# === Optimizers ===


def variable_key(optimizer, variable):
    """Return the key of a variable in an optimizer's dictionaries."""
    return optimizer._var_key(variable)


def averages(optimizer, variable):
    """Return Adam's or LAMB's first and second moments; with AMSGrad also the maximum."""
    index = optimizer._get_variable_index(variable)
    slots = [optimizer._momentums, optimizer._velocities]
    if getattr(optimizer, "amsgrad", False):
        slots.append(optimizer._velocity_hats)
    return [slot[index] for slot in slots]


def steps_by_adam(optimizer, variable):
    """Whether Muon updates a weight with Adam."""
    return optimizer._should_use_adamw(variable)


def set_trained(optimizer, variables, places):
    """Restrict an optimizer to `variables`.

    `places` maps the `id` of each variable to its index in the optimizer's state.
    """
    # Keras would track new lists.
    optimizer._trainable_variables[:] = variables
    optimizer._trainable_variables_indices.clear()
    optimizer._trainable_variables_indices.update({id(v): places[id(v)] for v in variables})


def class_made_by(cls):
    """Return the class of the instances that calling `cls` creates."""
    return type(cls.__new__(cls))


# === PyTorch ===


def torch_device():
    """Return the type of the device that Keras computes on with PyTorch, such as "cuda"."""
    from keras.src.backend.torch.core import DEFAULT_DEVICE

    return DEFAULT_DEVICE


def track_variables(model):
    """Register a model's weights as PyTorch parameters."""
    model._track_variables()


def onednn_linear():
    """Return PyTorch's oneDNN linear layer.

    A function of rows (R, D), weights (U, D), a bias and more.
    """
    import torch

    return torch.ops.mkldnn._linear_pointwise


def onednn_takes_bfloat16():
    """Whether `onednn_linear` supports bfloat16 on this processor."""
    import torch

    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


def sizes_apart():
    """Return a context in which PyTorch's graphs keep equal dynamic sizes distinct."""
    from torch.fx.experimental import _config

    return _config.patch(use_duck_shape=False)


def fused_adam():
    """Return PyTorch's fused Adam update on lists of tensors."""
    import torch

    return torch._fused_adam_


def foreach(operation):
    """Return the PyTorch operation on lists of tensors that `operation` names.

    By a dict, because `torch.compile` traces this.
    """
    import torch

    return {
        "add_": torch._foreach_add_,
        "addcmul_": torch._foreach_addcmul_,
        "div": torch._foreach_div,
        "lerp_": torch._foreach_lerp_,
        "maximum_": torch._foreach_maximum_,
        "mul_": torch._foreach_mul_,
        "sqrt": torch._foreach_sqrt,
        "sub_": torch._foreach_sub_,
    }[operation]


# === TensorFlow ===


def may_be_in_xla(graph):
    """Whether XLA compiles a graph; true if TensorFlow cannot tell."""
    try:
        from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext
    except ImportError:
        return True
    return GraphOrParentsInXlaContext(graph)


def regex_split_with_offsets(text, delimiters, kept):
    """Run TensorFlow Text's function on strings (N,), without its checks."""
    from tensorflow_text.python.ops import regex_split_ops

    operation = regex_split_ops.gen_regex_split_ops.regex_split_with_offsets
    *found, splits = operation(text, f"({delimiters})", f"({kept})")
    ragged = regex_split_ops.ragged_tensor.RaggedTensor
    return [ragged.from_row_splits(x, splits, validate=False) for x in found]


def sentencepiece_ops():
    """Return TensorFlow Text's SentencePiece operations."""
    from tensorflow_text.python.ops import sentencepiece_tokenizer

    return sentencepiece_tokenizer.gen_sentencepiece_tokenizer


# === Processes ===


def runs_tensorflow():
    """Whether TensorFlow has started its threads, without importing it."""
    module = sys.modules.get("tensorflow.python.eager.context")
    context = module and module._context
    return context is not None and context._context_handle is not None


def runs_jax():
    """Whether JAX has started its threads, without importing it."""
    module = sys.modules.get("jax._src.xla_bridge")
    return module is not None and bool(module._backends)
