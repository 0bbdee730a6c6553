"""Private names of Keras, KerasHub, TensorFlow, JAX and PyTorch that this package depends on.

Private names may change in any release without notice. `NAMES` lists each, with the reason why no
public name will do. There are two kinds:

- Names that this package uses. A function below wraps each; no other file mentions it.
- Methods and attributes that our classes define for Keras to use, marked by `given=True`.

`tests/base/test_keras_internals.py` looks up each name in the installed packages, and compares this
list with a scan of the code.
"""

import dataclasses
import sys


@dataclasses.dataclass(frozen=True)
class Name:
    """One private name, or several that belong together.

    Args:
        owner: string. Class or module that has it.
        names: string. Separated by spaces.
        form: string. A method's signature, with "..." for defaults that do not matter; otherwise
            its kind, such as "attribute" of an object or "keyword" of a constructor.
        since: string. First release with this form, among Keras' minor versions 3.0 to 3.15; for
            other packages, the only release that was read.
        why: string.
        issue: string. Thread of the package that discusses it.
        given: bool. Whether our classes define it for Keras to use.
        backends: tuple of strings. Backends that have it; empty for all.
    """

    owner: str
    names: str
    form: str
    since: str
    why: str
    issue: str = "none known"
    given: bool = False
    backends: tuple = ()


