"""The private names of Keras, KerasHub, TensorFlow and PyTorch on which this package rests.

Such a name may change with any release, without a word. So each stands here, in `NAMES`, with the
reason why a public one does not do. There are two kinds.

- Names that we use. A function below does it, and no other file mentions the name.
- Names that Keras uses, of methods and attributes that our classes define for it. They stand in
  those classes, marked here by `given=True`.

`tests/test_private_names.py` looks up each name in the installed packages, and compares this list
with a scan of the code.
"""

import dataclasses
import sys


@dataclasses.dataclass(frozen=True)
class Name:
    """One private name, or several that belong together.

    Args:
        owner: string. The class or module that has it.
        names: string. The names, with spaces between them.
        form: string. The arguments of a method as Python writes them, with "..." for a
            default that does not matter; "attribute" of an object, "keyword" of
            a constructor, or what else it is.
        since: string. The first release that has it in this form. For Keras all minor versions from
            3.0 to 3.15 were compared; of other packages only the named one was read.
        why: string.
        issue: string. The thread of the package in which the matter comes up.
        given: bool. Whether our classes define it, for Keras to use.
        backends: tuple of strings. The backends that have it; none stands for all.
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
        "All layers inside a layer. `layers` has those of a model only, one level deep.",
        "keras-team/keras#19858: Keras' authors show it to others",
    ),
    Name(
        "keras.Layer",
        "_dtype_policy",
        "attribute",
        "keras 3.3",
        "A layer of a quantized model keeps its own policy. Setting `dtype_policy` changes the "
        "entry of the map that all layers share.",
        "keras-team/keras#19858",
    ),
    Name(
        "keras.Layer",
        "_called",
        "attribute",
        "keras 3.0",
        "`export` refuses a model that was not called, though a functional one knows its shapes.",
    ),
    Name(
        "keras.Operation",
        "_remat_mode",
        "attribute",
        "keras 3.15",
        "Under `keras.RematScope` Keras takes each layer apart. A block is to be one piece.",
        "keras-team/keras#21207, keras-team/keras#23107",
    ),
    Name(
        "keras.Function",
        "_run_through_graph",
        "(self, inputs, operation_fn=..., call_fn=None)",
        "keras 3.0",
        "A model's outputs with one layer called in another way, for the states inside it.",
    ),
    Name(
        "keras.Variable",
        "_initializer",
        "attribute",
        "keras 3.0",
        "A variable takes its value from a checkpoint, without random values before it.",
        "keras-team/keras-hub#1341",
    ),
    Name(
        "keras.Variable",
        "_value",
        "attribute",
        "keras 3.0",
        "The tensor of a variable, set without checks of shape and type after each step on JAX.",
        "keras-team/keras#19054",
        backends=("jax",),
    ),
    Name(
        "keras.src.models.functional",
        "Functional",
        "class",
        "keras 3.0",
        "The class of `keras.Model(inputs, outputs)`. Keras changes the bases of a subclass that "
        "does not inherit from it when the first object is made.",
        "keras-team/keras#17270",
    ),
    Name(
        "keras_hub.src.utils.pipeline_model",
        "PipelineModel",
        "class",
        "keras-hub 0.32",
        "KerasHub's base of tasks, which changes its own bases with each object, in all threads.",
        "keras-team/keras#17270",
    ),
    Name(
        "keras_hub.models.Task",
        "_backbone",
        "attribute",
        "keras-hub 0.32",
        "What the property `backbone` returns. Set past Keras, which would track all its weights.",
        "keras-team/keras-cv#1908",
        given=True,
    ),
    Name(
        "keras_hub.tokenizers.Tokenizer",
        "_allow_python_workflow",
        "keyword",
        "keras-hub 0.32",
        "KerasHub takes it out of the keywords, so it is none that nobody knows.",
        "keras-team/keras-hub#3070",
    ),
    # === Training ===
    Name(
        "keras.Model",
        "_compile_metrics",
        "attribute",
        "keras 3.0",
        "A second `compile` keeps the metrics of the first where it has none. And before the first "
        "labels these metrics have no results.",
        "keras-team/keras-cv#1794: the same with another model",
    ),
    Name(
        "keras.Model",
        "_loss_tracker",
        "attribute",
        "keras 3.0",
        "The mean of the losses, which a model of several tasks keeps for each task.",
    ),
    Name(
        "keras.Model",
        "_flatten_metrics_in_order",
        "(self, logs)",
        "keras 3.0",
        "The order in which `evaluate` lists results; ours runs batch after batch on few texts.",
    ),
    Name(
        "keras.Model",
        "_symbolic_build",
        "(self, iterator=None, data_batch=None)",
        "keras 3.1",
        "Build metrics and optimizer from a batch that is there. `fit` would take one from the "
        "data, which then trains nothing.",
    ),
    Name(
        "keras.Model",
        "_maybe_symbolic_build",
        "(self, iterator=None, data_batch=None)",
        "keras 3.5",
        "On several devices Keras averages a batch for its shapes, and masks have no average.",
        given=True,
        backends=("tensorflow",),
    ),
    Name(
        "keras.Model",
        "_get_jax_state",
        "(self, trainable_variables=False, non_trainable_variables=False, "
        "optimizer_variables=False, metrics_variables=False, purge_model_variables=False)",
        "keras 3.0",
        "Keras takes the weights out of a model during its loops: other threads find none, and "
        "after an interrupt they are lost.",
        "keras-team/keras#19054",
        given=True,
        backends=("jax",),
    ),
    Name(
        "keras.Model",
        "_make_function",
        "(self, step_function, concatenate_outputs=False)",
        "keras 3.7",
        "What a step returns is assigned to the model at once.",
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
        "How the state of a step is sharded over devices.",
        given=True,
        backends=("jax",),
    ),
    Name(
        "keras.Model",
        "_distribute_strategy",
        "attribute",
        "keras 3.0",
        "Whether a model was made in a strategy. `distribute_strategy` returns one in any case.",
        backends=("tensorflow",),
    ),
    Name(
        "keras.callbacks.Callback",
        "_model",
        "attribute",
        "keras 3.0",
        "The model as it is. On JAX the property `model` first waits for the step, and takes its "
        "weights over.",
        "keras-team/keras#19054, keras-team/keras#23620",
    ),
    Name(
        "keras.metrics.MeanMetricWrapper",
        "_direction",
        "attribute",
        "keras 3.0",
        "Whether more is better, from which `EarlyStopping` and `ModelCheckpoint` take `mode`.",
        "keras-team/keras#18798",
        given=True,
    ),
    # === Optimizers ===
    Name(
        "keras.optimizers.Optimizer",
        "_use_weight_decay",
        "(self, variable)",
        "keras 3.0",
        "What decays, by whole parts of a path. Keras looks for parts of words.",
        "keras-team/keras#16201",
        given=True,
    ),
    Name(
        "keras.optimizers.Optimizer",
        "_apply_weight_decay",
        "(self, variables)",
        "keras 3.0",
        "Weights decay by their own rate; LAMB's decay is a part of its update.",
        "keras-team/keras#19981",
        given=True,
    ),
    Name(
        "keras.optimizers.Optimizer",
        "_clip_gradients",
        "(self, grads)",
        "keras 3.0",
        "Gradients are summed over places and devices before their norm is taken.",
        "keras-team/keras#18985, tensorflow/tensorflow#33929",
        given=True,
    ),
    Name(
        "keras.optimizers.Optimizer",
        "_all_reduce_sum_gradients",
        "(self, grads_and_vars)",
        "keras 3.3",
        "The sum over devices that Keras takes after clipping: here it is taken before.",
        "tensorflow/tensorflow#33929",
        given=True,
        backends=("tensorflow",),
    ),
    Name(
        "keras.optimizers.Optimizer",
        "_backend_update_step",
        "(self, grads, trainable_variables, learning_rate)",
        "keras 3.1",
        "Weights step in groups of one learning rate, and Adam is corrected once for a group.",
        "keras-team/keras#17391: where epsilon belongs",
        given=True,
    ),
    Name(
        "keras.optimizers.AdamW",
        "_parallel_update_step",
        "(self, grads, variables, learning_rate)",
        "keras 3.0",
        "Adam's step of all weights at once, with our place for epsilon.",
        "keras-team/keras-core#531",
        given=True,
        backends=("torch",),
    ),
    Name(
        "keras.optimizers.Optimizer",
        "_var_key",
        "(self, variable)",
        "keras 3.0",
        "The key of a weight, the same for a Keras variable and TensorFlow's own inside it.",
    ),
    Name(
        "keras.optimizers.Optimizer",
        "_get_variable_index",
        "(self, variable)",
        "keras 3.0",
        "The place of a weight, by which Adam's averages are found.",
    ),
    Name(
        "keras.optimizers.AdamW",
        "_momentums _velocities _velocity_hats",
        "attribute",
        "keras 3.0",
        "Adam's averages, which our step reads and writes.",
    ),
    Name(
        "keras.optimizers.Lamb",
        "_momentums _velocities",
        "attribute",
        "keras 3.5",
        "LAMB's averages, likewise.",
    ),
    Name(
        "keras.optimizers.Muon",
        "_muon_update_step",
        "(self, gradient, variable, lr, m)",
        "keras 3.11",
        "Queries, keys and values are one weight here: its three matrices step each by itself.",
        given=True,
    ),
    Name(
        "keras.optimizers.Muon",
        "_should_use_adamw",
        "(self, variable)",
        "keras 3.11",
        "Whether a weight steps by Adam: others have to be as wide as so many matrices.",
    ),
    Name(
        "keras.optimizers.Optimizer",
        "_trainable_variables _trainable_variables_indices",
        "attribute",
        "keras 3.0",
        "Gradual unfreezing: on JAX an optimizer has to know exactly what trains.",
        "keras-team/keras#22104",
    ),
    Name(
        "keras.optimizers.Optimizer",
        "_gradient_accumulator",
        "end of a path",
        "keras 3.1",
        "Checkpoints tell the sums of gradients from averages, for a run with other sums.",
    ),
    Name(
        "keras.optimizers.AdamW",
        "__new__",
        "another class",
        "keras 3.0",
        "On PyTorch a call makes an object of a faster class. Our subclass is to have that class "
        "among its bases.",
        "keras-team/keras-core#532",
        backends=("torch",),
    ),
    # === PyTorch ===
    Name(
        "keras.src.backend.torch.core",
        "DEFAULT_DEVICE",
        "string",
        "keras 3.0",
        "Where Keras computes on PyTorch. While it builds a model the current device is another.",
        "keras-team/keras#22027",
        backends=("torch",),
    ),
    Name(
        "keras.Layer",
        "_track_variables",
        "(self)",
        "keras 3.0",
        "PyTorch has to know the weights before `DistributedDataParallel` gets the model.",
        "keras-team/keras#19885",
        backends=("torch",),
    ),
    Name(
        "torch",
        "_foreach_add_ _foreach_addcmul_ _foreach_div _foreach_lerp_ _foreach_maximum_ "
        "_foreach_mul_ _foreach_sqrt _foreach_sub_",
        "function",
        "torch 2.13",
        "One operation on all weights. `torch.optim` and Keras are built on them.",
        "keras-team/keras-core#531",
        backends=("torch",),
    ),
    Name(
        "torch.ops.mkldnn",
        "_linear_pointwise",
        "function",
        "torch 2.13",
        "Products of float32 by oneDNN, which `torch.compile` takes too. The public ones take MKL.",
        backends=("torch",),
    ),
    Name(
        "torch.ops.mkldnn",
        "_is_mkldnn_bf16_supported",
        "function",
        "torch 2.13",
        "Whether those products take bfloat16; where the processor has none of it they fail.",
        backends=("torch",),
    ),
    Name(
        "torch.fx.experimental",
        "_config",
        "settings",
        "torch 2.13",
        "A graph for all sizes takes two that are equal, as 64 tokens and a width of 64, for one.",
        backends=("torch",),
    ),
    Name(
        "torch",
        "_fused_adam_",
        "function",
        "torch 2.13",
        "Adam's step in one pass over the weights. `torch.optim.Adam(fused=True)` is built on it.",
        backends=("torch",),
    ),
    # === TensorFlow ===
    Name(
        "tensorflow.python.ops.control_flow_util",
        "GraphOrParentsInXlaContext",
        "(graph)",
        "tensorflow 2.21",
        "Whether XLA compiles what is traced: it fuses formulas itself.",
        backends=("tensorflow",),
    ),
    Name(
        "tensorflow.python.eager",
        "context",
        "submodule",
        "tensorflow 2.21",
        "What knows whether TensorFlow has started its threads. It may not be imported for that.",
        backends=("tensorflow",),
    ),
    Name(
        "jax._src",
        "xla_bridge",
        "submodule",
        "jax 0.10",
        "The same of JAX.",
        backends=("jax",),
    ),
    Name(
        "tensorflow.python.eager.context",
        "_context",
        "variable of a module",
        "tensorflow 2.21",
        "Whether TensorFlow has started its threads, which a fork loses; asking may start none.",
        backends=("tensorflow",),
    ),
    Name(
        "tensorflow.python.eager.context.Context",
        "_context_handle",
        "attribute",
        "tensorflow 2.21",
        "The same: it is made when the threads start.",
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
        "Stock servers refuse a graph with it.",
    ),
    Name(
        "tensorflow_text.python.ops",
        "sentencepiece_tokenizer",
        "module",
        "tensorflow-text 2.21",
        "The operations of SentencePiece. The public class holds the model in an object, which a "
        "SavedModel of a function loses.",
    ),
)

# Keywords, paths and attributes of graphs.
PYTHON_WORKFLOW = "_allow_python_workflow"
GRADIENT_ACCUMULATOR = "_gradient_accumulator"
XLA_MUST_COMPILE = "_XlaMustCompile"


# === Layers and models ===


def flatten_layers(layer, include_self=True):
    """All layers inside a layer or model, at any depth."""
    return layer._flatten_layers(include_self=include_self)


def set_policy(layer, policy):
    """Give a layer a dtype policy of its own, past the map that it may share with others."""
    layer._dtype_policy = policy


def was_called(layer):
    """Whether a layer or model has been called."""
    return layer._called


def without_remat(operation):
    """Leave an operation out of `keras.RematScope`."""
    operation._remat_mode = None


def run_through_graph(model, inputs, replace):
    """A functional model's outputs, with `replace(operation)` called for each operation."""
    return model._run_through_graph(inputs, replace)


