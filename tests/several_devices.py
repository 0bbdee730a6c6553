"""Train tiny models on several simulated devices, for the processes of test_distribution.py.

    KERAS_BACKEND=jax python tests/several_devices.py data FOLDER      # or model, one
    KERAS_BACKEND=tensorflow python tests/several_devices.py mirrored FOLDER    # or workers, one
    KERAS_BACKEND=torch torchrun --nproc-per-node 2 tests/several_devices.py processes FOLDER

Each process writes a JSON file into the folder: losses and metrics, and evidence that there were
several devices.
"""

import json
import os
import sys
from pathlib import Path

if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import keras
import numpy as np

from kerasbert.distribution import data_parallel, layout_map
from kerasbert.losses import MultipleNegativesRanking
from kerasbert.models import (
    BertPretrainer,
    BertTextClassifier,
    BertTextClassifierPreprocessor,
    BertTextEmbedder,
    BertTextEmbedderPreprocessor,
)
from kerasbert.optimizers import AdamW
from kerasbert.tokenizers import BertTokenizer
from tests.contracts import SETTINGS, perturb, tiny_backbone

ROWS, BATCH = 32, 8
TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK]".split() + [f"word{i}" for i in range(25)]


def data():
    """Return arrays for a pretrainer, with the same number of masked tokens in each row, and texts
    with labels.
    """
    random = np.random.default_rng(0)
    ids = random.integers(5, SETTINGS["vocabulary_size"], (ROWS, 12))
    lengths = random.integers(6, 13, ROWS)
    x = {
        "token_ids": ids,
        "segment_ids": random.integers(0, 2, ids.shape),
        "padding_mask": np.arange(12) < lengths[:, None],
        "mask_positions": random.integers(0, 6, (ROWS, 3)),
    }
    x = {name: value.astype("int32") for name, value in x.items()}
    hidden = np.take_along_axis(ids, x["mask_positions"], axis=1)
    y = {"mlm_logits": hidden, "nsp_logits": random.integers(0, 2, ROWS)}
    texts = [" ".join(TOKENS[i] for i in row[:n]) for row, n in zip(ids, lengths, strict=True)]
    return x, y, np.array(texts, object), random.integers(0, 3, ROWS)


def make():
    """Return a pretrainer, and a classifier of texts; clipping changes every step.

    Epsilon is not small, because otherwise Adam would turn rounding errors in zero gradients into
    steps.
    """
    encoder = {"dropout": 0.0, "num_heads": 4}
    pretrainer = perturb(BertPretrainer(tiny_backbone(**encoder), dropout=0.0))
    pretrainer.compile(AdamW(0.01, epsilon=3e-5, global_clipnorm=0.05))
    preprocessor = BertTextClassifierPreprocessor(BertTokenizer(TOKENS), sequence_length=16)
    classifier = perturb(
        BertTextClassifier(tiny_backbone(**encoder), 3, preprocessor=preprocessor, dropout=0.0)
    )
    classifier.compile(AdamW(0.01, epsilon=3e-5, global_clipnorm=0.05))
    preprocessor = BertTextEmbedderPreprocessor(BertTokenizer(TOKENS), sequence_length=16)
    embedder = perturb(BertTextEmbedder(tiny_backbone(**encoder), preprocessor))
    # The loss compares each pair with the texts of all devices.
    embedder.compile(
        AdamW(0.01, epsilon=3e-5, global_clipnorm=0.05), MultipleNegativesRanking(symmetric=True)
    )
    return pretrainer, classifier, embedder


def train(models, data, batch_size=BATCH):
    pretrainer, classifier, embedder = models
    x, y, texts, labels = data
    settings = {"batch_size": batch_size, "verbose": 0}
    fitted = pretrainer.fit(x, y, epochs=3, shuffle=False, **settings)
    found = {"losses": fitted.history["loss"]}
    evaluated = pretrainer.evaluate(x, y, return_dict=True, **settings)
    # The mean of the processes' logs is that of all devices.
    evaluated["logarithm"] = float(np.log(evaluated.pop("mlm_logits_perplexity")))
    found["evaluated"] = evaluated
    fitted = classifier.fit(texts, labels, epochs=3, shuffle=False, **settings)
    found["losses of texts"] = fitted.history["loss"]
    evaluated = classifier.evaluate(texts, labels, return_dict=True, **settings)
    found["texts evaluated"] = evaluated
    found["predicted"] = classifier.predict(texts, **settings).tolist()
    pairs = texts, [" ".join(text.split()[::-1][:4]) for text in texts]
    fitted = embedder.fit(pairs, epochs=3, shuffle=False, **settings)
    found["losses of pairs"] = fitted.history["loss"]
    # Shuffled by `fit`, each text still counts once. All workers use the same order.
    keras.utils.set_random_seed(0)
    classifier.optimizer.learning_rate = 0.0
    fitted = classifier.fit(texts, labels, epochs=2, **settings)
    found["losses at rest"] = fitted.history["loss"]
    return found


def on_jax(mode):
    devices = keras.distribution.list_devices()
    if mode == "data":
        keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))
    if mode == "model":
        mesh = keras.distribution.DeviceMesh((2, 2), ["batch", "model"], devices)
        parallel = keras.distribution.ModelParallel(
            layout_map=layout_map(mesh), batch_dim_name="batch"
        )
        keras.distribution.set_distribution(parallel)
    models = make()
    found = train(models, data())
    variables = [*models[0].weights, *models[0].optimizer.variables]
    parts = {v.path: (v.shape, v.value.addressable_shards[0].data.shape) for v in variables}
    found["cut"] = {path: part for path, (shape, part) in parts.items() if shape != part}
    return found, len(variables[0].value.sharding.device_set)


def on_tensorflow(mode):
    import tensorflow as tf

    strategy = tf.distribute.get_strategy()
    if mode == "mirrored":
        (cpu,) = tf.config.list_physical_devices("CPU")
        parts = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, parts)
        strategy = tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"])
    if mode == "workers":
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        models = make()
    if mode == "workers":
        models = [data_parallel(model) for model in models]
    return train(models, data()), strategy.num_replicas_in_sync


def on_torch(mode):
    from torch import distributed

    models, parts, rank, processes = make(), data(), 0, 1
    if mode == "processes":
        distributed.init_process_group("gloo")
        rank, processes = distributed.get_rank(), distributed.get_world_size()
        if rank:  # The weights of the first process are kept.
            models = [perturb(model) for model in models]
        models = [data_parallel(model) for model in models]
        # This process's part of each batch.
        rows = np.arange(ROWS).reshape(-1, processes, BATCH // processes)[:, rank].ravel()
        parts = keras.tree.map_structure(lambda array: array[rows], parts)
    return {**train(models, parts, BATCH // processes), "rank": rank}, processes


def run(mode):
    found, devices = globals()[f"on_{keras.backend.backend()}"](mode)
    return {**found, "devices": devices}


if __name__ == "__main__":
    mode, folder = sys.argv[1:]
    result = json.dumps(run(mode), default=float)
    Path(folder, f"{os.getpid()}.json").write_text(result)