NAMES = (
    # === Layers and models ===
    Name(
        "keras.Layer",
        "_flatten_layers",
        "(self, include_self=True, recursive=True)",
        "keras 3.0",
        "Lists all nested layers. `layers` exists on models only, and is one level deep.",
        "keras-team/keras#19858: recommended by Keras' authors",
    ),
    Name(
        "keras.Layer",
        "_dtype_policy",
        "attribute",
        "keras 3.3",
        "Gives a layer of a quantized model its own policy. Setting `dtype_policy` changes the "
        "policy map that all layers share.",
        "keras-team/keras#19858",
    ),
    Name(
        "keras.Layer",
        "_called",
        "attribute",
        "keras 3.0",
        "`export` refuses a model that was never called, though functional models know their "
        "shapes.",
    ),
    Name(
        "keras.Operation",
        "_remat_mode",
        "attribute",
        "keras 3.15",
        "Under `keras.RematScope` Keras rematerializes every layer, but a block must be one unit.",
        "keras-team/keras#21207, keras-team/keras#23107",
    ),
    Name(
        "keras.Function",
        "_run_through_graph",
        "(self, inputs, operation_fn=..., call_fn=None)",
        "keras 3.0",
        "Runs a model with some layers called differently, to read their hidden states.",
    ),
    Name(
        "keras.Variable",
        "_initializer",
        "attribute",
        "keras 3.0",
        "Initializes a variable from a checkpoint, without computing random values first.",
        "keras-team/keras-hub#1341",
    ),
    Name(
        "keras.Variable",
        "_value",
        "attribute",
        "keras 3.0",
        "Sets the tensor of a variable after each step on JAX, without checks of shape and dtype.",
        "keras-team/keras#19054",
        backends=("jax",),
    ),
    Name(
        "keras.src.models.functional",
        "Functional",
        "class",
        "keras 3.0",
        "The class of `keras.Model(inputs, outputs)`. Keras changes the bases of subclasses that "
        "do not inherit from it when the first instance is created.",
        "keras-team/keras#17270",
    ),
    Name(
        "keras_hub.src.utils.pipeline_model",
        "PipelineModel",
        "class",
        "keras-hub 0.32",
        "KerasHub's base class of tasks, which changes its own bases for all threads whenever an "
        "instance is created.",
        "keras-team/keras#17270",
    ),
    Name(
        "keras_hub.models.Task",
        "_backbone",
        "attribute",
        "keras-hub 0.32",
        "Value of the property `backbone`, set without Keras, which would track all its weights.",
        "keras-team/keras-cv#1908",
        given=True,
    ),
    Name(
        "keras_hub.tokenizers.Tokenizer",
        "_allow_python_workflow",
        "keyword",
        "keras-hub 0.32",
        "KerasHub consumes this keyword, so it must not be rejected as unknown.",
        "keras-team/keras-hub#3070",
    ),
    # === Training ===
    Name(
        "keras.Model",
        "_compile_metrics",
        "attribute",
        "keras 3.0",
        "A second `compile` without metrics keeps those of the first. And before the first labels "
        "these metrics have no results.",
        "keras-team/keras-cv#1794: the same for another model",
    ),
    Name(
        "keras.Model",
        "_loss_tracker",
        "attribute",
        "keras 3.0",
        "The mean loss, which a multi-task model keeps per task.",
    ),
    Name(
        "keras.Model",
        "_flatten_metrics_in_order",
        "(self, logs)",
        "keras 3.0",
        "Gives the order of the results of `evaluate`; ours has a loop of its own for few texts.",
    ),
    Name(
        "keras.Model",
        "_symbolic_build",
        "(self, iterator=None, data_batch=None)",
        "keras 3.1",
        "Builds metrics and optimizer from a given batch. `fit` would consume one from the data, "
        "which would then be missing from the training.",
    ),
    Name(
        "keras.Model",
        "_maybe_symbolic_build",
        "(self, iterator=None, data_batch=None)",
        "keras 3.5",
        "With several replicas Keras averages a batch to get its shapes, which fails for bool "
        "masks.",
        given=True,
        backends=("tensorflow",),
    ),
    Name(
        "keras.Model",
        "_get_jax_state",
        "(self, trainable_variables=False, non_trainable_variables=False, "
        "optimizer_variables=False, metrics_variables=False, purge_model_variables=False)",
        "keras 3.0",
        "Keras removes the weights from a model during its loops: other threads find none, and "
        "an interrupt loses them.",
        "keras-team/keras#19054",
        given=True,
        backends=("jax",),
    ),
    Name(
        "keras.Model",
        "_make_function",
        "(self, step_function, concatenate_outputs=False)",
        "keras 3.7",
        "Overridden to assign the outputs of each step to the model at once.",
        "keras-team/keras#19054",
        given=True,
        backends=("jax",),
    ),
    Name(
        "keras.Model",
        "_purge_model_variables",
        "(self, trainable_variables=False, non_trainable_variables=False, "
        "optimizer_variables=False, metrics_variables=False)",
        "keras 3.0",
        "Overridden so that the weights stay in the model.",
        "keras-team/keras#19054",
        given=True,
        backends=("jax",),
    ),
    Name(
        "keras.Model",
        "_jax_state_synced",
        "attribute",
        "keras 3.0",
        "Whether the loop must read the variables again.",
        "keras-team/keras#19054",
        given=True,
        backends=("jax",),
    ),
    Name(
        "keras.Model",
        "_get_state_sharding_spec",
        "(self)",
        "keras 3.6",
        "Tells how the state of a step is sharded over devices.",
        given=True,
        backends=("jax",),
    ),
    Name(
        "keras.Model",
        "_distribute_strategy",
        "attribute",
        "keras 3.0",
        "Tells whether a model was created in a strategy. `distribute_strategy` always returns "
        "one.",
        backends=("tensorflow",),
    ),
    Name(
        "keras.callbacks.Callback",
        "_model",
        "attribute",
        "keras 3.0",
        "The model without synchronization. On JAX the property `model` first waits for the step "
        "and copies its weights into the model.",
        "keras-team/keras#19054, keras-team/keras#23620",
    ),
    Name(
        "keras.metrics.MeanMetricWrapper",
        "_direction",
        "attribute",
        "keras 3.0",
        "Whether higher is better, from which `EarlyStopping` and `ModelCheckpoint` infer `mode`.",
        "keras-team/keras#18798",
        given=True,
    ),
    Name(
        "keras.metrics.MeanMetricWrapper",
        "_fn",
        "attribute",
        "keras 3.0",
        "The function that a metric is the mean of. `get_config` has its name alone, which a "
        "user's function may share.",
    ),
    # === Optimizers ===
    Name(
        "keras.optimizers.Optimizer",
        "_use_weight_decay",
        "(self, variable)",
        "keras 3.0",
        "Excludes weights from weight decay by whole parts of a path. Keras matches substrings.",
        "keras-team/keras#16201",
        given=True,
    ),
    Name(
        "keras.optimizers.Optimizer",
        "_apply_weight_decay",
        "(self, variables)",
        "keras 3.0",
        "Applies weight decay with each weight's own rate; LAMB's decay is part of its update.",
        "keras-team/keras#19981",
        given=True,
    ),
    Name(
        "keras.optimizers.Optimizer",
        "_clip_gradients",
        "(self, grads)",
        "keras 3.0",
        "Sums gradients over repeated tokens and replicas before their norm is computed.",
        "keras-team/keras#18985, tensorflow/tensorflow#33929",
        given=True,
    ),
    Name(
        "keras.optimizers.Optimizer",
        "_all_reduce_sum_gradients",
        "(self, grads_and_vars)",
        "keras 3.3",
        "Disables the sum over replicas after clipping; here it comes before clipping.",
        "tensorflow/tensorflow#33929",
        given=True,
        backends=("tensorflow",),
    ),
    Name(
        "keras.optimizers.Optimizer",
        "_backend_update_step",
        "(self, grads, trainable_variables, learning_rate)",
        "keras 3.1",
        "Updates weights in groups of one learning rate, with one bias correction per group.",
        "keras-team/keras#17391: the position of epsilon",
        given=True,
    ),
    Name(
        "keras.optimizers.AdamW",
        "_parallel_update_step",
        "(self, grads, variables, learning_rate)",
        "keras 3.0",
        "Adam's update of all weights at once, with epsilon in our position.",
        "keras-team/keras-core#531",
        given=True,
        backends=("torch",),
    ),
    Name(
        "keras.optimizers.Optimizer",
        "_var_key",
        "(self, variable)",
        "keras 3.0",
        "The key of a weight, the same for a Keras variable and the TensorFlow variable inside it.",
    ),
    Name(
        "keras.optimizers.Optimizer",
        "_get_variable_index",
        "(self, variable)",
        "keras 3.0",
        "The index of a weight, which finds Adam's moving averages.",
    ),
    Name(
        "keras.optimizers.AdamW",
        "_momentums _velocities _velocity_hats",
        "attribute",
        "keras 3.0",
        "Adam's moving averages, which our update reads and writes.",
    ),
    Name(
        "keras.optimizers.Lamb",
        "_momentums _velocities",
        "attribute",
        "keras 3.5",
        "LAMB's moving averages, likewise.",
    ),
    Name(
        "keras.optimizers.Muon",
        "_muon_update_step",
        "(self, gradient, variable, lr, m)",
        "keras 3.11",
        "Queries, keys and values are one weight, whose three matrices are updated separately.",
        given=True,
    ),
    Name(
        "keras.optimizers.Muon",
        "_should_use_adamw",
        "(self, variable)",
        "keras 3.11",
        "Tells which weights Adam updates; the width of the others must be a multiple of `parts`.",
    ),
    Name(
        "keras.optimizers.Optimizer",
        "_trainable_variables _trainable_variables_indices",
        "attribute",
        "keras 3.0",
        "Gradual unfreezing: on JAX an optimizer must have exactly the trainable weights.",
        "keras-team/keras#22104",
    ),
    Name(
        "keras.optimizers.Optimizer",
        "_gradient_accumulator",
        "end of a path",
        "keras 3.1",
        "Distinguishes gradient accumulators from moving averages in a checkpoint, for a run with "
        "a different number of accumulation steps.",
    ),
    Name(
        "keras.optimizers.AdamW",
        "__new__",
        "another class",
        "keras 3.0",
        "On PyTorch the constructor returns an instance of a faster class, which our subclass "
        "needs among its bases.",
        "keras-team/keras-core#532",
        backends=("torch",),
    ),
    # === PyTorch ===
    Name(
        "keras.src.backend.torch.core",
        "DEFAULT_DEVICE",
        "string",
        "keras 3.0",
        "The device that Keras computes on; the current device differs while a model is built.",
        "keras-team/keras#22027",
        backends=("torch",),
    ),
    Name(
        "keras.Layer",
        "_track_variables",
        "(self)",
        "keras 3.0",
        "Registers the weights with PyTorch before `DistributedDataParallel` gets the model.",
        "keras-team/keras#19885",
        backends=("torch",),
    ),
    Name(
        "torch",
        "_foreach_add_ _foreach_addcmul_ _foreach_div _foreach_lerp_ _foreach_maximum_ "
        "_foreach_mul_ _foreach_sqrt _foreach_sub_",
        "function",
        "torch 2.13",
        "One operation on all weights. `torch.optim` and Keras use them too.",
        "keras-team/keras-core#531",
        backends=("torch",),
    ),
    Name(
        "torch.ops.mkldnn",
        "_linear_pointwise",
        "function",
        "torch 2.13",
        "float32 matmuls by oneDNN, which `torch.compile` uses too. The public functions use MKL.",
        backends=("torch",),
    ),
    Name(
        "torch.ops.mkldnn",
        "_is_mkldnn_bf16_supported",
        "function",
        "torch 2.13",
        "Whether these matmuls support bfloat16; on processors without it they fail.",
        backends=("torch",),
    ),
    Name(
        "torch.fx.experimental",
        "_config",
        "settings",
        "torch 2.13",
        "A graph with dynamic sizes merges equal ones, such as 64 tokens and a width of 64.",
        backends=("torch",),
    ),
    Name(
        "torch",
        "_fused_adam_",
        "function",
        "torch 2.13",
        "Adam's update in one pass over the weights. `torch.optim.Adam(fused=True)` uses it.",
        backends=("torch",),
    ),
    # === TensorFlow ===
    Name(
        "tensorflow.python.ops.control_flow_util",
        "GraphOrParentsInXlaContext",
        "(graph)",
        "tensorflow 2.21",
        "Whether XLA compiles the traced graph; XLA fuses formulas itself.",
        backends=("tensorflow",),
    ),
    Name(
        "tensorflow.python.eager",
        "context",
        "submodule",
        "tensorflow 2.21",
        "Knows whether TensorFlow has started its threads; the check must not import it.",
        backends=("tensorflow",),
    ),
    Name(
        "jax._src",
        "xla_bridge",
        "submodule",
        "jax 0.10",
        "The same for JAX.",
        backends=("jax",),
    ),
    Name(
        "tensorflow.python.eager.context",
        "_context",
        "variable of a module",
        "tensorflow 2.21",
        "Whether TensorFlow has started threads, which a fork loses; the check must start none.",
        backends=("tensorflow",),
    ),
    Name(
        "tensorflow.python.eager.context.Context",
        "_context_handle",
        "attribute",
        "tensorflow 2.21",
        "The same: it is created when the threads start.",
        backends=("tensorflow",),
    ),
    Name(
        "jax._src.xla_bridge",
        "_backends",
        "variable of a module",
        "jax 0.10",
        "Whether JAX has started its threads.",
        backends=("jax",),
    ),
    Name(
        "tensorflow.Graph",
        "_XlaMustCompile",
        "attribute of a function in a graph",
        "tensorflow 2.21",
        "Removed from graphs, since stock servers reject it.",
    ),
    Name(
        "tensorflow_text.python.ops",
        "regex_split_ops",
        "module",
        "tensorflow-text 2.21",
        "Its operation. The public function checks what the operation returns by 350 more, half of "
        "what there is to trace of a tokenizer with added tokens.",
    ),
    Name(
        "tensorflow_text.python.ops",
        "sentencepiece_tokenizer",
        "module",
        "tensorflow-text 2.21",
        "SentencePiece operations. The public class holds the model in an object, which a "
        "SavedModel of a function loses.",
    ),
)

