"""Private names of Keras, KerasHub, TensorFlow, JAX and PyTorch that this package depends on.

They may change in any release, so these tables list each, with a reason.
`tests/base/test_keras_internals.py` compares the tables with the installed packages and the code.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Name:
    """One private name, or several that belong together.

    Args:
        owner: string. Class or module that has it.
        names: string. Separated by spaces.
        since: string. First release with this form, among Keras 3.0 to 3.15; for other packages,
            the release that was checked.
        why: why no public name can replace it.
        form: a method's signature, with "..." for other defaults, or the kind of a name, such as
            "attribute" or "keyword".
        issue: string. The package's issue or pull request.
        backends: tuple of strings. Backends that have it; empty for all.
    """

    owner: str
    names: str
    since: str
    why: str
    form: str = "attribute"
    issue: str = "none known"
    backends: tuple = ()


# Names that this package uses. A function in `keras_internals` wraps each name.
USED = (
    # Layers and models
    Name(
        "keras.Layer",
        "_flatten_layers",
        "keras 3.0",
        "Lists all nested layers. `layers` exists on models only, and is one level deep.",
        form="(self, include_self=True, recursive=True)",
        issue="keras-team/keras#19858: recommended by Keras' authors",
    ),
    Name(
        "keras.Layer",
        "_dtype_policy",
        "keras 3.3",
        "Gives a layer of a quantized model its own policy. Setting `dtype_policy` changes the "
        "policy map that all layers share.",
        issue="keras-team/keras#19858",
    ),
    Name(
        "keras.Layer",
        "_called",
        "keras 3.0",
        "`export` refuses a model that was never called, though functional models know their "
        "shapes.",
    ),
    Name(
        "keras.Operation",
        "_remat_mode",
        "keras 3.15",
        "Under `keras.RematScope` Keras rematerializes every layer, but a block must be one unit.",
        issue="keras-team/keras#21207, keras-team/keras#23107",
    ),
    Name(
        "keras.Function",
        "_run_through_graph",
        "keras 3.0",
        "Runs a model with some layers called differently, to read their hidden states.",
        form="(self, inputs, operation_fn=..., call_fn=None)",
    ),
    Name(
        "keras.Variable",
        "_initializer",
        "keras 3.0",
        "Initializes a variable from a checkpoint, without computing random values first.",
        issue="keras-team/keras-hub#1341",
    ),
    Name(
        "keras.Variable",
        "_value",
        "keras 3.0",
        "Sets the tensor of a variable after each step on JAX, without checks of shape and dtype.",
        issue="keras-team/keras#19054",
        backends=("jax",),
    ),
    Name(
        "keras.src.models.functional",
        "Functional",
        "keras 3.0",
        "The class of `keras.Model(inputs, outputs)`. Keras changes the bases of subclasses that "
        "do not inherit from it when the first instance is created.",
        form="class",
        issue="keras-team/keras#17270",
    ),
    Name(
        "keras_hub.src.utils.pipeline_model",
        "PipelineModel",
        "keras-hub 0.32",
        "KerasHub's base class of tasks, which changes its own bases for all threads whenever an "
        "instance is created.",
        form="class",
        issue="keras-team/keras#17270",
    ),
    Name(
        "keras_hub.tokenizers.Tokenizer",
        "_allow_python_workflow",
        "keras-hub 0.32",
        "KerasHub consumes this keyword, so it must not be rejected as unknown.",
        form="keyword",
        issue="keras-team/keras-hub#3070",
    ),
    # Training
    Name(
        "keras.Model",
        "_compile_metrics",
        "keras 3.0",
        "A second `compile` without metrics keeps those of the first. And before the first labels "
        "these metrics have no results.",
        issue="keras-team/keras-cv#1794: the same for another model",
    ),
    Name(
        "keras.Model",
        "_loss_tracker",
        "keras 3.0",
        "The mean loss, which a multi-task model keeps per task.",
    ),
    Name(
        "keras.Model",
        "_flatten_metrics_in_order",
        "keras 3.0",
        "Gives the order of the results of `evaluate`; ours has its own loop for few texts.",
        form="(self, logs)",
    ),
    Name(
        "keras.Model",
        "_symbolic_build",
        "keras 3.1",
        "Builds metrics and optimizer from a given batch. `fit` would consume one from the data, "
        "which would then be missing from the training.",
        form="(self, iterator=None, data_batch=None)",
    ),
    Name(
        "keras.Model",
        "_distribute_strategy",
        "keras 3.0",
        "Tells whether a model was created in a strategy. `distribute_strategy` always returns "
        "one.",
        backends=("tensorflow",),
    ),
    Name(
        "keras.callbacks.Callback",
        "_model",
        "keras 3.0",
        "The model without synchronization. On JAX the property `model` first waits for the step "
        "and copies its weights into the model.",
        issue="keras-team/keras#19054, keras-team/keras#23620",
    ),
    Name(
        "keras.metrics.MeanMetricWrapper",
        "_fn",
        "keras 3.0",
        "The function that a metric averages. `get_config` has only the name of the function, "
        "which a user's function may share.",
    ),
    # Optimizers
    Name(
        "keras.optimizers.Optimizer",
        "_var_key",
        "keras 3.0",
        "The key of a weight, the same for a Keras variable and the TensorFlow variable inside it.",
        form="(self, variable)",
    ),
    Name(
        "keras.optimizers.Optimizer",
        "_get_variable_index",
        "keras 3.0",
        "The index of a weight, which finds Adam's moving averages.",
        form="(self, variable)",
    ),
    Name(
        "keras.optimizers.AdamW",
        "_momentums _velocities _velocity_hats",
        "keras 3.0",
        "Adam's moving averages, which our update reads and writes.",
    ),
    Name(
        "keras.optimizers.Lamb",
        "_momentums _velocities",
        "keras 3.5",
        "LAMB's moving averages, likewise.",
    ),
    Name(
        "keras.optimizers.Muon",
        "_should_use_adamw",
        "keras 3.11",
        "Tells which weights Adam updates; the width of the others must be a multiple of `parts`.",
        form="(self, variable)",
    ),
    Name(
        "keras.optimizers.Optimizer",
        "_trainable_variables _trainable_variables_indices",
        "keras 3.0",
        "Gradual unfreezing: on JAX an optimizer must have exactly the trainable weights.",
        issue="keras-team/keras#22104",
    ),
    Name(
        "keras.optimizers.Optimizer",
        "_gradient_accumulator",
        "keras 3.1",
        "Distinguishes gradient accumulators from moving averages in a checkpoint, for a run with "
        "a different number of accumulation steps.",
        form="end of a path",
    ),
    Name(
        "keras.optimizers.AdamW",
        "__new__",
        "keras 3.0",
        "On PyTorch the constructor returns an instance of a faster class, which our subclass "
        "needs among its bases.",
        form="another class",
        issue="keras-team/keras-core#532",
        backends=("torch",),
    ),
    # PyTorch
    Name(
        "keras.src.backend.torch.core",
        "DEFAULT_DEVICE",
        "keras 3.0",
        "The device that Keras computes on; the current device differs while a model is built.",
        form="string",
        issue="keras-team/keras#22027",
        backends=("torch",),
    ),
    Name(
        "keras.Layer",
        "_track_variables",
        "keras 3.0",
        "Registers the weights with PyTorch before `DistributedDataParallel` gets the model.",
        form="(self)",
        issue="keras-team/keras#19885",
        backends=("torch",),
    ),
    Name(
        "torch",
        "_foreach_add_ _foreach_addcmul_ _foreach_div _foreach_lerp_ _foreach_maximum_ "
        "_foreach_mul_ _foreach_sqrt _foreach_sub_",
        "torch 2.13",
        "One operation on all weights. `torch.optim` and Keras use them too.",
        form="function",
        issue="keras-team/keras-core#531",
        backends=("torch",),
    ),
    Name(
        "torch.ops.mkldnn",
        "_linear_pointwise",
        "torch 2.13",
        "float32 matmuls by oneDNN, which `torch.compile` uses too. The public functions use MKL.",
        form="function",
        backends=("torch",),
    ),
    Name(
        "torch.ops.mkldnn",
        "_is_mkldnn_bf16_supported",
        "torch 2.13",
        "Whether these matmuls support bfloat16; on processors without it they fail.",
        form="function",
        backends=("torch",),
    ),
    Name(
        "torch.fx.experimental",
        "_config",
        "torch 2.13",
        "Without it a graph merges equal dynamic sizes, such as 64 tokens and a width of 64.",
        form="settings",
        backends=("torch",),
    ),
    Name(
        "torch",
        "_fused_adam_",
        "torch 2.13",
        "Adam's update in one pass over the weights. `torch.optim.Adam(fused=True)` uses it.",
        form="function",
        backends=("torch",),
    ),
    # TensorFlow
    Name(
        "tensorflow.python.ops.control_flow_util",
        "GraphOrParentsInXlaContext",
        "tensorflow 2.21",
        "Whether XLA compiles the traced graph; XLA fuses formulas itself.",
        form="(graph)",
        backends=("tensorflow",),
    ),
    Name(
        "tensorflow.python.eager",
        "context",
        "tensorflow 2.21",
        "Knows whether TensorFlow has started its threads; the check must not import it.",
        form="submodule",
        backends=("tensorflow",),
    ),
    Name(
        "jax._src",
        "xla_bridge",
        "jax 0.10",
        "The same for JAX.",
        form="submodule",
        backends=("jax",),
    ),
    Name(
        "tensorflow.python.eager.context",
        "_context",
        "tensorflow 2.21",
        "Whether TensorFlow has started threads, which a fork loses; the check must start none.",
        form="variable of a module",
        backends=("tensorflow",),
    ),
    Name(
        "tensorflow.python.eager.context.Context",
        "_context_handle",
        "tensorflow 2.21",
        "Also tells whether the threads run: it is created when they start.",
        backends=("tensorflow",),
    ),
    Name(
        "jax._src.xla_bridge",
        "_backends",
        "jax 0.10",
        "Whether JAX has started its threads.",
        form="variable of a module",
        backends=("jax",),
    ),
    Name(
        "tensorflow.Graph",
        "_XlaMustCompile",
        "tensorflow 2.21",
        "Removed from graphs, since stock servers reject it.",
        form="attribute of a function in a graph",
    ),
    Name(
        "tensorflow_text.python.ops",
        "regex_split_ops",
        "tensorflow-text 2.21",
        "The operation behind the public function, which checks its results by 350 more "
        "operations: half of the graph of a tokenizer with added tokens.",
        form="module",
    ),
    Name(
        "tensorflow_text.python.ops",
        "sentencepiece_tokenizer",
        "tensorflow-text 2.21",
        "SentencePiece operations. The public class holds the model in an object, which a "
        "SavedModel of a function loses.",
        form="module",
    ),
)

# Methods and attributes that our classes define for Keras to use.
GIVEN = (
    # Layers and models
    Name(
        "keras_hub.models.Task",
        "_backbone",
        "keras-hub 0.32",
        "Value of the property `backbone`, set without Keras, which would track all its weights.",
        issue="keras-team/keras-cv#1908",
    ),
    # Training
    Name(
        "keras.Model",
        "_maybe_symbolic_build",
        "keras 3.5",
        "With several replicas Keras averages a batch to get its shapes, which fails for bool "
        "masks.",
        form="(self, iterator=None, data_batch=None)",
        backends=("tensorflow",),
    ),
    Name(
        "keras.Model",
        "_get_jax_state",
        "keras 3.0",
        "Keras removes the weights from a model during its loops: other threads find none, and an "
        "interrupt loses them.",
        form="(self, trainable_variables=False, non_trainable_variables=False, "
        "optimizer_variables=False, metrics_variables=False, purge_model_variables=False)",
        issue="keras-team/keras#19054",
        backends=("jax",),
    ),
    Name(
        "keras.Model",
        "_make_function",
        "keras 3.7",
        "Overridden to assign the outputs of each step to the model at once.",
        form="(self, step_function, concatenate_outputs=False)",
        issue="keras-team/keras#19054",
        backends=("jax",),
    ),
    Name(
        "keras.Model",
        "_purge_model_variables",
        "keras 3.0",
        "Overridden so that the weights stay in the model.",
        form="(self, trainable_variables=False, non_trainable_variables=False, "
        "optimizer_variables=False, metrics_variables=False)",
        issue="keras-team/keras#19054",
        backends=("jax",),
    ),
    Name(
        "keras.Model",
        "_jax_state_synced",
        "keras 3.0",
        "Whether the loop must read the variables again.",
        issue="keras-team/keras#19054",
        backends=("jax",),
    ),
    Name(
        "keras.Model",
        "_get_state_sharding_spec",
        "keras 3.6",
        "Tells how the state of a step is sharded over devices.",
        form="(self)",
        backends=("jax",),
    ),
    Name(
        "keras.metrics.MeanMetricWrapper",
        "_direction",
        "keras 3.0",
        "Whether higher is better, from which `EarlyStopping` and `ModelCheckpoint` infer `mode`.",
        issue="keras-team/keras#18798",
    ),
    # Optimizers
    Name(
        "keras.optimizers.Optimizer",
        "_use_weight_decay",
        "keras 3.0",
        "Excludes weights from weight decay by whole parts of a path. Keras matches substrings.",
        form="(self, variable)",
        issue="keras-team/keras#16201",
    ),
    Name(
        "keras.optimizers.Optimizer",
        "_apply_weight_decay",
        "keras 3.0",
        "Applies weight decay with each weight's learning rate; LAMB's decay is part of its "
        "update.",
        form="(self, variables)",
        issue="keras-team/keras#19981",
    ),
    Name(
        "keras.optimizers.Optimizer",
        "_clip_gradients",
        "keras 3.0",
        "Sums gradients over repeated tokens and replicas before their norm is computed.",
        form="(self, grads)",
        issue="keras-team/keras#18985, tensorflow/tensorflow#33929",
    ),
    Name(
        "keras.optimizers.Optimizer",
        "_all_reduce_sum_gradients",
        "keras 3.3",
        "Disables the sum over replicas after clipping; here gradients are summed before clipping.",
        form="(self, grads_and_vars)",
        issue="tensorflow/tensorflow#33929",
        backends=("tensorflow",),
    ),
    Name(
        "keras.optimizers.Optimizer",
        "_backend_update_step",
        "keras 3.1",
        "Updates weights in groups of one learning rate, with one bias correction per group.",
        form="(self, grads, trainable_variables, learning_rate)",
        issue="keras-team/keras#17391: the position of epsilon",
    ),
    Name(
        "keras.optimizers.AdamW",
        "_parallel_update_step",
        "keras 3.0",
        "Adam's update of all weights at once; ours adds epsilon after the bias correction.",
        form="(self, grads, variables, learning_rate)",
        issue="keras-team/keras-core#531",
        backends=("torch",),
    ),
    Name(
        "keras.optimizers.Muon",
        "_muon_update_step",
        "keras 3.11",
        "Queries, keys and values are one weight, whose three matrices are updated separately.",
        form="(self, gradient, variable, lr, m)",
    ),
)
