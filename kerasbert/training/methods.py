"""Training methods of `finetune`: the whole model, adapters, only the head, or SetFit."""

import numpy as np
import scipy.special

from kerasbert.families import head_settings
from kerasbert.heads.text_classifier.model import BertTextClassifier
from kerasbert.heads.text_classifier.preprocessor import BertTextClassifierPreprocessor
from kerasbert.heads.text_embedder.model import BertTextEmbedder
from kerasbert.losses import CosineRegression
from kerasbert.training.setfit import contrastive_pairs, logistic_head

# Settings that are arguments of `compile`.
REGULARIZATION = ("label_smoothing", "adversarial", "adversarial_strength", "r_drop")


class Whole:
    """Trains all weights of the task's model, or LoRA adapters.

    Args:
        search: a `kerasbert.training.grid_search.GridSearch`, with the settings.
        point: dict of `batch_size`, `learning_rate`, `epochs` and `seed`.
    """

    optimizer, compiled = {}, {}

    def __init__(self, search, point):
        self.search, self.train, self.point = search, search.train, point
        # `model` predicts, and `fit` trains `trained`, or nothing if `None`.
        self.model = self.trained = self.make()
        self.data = (self.train.x, self.train.y, search.weights)
        self.prepare()

    def make(self):
        """Load the task's model from the preset, with a new head."""
        return self.search.task.model_class.from_preset(
            self.search.shared["preset"], **self.arguments()
        )

    def arguments(self):
        """Return the arguments of `from_preset`."""
        return {**self.search.task.model_settings(), **self.search.arguments}

    def prepare(self):
        """Choose the weights to train."""
        shared = self.search.shared
        if shared["reinitialize_layers"] is not None:
            self.model.backbone.reinitialize_layers(shared["reinitialize_layers"])
        self.compiled = {name: shared[name] for name in REGULARIZATION}
        if shared["lora_rank"] is not None:
            self.model.backbone.enable_lora(shared["lora_rank"])

    def steps(self):
        """Return the number of batches per epoch."""
        batches = self.model.preprocessor.batches(*self.data, self.point["batch_size"])
        return int(batches.cardinality())

    def ready(self):
        """Return the model so far, ready to predict."""
        return self.model

    def finish(self):
        """Return the trained model, which the run saves."""
        return self.ready()


class HeadAlone(Whole):
    """Trains only the head, on a frozen encoder."""

    def prepare(self):
        self.model.backbone.trainable = False

    def finish(self):
        self.model.backbone.trainable = True
        return self.model


class Features(Whole):
    """Fits a classification head to embeddings by logistic regression."""

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
        """Fit the head; return its loss, or `None` for embeddings that are not finite."""
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
    """Trains the embedder on pairs of texts, then the head."""

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
    """Return the class of a method for a task.

    >>> from kerasbert.tasks import get_task
    >>> method_of("frozen", get_task("rte")).__name__
    'Features'
    """
    if name == "frozen":
        return Features if task.has_one_class else HeadAlone
    return SetFit if name == "setfit" else Whole


def classifier_of(embedder, labels):
    """Make a classifier that is linear in an embedder's embeddings.

    Raises:
        ValueError: if the head does not support the embedder's pooling or layers.
    """
    pooling, encoder = embedder.pooling, embedder.backbone
    if isinstance(pooling, list) or pooling == "tokens" or embedder.layers_used != "last":
        raise ValueError(
            f"The embedder has pooling={pooling!r} and layers='{embedder.layers_used}', but a "
            "classifier needs one pooling of the last layer; pass model={'pooling': 'mean', "
            "'layers': 'last'}."
        )
    if embedder.long.pooling == "attention":
        raise ValueError(
            "long has pooling='attention', which is trained with the head, but this method fits "
            "the head to embeddings; use pooling='mean' or 'max', or method='full'."
        )
    own = embedder.preprocessor
    preprocessor = BertTextClassifierPreprocessor(
        own.tokenizer, sequence_length=own.sequence_length, truncate=own.truncate, long=own.long
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
