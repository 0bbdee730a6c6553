"""The text classifiers ("arms") that `advise` compares, the cheapest first.

Each arm has `fit(x, y)` and `predict_proba(x)`, which returns (N, C). `x` is a list of texts or a
tuple of two lists, and `y` are class indices. After `fit`, an arm has its size in `megabytes`.
Costs before `fit` are `seconds_before`, the training before an interruption, and
`seconds_per_text`, the embedding of one text.
"""

import functools
import gc
import os
import pickle
import time
import warnings
from dataclasses import dataclass

import keras
import numpy as np
import scipy.special

from kerasbert import presets
from kerasbert.base.errors import reading
from kerasbert.base.files import new_file
from kerasbert.losses import CosineRegression
from kerasbert.models import BertTextClassifier, BertTextEmbedder
from kerasbert.optimizers import FINETUNING_LEARNING_RATE, AdamW, LinearDecay
from kerasbert.training.advise_settings import AdviseSettings
from kerasbert.training.finetune_settings import MIN_STEPS
from kerasbert.training.resuming import EpochCheckpoints
from kerasbert.training.setfit import contrastive_pairs, logistic_head

_BLOCK = 2048  # Number of texts per file of embeddings.
# Few rows are trained for this number of updates, but for more than _MOST epochs only until there
# are as many updates as `finetune` requires.
_UPDATES = 300
_MOST = 20
# SetFit's pairs of each kind: 20 per text, up to this, because SetFit is for few labels.
_PAIRS = 10_000
_PAIR_BATCH, _PAIR_RATE = 16, 2e-5


@dataclass
class Arms:
    """State shared by all runs of all arms.

    Args:
        labels: tuple of class names.
        settings: an `AdviseSettings`.
        folder: string. Where the texts' embeddings are stored.
        texts: list of all texts that an arm may embed.
    """

    labels: tuple
    settings: AdviseSettings
    folder: str
    texts: list

    @functools.cached_property
    def embedder(self):
        """An embedder with the preset's encoder, not fine-tuned."""
        return BertTextEmbedder.from_preset(self.settings.preset, **self.arguments)

    @functools.cached_property
    def vectors(self):
        """The embedder's `Vectors`."""
        return Vectors(self)

    @property
    def arguments(self):
        """Arguments of `from_preset`, as a dict."""
        dtype = self.settings.precision
        length = {"sequence_length": self.settings.sequence_length}
        return length if dtype is None else {**length, "dtype": dtype}


class Arm:
    """Base class of the classifiers."""

    # The name in tables, and the `method` of `finetune`.
    title = method = ""
    # Before an interruption; to embed one text.
    seconds_before = seconds_per_text = 0.0

    def __init__(self, shared, seed, folder):
        """
        Args:
            shared: an `Arms`.
            seed: int.
            folder: folder of checkpoints to resume from, which need not exist.
        """
        self.shared, self.seed, self.folder = shared, seed, folder

    def prepare(self):
        """Do the work that all runs share, outside of their times."""

    def options(self, count):
        """Return the options of `kerasbert finetune` that train in the same way on `count` rows."""
        return f"--method {self.method}"


class Tfidf(Arm):
    """Logistic regression on words, word pairs and character n-grams.

    Character n-grams help with word endings and languages without spaces.
    """

    title = "TF-IDF"

    def fit(self, x, y):
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_union

        words = {"ngram_range": (1, 2), "sublinear_tf": True, "token_pattern": r"(?u)\b\w+\b"}
        parts = {"ngram_range": (2, 5), "sublinear_tf": True, "analyzer": "char_wb"}
        self.readers = [
            make_union(TfidfVectorizer(**words), TfidfVectorizer(**parts)).fit(column)
            for column in _columns(x)
        ]
        self.model = LogisticRegression(C=10.0, max_iter=1000).fit(self._features(x), y)

    def predict_proba(self, x):
        # A small share may lack some classes.
        found = np.zeros((len(_columns(x)[0]), len(self.shared.labels)))
        found[:, self.model.classes_] = self.model.predict_proba(self._features(x))
        return found

    def _features(self, x):
        import scipy.sparse

        found = [reader.transform(column) for reader, column in zip(self.readers, _columns(x))]
        return scipy.sparse.hstack(found).tocsr()

    @property
    def megabytes(self):
        return len(pickle.dumps((self.readers, self.model))) / 1e6