def set_value(variable, value):
    """Assign a value of the same shape and type to a variable, without checks."""
    variable._value = value


def functional():
    """The class of `keras.Model(inputs, outputs)`."""
    from keras.src.models.functional import Functional

    return Functional


def pipeline_model():
    """KerasHub's base of tasks."""
    from keras_hub.src.utils.pipeline_model import PipelineModel

    return PipelineModel


def set_initializer(variable, initializer):
    """Set where a variable that has no value yet takes it from."""
    variable._initializer = initializer


# === Training ===


def compiled_metrics(model):
    """What holds the metrics that a model was compiled with, or `None`."""
    return model._compile_metrics


def forget_metrics(model):
    """Leave nothing of an earlier `compile` in the metrics."""
    model._compile_metrics = None


def loss_tracker(model):
    """The metric that holds the mean of the losses."""
    return model._loss_tracker


def build_on(model, batch):
    """Build a compiled model's metrics and optimizer, as the first step on a batch would."""
    model._symbolic_build(data_batch=batch)


def in_order(model, logs):
    """Results by name as `evaluate` returns them: a list in its order, or the only one."""
    return model._flatten_metrics_in_order(logs)


def in_strategy(model):
    """Whether a model on TensorFlow was made in the scope of a `tf.distribute` strategy."""
    return model._distribute_strategy is not None


