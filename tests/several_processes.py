"""Train in several processes, for test_several_processes.py.

    python tests/several_processes.py EXAMPLES OUTPUT SIGNAL     # Pre-train; on JAX with MESH=2x2.
    python tests/several_processes.py EXAMPLES OUTPUT texts      # Fit a classifier: OUTPUT.json.

If there are several OUTPUTs, they are made one after the other. `environments` has the launchers'
variables. The last process sends itself the signal SIGNAL after 15 of 40 steps; "" means no signal.
"""

import json
import os
import signal
import socket
import sys
import time

import keras
import numpy as np

import kerasbert
from kerasbert.base.files import write_json
from kerasbert.distribution import of_one_process, together
from kerasbert.models import BertBackbone, BertTextClassifier
from kerasbert.optimizers import AdamW
from kerasbert.preprocessors import BertTextClassifierPreprocessor
from kerasbert.tokenizers import BertTokenizer

TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK]".split() + [f"word{i}" for i in range(95)]
SETTINGS = {
    "num_layers": 1,
    "hidden_dim": 16,
    "num_heads": 2,
    "phases": [(24, 40, 8)],
    "encoder": {"dropout": 0.0, "attention_dropout": 0.0},
    "optimizer": "muon",
    "learning_rate": 1e-2,
    "log_every": 5,
    "checkpoint_every": 10,
    "evaluate_every": 20,
    "held_out": 0.2,
    "verbose": False,
}


def environments(backend, count):
    """Return the environment of each process, as the backend's launchers set it."""
    ports = []
    for _ in range(count):
        with socket.socket() as server:
            server.bind(("localhost", 0))
            ports.append(server.getsockname()[1])
    workers = [f"localhost:{port}" for port in ports]
    for index in range(count):
        if backend == "jax":
            found = {"JOB_ADDRESSES": workers[0], "NUM_PROCESSES": count, "PROCESS_ID": index}
            found = {f"KERAS_DISTRIBUTION_{name}": value for name, value in found.items()}
        elif backend == "torch":
            found = {"WORLD_SIZE": count, "RANK": index, "LOCAL_RANK": index}
            found |= {"MASTER_ADDR": "localhost", "MASTER_PORT": ports[0]}
        else:
            task = {"type": "worker", "index": index}
            found = {"TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": task})}
        yield {name: str(value) for name, value in found.items()}


class Signal(keras.callbacks.Callback):
    """Sends this process a signal after a step."""

    def __init__(self, number, step):
        super().__init__()
        self.number, self.step = number, step

    def on_train_batch_end(self, batch, logs=None):
        self.step -= 1
        if self.step == 0:
            print("signal at", time.time(), file=sys.stderr, flush=True)
            os.kill(os.getpid(), self.number)


def train(examples, output, **more):
    return kerasbert.pretrain(
        examples, output, vocabulary=BertTokenizer(TOKENS), **SETTINGS, **more
    )


def fit_texts(output):
    """Return a classifier's results after some epochs, whose last batches are not full."""
    keras.utils.set_random_seed(0)
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(TOKENS[5:], random.integers(1, 30))) for _ in range(53)]
    labels = [int("word3" in text) for text in texts]
    with together() as group:
        encoder = BertBackbone(100, 1, 2, 16, 32, dropout=0.0, max_sequence_length=32)
        preprocessor = BertTextClassifierPreprocessor(BertTokenizer(TOKENS), sequence_length=32)
        model = BertTextClassifier(encoder, 2, preprocessor=preprocessor, dropout=0.0)
        model.compile(AdamW(1e-2))
        held_out = {"validation_data": (texts[:20], labels[:20])}
        model.fit(texts, labels, batch_size=10, epochs=4, verbose=0, **held_out)
        scores = model.evaluate(texts[:50], labels[:50], batch_size=10, verbose=0)
        model = of_one_process(model)
    found = model.predict(texts, verbose=0)
    if group.processes.is_first:
        write_json(output, {"logits": found.tolist(), "scores": list(map(float, scores))})


if __name__ == "__main__":
    examples, output, *names = sys.argv[1:]
    processes = kerasbert.distribution.join()
    is_last = processes.index == processes.count - 1
    for left, name in zip(reversed(range(len(names))), names):
        if name == "texts":
            fit_texts(f"{output}.json")
            continue
        number = getattr(signal, name, 0)  # 0 is no signal and does nothing.
        callbacks = [Signal(number, 15)] if is_last else []
        try:
            train(examples, output, mesh=os.environ.get("MESH"), callbacks=callbacks)
        except KeyboardInterrupt as error:
            if output.startswith("/"):
                kept = [file for file in os.listdir(output) if file.startswith("checkpoint-")]
                print(error, *kept, file=sys.stderr, flush=True)
            if not left:
                raise