class Frozen(Arm):
    """Logistic regression on embeddings of the frozen encoder.

    The features of a text pair are both embeddings, their absolute difference and their product.

    Source of these features: Reimers and Gurevych 2019, arXiv 1908.10084, table 6.
    """

    title = "frozen encoder"
    method = "frozen"

    def fit(self, x, y):
        self.head = logistic_head(self.features(x), np.asarray(y), len(self.shared.labels))

    def predict_proba(self, x):
        return probabilities(self.features(x), self.head)

    def features(self, x):
        """Return the features of texts or text pairs, floats (N, F)."""
        found = [self.shared.vectors.of(column) for column in _columns(x)]
        if len(found) == 1:
            return found[0]
        a, b = found
        return np.concatenate([a, b, np.abs(a - b), a * b], axis=1)

    def prepare(self):
        _ = self.shared.vectors

    @property
    def seconds_per_text(self):
        return self.shared.vectors.seconds

    @property
    def megabytes(self):
        return self.shared.vectors.megabytes + self.head[0].nbytes / 1e6


class Trained(Arm):
    """Base class of arms with Keras' `fit`, resumed after the last complete epoch."""

    def _from_preset(self, kind, **arguments):
        """Load a separate copy of the model, with a new head by the seed."""
        gc.collect()  # Free the memory of the previous model.
        keras.utils.set_random_seed(self.seed)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "New, random weights")
            return kind.from_preset(
                self.shared.settings.preset, **arguments, **self.shared.arguments
            )

    def _train(self, model, x, y, batch_size, epochs):
        keep = _Keep(self.folder, epochs)
        keras.utils.set_random_seed(self.seed)
        start, facts, _ = keep.resume(model)
        keep.before = facts.get("seconds", 0.0)
        model.fit(
            x,
            y,
            batch_size=batch_size,
            epochs=epochs,
            initial_epoch=start,
            callbacks=[keep],
            verbose=0,
        )
        self.seconds_before = keep.before

    @property
    def megabytes(self):
        return _megabytes(self.model)