# Names used as strings elsewhere: a keyword, a path and a graph attribute.
PYTHON_WORKFLOW = "_allow_python_workflow"
GRADIENT_ACCUMULATOR = "_gradient_accumulator"
XLA_MUST_COMPILE = "_XlaMustCompile"


# === Layers and models ===


def flatten_layers(layer, include_self=True):
    """Return all layers inside a layer or model, at any depth."""
    return layer._flatten_layers(include_self=include_self)


def set_policy(layer, policy):
    """Give a layer its own dtype policy, without changing a shared policy map."""
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
    """Return the metric that tracks the mean loss."""
    return model._loss_tracker


def function_of(metric):
    """Return the function that a `MeanMetricWrapper` averages."""
    return metric._fn


def build_on(model, batch):
    """Build a compiled model's metrics and optimizer, as the first step on a batch would."""
    model._symbolic_build(data_batch=batch)


def in_order(model, logs):
    """Convert results by name to the return value of `evaluate`: an ordered list or one number."""
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
    """Restrict an optimizer to these variables; `places` maps ids to indices in its state."""
    # Changed in place, because Keras would track new lists.
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
    """Register a model's weights with PyTorch."""
    model._track_variables()


def onednn_linear():
    """Return PyTorch's oneDNN matmul, a function of rows (R, D), weights (U, D), bias and more."""
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
    """Return a PyTorch operation on lists of tensors; a dict, since `torch.compile` traces it."""
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
    """Run TensorFlow Text's function of this name on strings (N,), without its checks."""
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
    """Whether TensorFlow has started its threads; imports nothing."""
    module = sys.modules.get("tensorflow.python.eager.context")
    context = module and module._context
    return context is not None and context._context_handle is not None


def runs_jax():
    """Whether JAX has started its threads; imports nothing."""
    module = sys.modules.get("jax._src.xla_bridge")
    return module is not None and bool(module._backends)
