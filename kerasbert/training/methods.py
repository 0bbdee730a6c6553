"""How a run of `finetune` trains: all of a model, adapters, its head alone, or by SetFit."""

import numpy as np
import scipy.special

from kerasbert.families import head_settings
from kerasbert.losses import CosineRegression
from kerasbert.models.text_classifier import BertTextClassifier
from kerasbert.models.text_embedder import BertTextEmbedder
from kerasbert.preprocessors.text_classifier import BertTextClassifierPreprocessor
from kerasbert.training.setfit import contrastive_pairs, logistic_head


class Whole:
    """Trains a model of the task, all of it or adapters.

    Args:
        search: a `kerasbert.training.search.Search`, with what is given.
        point: dict of `batch_size`, `learning_rate`, `epochs` and `seed`.
    """

    # What the optimizer takes beside the rate, and `compile` beside the optimizer.
    optimizer, compiled = {}, {}

    def __init__(self, search, point):
        self.search, self.train, self.point = search, search.train, point
        # The model that answers, and the one that `fit` trains; `None` where nothing is.
        self.model = self.trained = self.make()
        self.data = (self.train.x, self.train.y, search.weights)
        self.prepare()

    def make(self):
        """The task's model, with a new head."""
        return self.search.task.model_class.from_preset(
            self.search.shared["preset"], **self.arguments()
        )

    def arguments(self):
        """Those of `from_preset`."""
        return {**self.search.task.model_settings(), **self.search.arguments}

    def prepare(self):
        """Set what is to be trained."""
        if self.search.shared["lora_rank"] is not None:
            self.model.backbone.enable_lora(self.search.shared["lora_rank"])

    def steps(self):
        """The batches of an epoch."""
        batches = self.model.preprocessor.batches(*self.data, self.point["batch_size"])
        return int(batches.cardinality())

    def ready(self):
        """The model that answers, as far as it is trained."""
        return self.model

    def finish(self):
        """The model to keep."""
        return self.ready()


class HeadAlone(Whole):
    """Trains the head, on an encoder that stays as it is."""

    def prepare(self):
        self.model.backbone.trainable = False

    def finish(self):
        self.model.backbone.trainable = True
        return self.model


class Features(Whole):
    """Fits a classifier's head to the vectors of an embedder, by logistic regression."""

    def make(self):
        arguments = self.arguments()
        labels = arguments.pop("labels")
        self.embedder = BertTextEmbedder.from_preset(self.search.shared["preset"], **arguments)
        return classifier_of(self.embedder, list(labels))

    def prepare(self):
        self.trained = None

    def steps(self):
        return 1

    def fit_head(self):
        """Fit the head; returns the loss, `None` where vectors are no numbers."""
        vectors = self.embedder.embed(self.train.x, self.point["batch_size"])
        if not np.isfinite(vectors).all():
            return None
        numbers = self.model.preprocessor.check_labels(self.train.y, len(vectors))
        head = logistic_head(vectors, numbers, self.model.num_classes, self.search.weights)
        for weight, value in zip(self.model.output_dense.weights, head, strict=True):
            weight.assign(value)
        kernel, bias = head
        log_odds = scipy.special.log_softmax(vectors @ kernel + bias, axis=-1)
        return -float(np.average(log_odds[range(len(numbers)), numbers]))


class SetFit(Features):
    """Trains the embedder before, on pairs of texts of one class and of two."""

    optimizer = {"epsilon": 1e-8}  # As in setfit.
    compiled = {"loss": CosineRegression(), "metrics": None}

    def prepare(self):
        first, second, is_same = contrastive_pairs(
            self.train.y, self.search.shared["pairs"], self.point["seed"]
        )
        texts = np.array(self.train.x, dtype=object)
        self.trained = self.embedder
        self.data = ((texts[first].tolist(), texts[second].tolist()), is_same, None)

    def ready(self):
        self.fit_head()
        return self.model

    def steps(self):
        return -(-len(self.data[1]) // self.point["batch_size"])


def method_of(name, task):
    """The class for a method's name and a task.

    >>> from kerasbert.tasks import get_task
    >>> method_of("frozen", get_task("rte")).__name__
    'Features'
    """
    if name == "frozen":
        return Features if task.has_one_class else HeadAlone
    return SetFit if name == "setfit" else Whole


def classifier_of(embedder, labels):
    """A classifier whose logits are linear in an embedder's vectors, on the same encoder.

    Raises:
        ValueError: for vectors that no head reads.
    """
    pooling, encoder = embedder.pooling, embedder.backbone
    if isinstance(pooling, list) or pooling == "tokens" or embedder.layers_used != "last":
        raise ValueError(
            f"The embedder has pooling={pooling!r} and layers='{embedder.layers_used}', and a "
            "classifier reads one pooling of the last layer; pass model={'pooling': 'mean', "
            "'layers': 'last'}."
        )
    own = embedder.preprocessor
    preprocessor = BertTextClassifierPreprocessor(
        own.tokenizer, sequence_length=own.sequence_length, truncate=own.truncate
    )
    has_dense = head_settings(encoder.family, "text_classifier").get("head_activation")
    return BertTextClassifier(
        encoder,
        labels=labels,
        preprocessor=preprocessor,
        pooling=pooling,
        normalize=embedder.normalize,
        head_activation="none" if has_dense else None,
        output_bias=True,
    )