class SetFit(Trained):
    """An embedder trained on pairs of texts of equal or different classes, and a logistic head.

    Source: Tunstall et al. 2022, arXiv 2209.11055.
    """

    title = "SetFit"
    method = "setfit"

    def fit(self, x, y):
        pairs = max(1, min(20, _PAIRS // len(y)))
        first, second, is_same = contrastive_pairs(y, pairs, self.seed)
        self.model = self._from_preset(BertTextEmbedder)
        steps = -(-len(first) // _PAIR_BATCH)
        rate = presets.finetuning_learning_rate(self.shared.settings.preset) or _PAIR_RATE
        self.model.compile(
            AdamW(LinearDecay(rate, steps, steps // 10), epsilon=1e-8),
            loss=CosineRegression(),
            metrics=None,
        )
        columns = tuple([x[row] for row in rows] for rows in (first, second))
        self._train(self.model, columns, is_same, _PAIR_BATCH, 1)
        vectors = self.model.embed(x)
        self.head = logistic_head(vectors, np.asarray(y), len(self.shared.labels))

    def predict_proba(self, x):
        return probabilities(self.model.embed(x), self.head)


class Tuned(Trained):
    """A classifier of which all weights are trained."""

    title = "full fine-tuning"
    method = "full"

    @property
    def rate(self):
        """The learning rate of the settings, else of the preset, else by the encoder's width: small
        encoders need a higher rate (Turc et al. 2019, arXiv 1908.08962).
        """
        given = self.shared.settings.learning_rate
        given = given or presets.finetuning_learning_rate(self.shared.settings.preset)
        small = self.shared.embedder.backbone.hidden_dim <= 512
        return given or (1e-4 if small else FINETUNING_LEARNING_RATE)

    def epochs(self, count):
        """Return the number of epochs for `count` rows."""
        settings = self.shared.settings
        steps = -(-count // settings.batch_size)
        return settings.epochs or max(3, min(-(-_UPDATES // steps), _MOST), -(-MIN_STEPS // steps))

    def fit(self, x, y):
        labels, size = self.shared.labels, self.shared.settings.batch_size
        names = [labels[number] for number in y]
        self.model = self._from_preset(BertTextClassifier, labels=list(labels))
        self._prepare()
        epochs = self.epochs(len(y))
        total = epochs * int(self.model.preprocessor.batches(x, names, None, size).cardinality())
        self.model.compile(AdamW(LinearDecay(self.rate, total, total // 10)))
        self._train(self.model, x, names, size, epochs)

    def _prepare(self):
        """Choose the weights to train."""

    def predict_proba(self, x):
        return self.model.predict_proba(x, self.shared.settings.batch_size)

    def options(self, count):
        size = self.shared.settings.batch_size
        return (
            f"{super().options(count)} --learning-rates {self.rate:g} --batch-sizes {size} "
            f"--epochs {self.epochs(count)}"
        )


class Lora(Tuned):
    """Like `Tuned`, but trains only adapters, at ten times the learning rate."""

    title = "LoRA adapters"
    method = "lora"

    def _prepare(self):
        self.model.backbone.enable_lora(self.shared.settings.lora_rank)

    @property
    def rate(self):
        return self.shared.settings.learning_rate or min(10 * super().rate, 1e-3)

    def options(self, count):
        return f"{super().options(count)} --lora-rank {self.shared.settings.lora_rank}"


# Ordered by cost.
ARMS = {"tfidf": Tfidf, "frozen": Frozen, "setfit": SetFit, "lora": Lora, "full": Tuned}


class Vectors:
    """Mean-pooled embeddings of all texts, computed once and stored in files.

    Args:
        shared: an `Arms`.
    """

    def __init__(self, shared):
        self.shared = shared
        texts = list(dict.fromkeys(shared.texts))
        self._place = {text: place for place, text in enumerate(texts)}
        blocks, seconds = [], 0.0
        for start in range(0, len(texts), _BLOCK):
            path = os.path.join(shared.folder, f"vectors-{start:09}.npz")
            if not os.path.exists(path):
                self._make(path, texts[start : start + _BLOCK])
            with reading(path, "remove it and run the same command again"), np.load(path) as file:
                blocks.append(file["vectors"])
                seconds += float(file["seconds"])
                self.megabytes = float(file["megabytes"])
        self._vectors = np.concatenate(blocks)
        self.seconds = seconds / len(texts)

    def of(self, texts):
        """Return the embeddings of texts, float32 (N, D)."""
        return self._vectors[[self._place[text] for text in texts]]

    def _make(self, path, texts):
        embedder = self.shared.embedder
        embedder.embed(texts[:2])  # Without the time of compilation.
        start = time.perf_counter()
        vectors = embedder.embed(texts)
        seconds = time.perf_counter() - start
        os.makedirs(self.shared.folder, exist_ok=True)
        with new_file(path) as file:
            np.savez(file, vectors=vectors, seconds=seconds, megabytes=_megabytes(embedder))


class _Keep(EpochCheckpoints):
    """Callback for checkpoints with the training's duration so far."""

    def __init__(self, folder, epochs):
        super().__init__(folder)
        self.epochs = epochs
        self._start = time.monotonic()

    def on_epoch_end(self, epoch, logs=None):
        if epoch + 1 < self.epochs:
            self.keep(epoch + 1, seconds=self.before + time.monotonic() - self._start)
        super().on_epoch_end(epoch, logs)


def probabilities(vectors, head):
    """Return class probabilities (N, C) of vectors (N, D) by `logistic_head`."""
    kernel, bias = head
    return scipy.special.softmax(vectors @ kernel + bias, axis=1).astype("float64")


def _columns(x):
    return x if isinstance(x, tuple) else (x,)


def _megabytes(model):
    """Return the size of a model's weights in float32, in MB."""
    return 4e-6 * sum(int(np.prod(weight.shape)) for weight in model.weights)