def model_of(callback):
    """A callback's model, its weights as they are."""
    return callback._model


# === Optimizers ===


def variable_key(optimizer, variable):
    """What stands for a variable in an optimizer's dictionaries."""
    return optimizer._var_key(variable)


def averages(optimizer, variable):
    """Adam's or LAMB's averages of gradients and squares, with AMSGrad the highest squares too."""
    index = optimizer._get_variable_index(variable)
    slots = [optimizer._momentums, optimizer._velocities]
    if getattr(optimizer, "amsgrad", False):
        slots.append(optimizer._velocity_hats)
    return [slot[index] for slot in slots]


def steps_by_adam(optimizer, variable):
    """Whether Muon leaves a weight to Adam."""
    return optimizer._should_use_adamw(variable)


def set_trained(optimizer, variables, places):
    """Let an optimizer know these variables only, each by its id at its place in the state."""
    # In place, or Keras would track them.
    optimizer._trainable_variables[:] = variables
    optimizer._trainable_variables_indices.clear()
    optimizer._trainable_variables_indices.update({id(v): places[id(v)] for v in variables})


def class_made_by(cls):
    """The class of the objects that calling `cls` makes."""
    return type(cls.__new__(cls))


# === PyTorch ===


def torch_device():
    """The kind of device on which Keras has PyTorch compute, such as "cuda"."""
    from keras.src.backend.torch.core import DEFAULT_DEVICE

    return DEFAULT_DEVICE


def track_variables(model):
    """Let PyTorch know a model's weights."""
    model._track_variables()


def onednn_linear():
    """PyTorch's product by oneDNN, a function of rows (R, D), weights (U, D), a bias and more."""
    import torch

    return torch.ops.mkldnn._linear_pointwise


def onednn_takes_bfloat16():
    """Whether it takes that type on this processor."""
    import torch

    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


def sizes_apart():
    """A context in which graphs of PyTorch's operations tell sizes apart that are equal."""
    from torch.fx.experimental import _config

    return _config.patch(use_duck_shape=False)


def fused_adam():
    """PyTorch's step of Adam on lists of tensors, in one pass."""
    import torch

    return torch._fused_adam_


def foreach(operation):
    """One of PyTorch's operations on lists of tensors; `torch.compile` sees through the dict."""
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
    """Whether XLA compiles a graph, or TensorFlow does not say so."""
    try:
        from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext
    except ImportError:
        return True
    return GraphOrParentsInXlaContext(graph)


def sentencepiece_ops():
    """TensorFlow Text's operations of SentencePiece."""
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
