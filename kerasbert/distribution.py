"""Training on several devices: what Keras leaves open for each backend.

V tokens of the vocabulary, E width of the embeddings, D width, I width of the feed-forward.

**JAX.** `keras.distribution` does it all; set it before the model is made. Batches have to divide
by the number of devices that share them. Each device has its part of every batch, and the losses
are those of one device:

    keras.distribution.set_distribution(keras.distribution.DataParallel())

or, with each layer cut over 4 devices and the batches over the rest:

    mesh = keras.distribution.DeviceMesh((2, 4), ["batch", "model"])
    keras.distribution.set_distribution(
        keras.distribution.ModelParallel(layout_map=layout_map(mesh), batch_dim_name="batch")
    )

**TensorFlow.** Make and load models in the scope of a `tf.distribute` strategy, and call `fit`
outside of it or inside:

    with tf.distribute.MirroredStrategy().scope():
        model = BertTextClassifier.from_preset(...)
    model.fit(texts, labels)

**PyTorch.** Keras does nothing itself; one process a device, as `torchrun` starts them, each with
its part of the data:

    torch.distributed.init_process_group()
    model = data_parallel(BertTextClassifier.from_preset(...))
    model.fit(texts[rank::processes], labels[rank::processes])
"""

import keras

from kerasbert._torch import distributed_data_parallel


def layout_map(device_mesh, axis="model"):
    """How the weights of this package's models lie on devices: a `keras.distribution.LayoutMap`.

    Each layer is cut as in Megatron-LM: the first projection of attention and of the feed-forward
    by its columns, the second by its rows, so that the devices meet twice a layer; tables of
    embeddings by their width. All else, biases after the sums, norms, positions and heads, is
    small and whole on each device. The optimizer's state lies as the weights do.

    Args:
        device_mesh: a `keras.distribution.DeviceMesh`.
        axis: string. The axis of the mesh over which layers are cut. Its size has to divide E, D
            and I, best `num_heads` too.

    Example:

    >>> mesh = keras.distribution.DeviceMesh((1, 2), ["batch", "model"], ["cpu:0", "cpu:1"])
    >>> layouts = layout_map(mesh)
    >>> layouts["transformer_layer_0/attention/qkv/kernel"].axes
    (None, 'model')

    Source: Shoeybi et al. 2019, arXiv 1909.08053, section 3.
    """
    layouts = keras.distribution.LayoutMap(device_mesh)
    # Optimizers name their state after the weights, with "_" for "/".
    for path, axes in (
        ("token_embedding/embeddings", (None, axis)),  # (V, E)
        ("transformer_layer_[0-9]+/attention/qkv/kernel", (None, axis)),  # (D, 3D)
        ("transformer_layer_[0-9]+/attention/qkv/bias", (axis,)),
        ("transformer_layer_[0-9]+/attention/output/kernel", (axis, None)),  # (D, D)
        ("transformer_layer_[0-9]+/intermediate/kernel", (None, axis)),  # (D, I)
        ("transformer_layer_[0-9]+/intermediate/bias", (axis,)),
        ("transformer_layer_[0-9]+/output/kernel", (axis, None)),  # (I, D)
    ):
        layouts[f"(.*/)?{path}"] = axes
    return layouts
