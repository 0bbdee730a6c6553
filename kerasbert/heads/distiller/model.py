"""Knowledge distillation: a small student model learns from a large teacher.

B batch, T tokens, D width of the teacher, C classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
from keras import ops

from kerasbert import backend
from kerasbert.base import keras_internals
from kerasbert.base.errors import check_choice
from kerasbert.base.parts import same_tokens
from kerasbert.heads.base.task import BertTask
from kerasbert.layers.block import only_blocks_remat
from kerasbert.losses import TokenCrossEntropy
from kerasbert.losses.chains import ChainCrossEntropy
from kerasbert.losses.similarity import DISTANCES
from kerasbert.text.names import composed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Self

    from kerasbert.base.aliases import AnyPath, Tensor


@keras.saving.register_keras_serializable(package="kerasbert")
class BertDistiller(BertTask):
    """Distiller: trains a student task model to match a teacher's outputs.

    `fit` takes the student's training data and trains the student in place. The loss is the
    weighted sum of

    - soft targets: the KL divergence of the student's probabilities from the teacher's, both at
      `temperature`, times the square of `temperature`; for a regressor, the student's own loss with
      the teacher's output as label;
    - labels: the student's own loss. With `label_weight=0`, no labels are needed;
    - hidden states: the mean distance over tokens between the layers that `layer_map` pairs. If
      their widths differ, a learned projection is added.

    `keras.distillation.Distiller` has the first two, but ignores sample weights and hidden layers.

    Args:
        student: a task model, for example `teacher.with_layers([0, 2, 4])`.
        teacher: a trained task model with the same class, labels and tokenizer; it stays frozen.
        temperature: float. Above 1, the teacher's less likely classes count more.
        soft_weight: float.
        label_weight: float.
        hidden_weight: float.
        hidden_loss: "cosine" (1 - cosine, DistilBERT) or "mse" (TinyBERT).
        layer_map: "last" compares the last layers; "uniform" the student's embeddings and layers
            with evenly spaced ones of the teacher. Or a list of pairs (student layer, teacher
            layer), with 0 for the embeddings.

    Example:

    >>> import numpy as np
    >>> from kerasbert.models import BertBackbone, BertTextClassifier
    >>> backbone = BertBackbone(
    ...     vocabulary_size=9, num_layers=4, num_heads=1, hidden_dim=4, intermediate_dim=4
    ... )
    >>> teacher = BertTextClassifier(backbone, num_classes=2)
    >>> student = teacher.with_layers([0, 2])
    >>> distiller = BertDistiller(student, teacher, hidden_weight=1.0)
    >>> distiller.compile(run_eagerly=True)
    >>> history = distiller.fit(
    ...     {"token_ids": np.ones((2, 3), "int32")}, np.array([0, 1]), epochs=1, verbose=0
    ... )
    >>> sorted(history.history)
    ['accuracy', 'hidden_loss', 'label_loss', 'loss', 'soft_loss']

    Source: Hinton et al. 2015, arXiv 1503.02531; Sanh et al. 2019, arXiv 1910.01108; Turc et al.
    2019, arXiv 1908.08962; Jiao et al. 2020, arXiv 1909.10351.
    """

    kind = "distiller"
    allows_r_drop = False

    def __init__(
        self,
        student: Any,
        teacher: Any,
        temperature: float = 2.0,
        soft_weight: float = 0.5,
        label_weight: float = 0.5,
        hidden_weight: float = 0.0,
        hidden_loss: str = "cosine",
        layer_map: str | Sequence[Any] = "last",
        **kwargs: Any,
    ) -> None:
        _check_settings(temperature, soft_weight, label_weight, hidden_weight, hidden_loss)
        _check_pair(student, teacher)
        pairs = _layer_pairs(student, teacher, layer_map) if hidden_weight else []

        # === Layers ===
        if student.backbone in student.operations:
            self.backbone = student.backbone
        else:  # An embedder does not track its encoder, of which it may use only a part.
            object.__setattr__(self, "_backbone", student.backbone)
        self.long = student.long
        self.preprocessor = _preprocessor(student, teacher)
        outputs, states = _run(student, [pair[0] for pair in pairs])
        self.projection = None
        width = teacher.backbone.hidden_dim
        if pairs and student.backbone.hidden_dim != width:
            self.projection = keras.layers.Dense(
                width, dtype=student.backbone.dtype_policy, name="projection"
            )
            states = [self.projection(state) for state in states]
        teacher_outputs, teacher_states = _run(teacher, [pair[1] for pair in pairs])

        # === Config ===
        self.temperature = temperature
        self.soft_weight = soft_weight
        self.label_weight = label_weight
        self.hidden_weight = hidden_weight
        self.hidden_loss = hidden_loss
        self.layer_map = layer_map
        kwargs.setdefault("name", "distiller")
        compile = kwargs.pop("compile", True)
        super().__init__(
            inputs=student.input,
            outputs={"outputs": outputs, "hidden_states": states},
            compile=False,
            **kwargs,
        )
        # Losses and metrics find the student's outputs by name.
        self.output_names = student.output_names
        self.student = student
        self.teacher = teacher
        features = keras.Model(
            teacher.input,
            {"outputs": teacher_outputs, "hidden_states": teacher_states},
            name="teacher_features",
        )
        self._teacher_features = features
        only_blocks_remat([features, *features.operations])
        self._soft_losses = keras.tree.map_structure(
            lambda loss: _soft_loss(loss, temperature), student.default_loss()
        )
        self._parts = {
            name: keras.metrics.Mean(name=name)
            for name, weight in (
                ("soft_loss", soft_weight),
                ("label_loss", label_weight),
                ("hidden_loss", hidden_weight),
            )
            if weight
        }
        if compile:
            self.compile()

    def default_loss(self) -> Any:
        """Return the student's default loss."""
        return self.student.default_loss()

    def default_metrics(self) -> Any:
        """Return the student's default metrics."""
        return self.student.default_metrics()

    def metric_forms(self) -> Any:
        return self.student.metric_forms()

    def gives_logits(self) -> bool:
        return self.student.gives_logits()

    def untrained_weights(self) -> list[Any]:
        return [*self.student.untrained_weights(), *self.teacher.weights]

    def predict(self, x: Any = None, batch_size: int | None = None, **kwargs: Any) -> Any:
        """Return the student's outputs."""
        return self.student.predict(x, batch_size=batch_size, **kwargs)

    def save_to_preset(self, preset_dir: AnyPath, **kwargs: Any) -> None:
        """Save the student; load it with the student's class."""
        self.student.save_to_preset(preset_dir, **kwargs)

    def forget_calibration(self) -> None:
        self.student.forget_calibration()

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Tensor = None,
        sample_weight: Any = None,
        training: bool | None = True,
    ) -> Tensor:
        outputs, states = y_pred["outputs"], y_pred["hidden_states"]
        x = self.teacher.backbone.fill_in(x)
        features = {name: x[name] for name in self.teacher.input}
        with backend.without_gradients():
            target = self._teacher_features(features, training=False)
        target = keras.tree.map_structure(ops.stop_gradient, target)
        loss = 0.0
        if self.label_weight:
            labels = super().compute_loss(x, y, outputs, sample_weight, training)
            loss = loss + self._part("label_loss", labels, self.label_weight)
        if self.soft_weight:
            soft = _mean_loss(self._soft_losses, target["outputs"], outputs, sample_weight)
            loss = loss + self._part("soft_loss", soft, self.soft_weight)
        if self.hidden_weight:
            hidden = self._hidden_loss(target["hidden_states"], states, x, sample_weight)
            loss = loss + self._part("hidden_loss", hidden, self.hidden_weight)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        # PyTorch's own method finds weights by path. The teacher's paths hide the student's, whose
        # gradients would accumulate.
        for weight in self.trainable_variables:
            weight.value.grad = None

    def _part(self, name, loss, weight):
        self._parts[name].update_state(loss)
        return weight * loss

    def _hidden_loss(self, target, states, x, sample_weight):
        """Average the distance over layers and tokens."""
        length = ops.shape(x["padding_mask"])[-1]
        weights = ops.cast(ops.reshape(x["padding_mask"], (-1, length)), "float32")  # (B, T)
        if len(getattr(sample_weight, "shape", ())) == 1:
            # Weights (B,) are per text; others belong to the outputs.
            own = ops.cast(sample_weight, "float32")
            # Texts may have several rows: windows or choices.
            weights = ops.reshape(weights, (ops.shape(own)[0], -1)) * own[:, None]
            weights = ops.reshape(weights, (-1, length))
        total = ops.maximum(ops.sum(weights), 1e-7)
        distance = (
            DISTANCES["cosine"] if self.hidden_loss == "cosine" else keras.losses.mean_squared_error
        )
        losses = [
            ops.sum(weights * distance(ops.cast(a, "float32"), ops.cast(b, "float32"))) / total
            for a, b in zip(target, states, strict=True)
        ]
        return sum(losses) / len(losses)

    def compute_metrics(
        self, x: Any, y: Any, y_pred: Tensor, sample_weight: Any = None
    ) -> dict[str, Any]:
        if y is None:
            return self.get_metrics_result()
        return super().compute_metrics(x, y, y_pred["outputs"], sample_weight)

    def get_metrics_result(self) -> dict[str, Any]:
        compiled = keras_internals.compiled_metrics(self)
        if compiled is None or compiled.built:
            return super().get_metrics_result()
        return {metric.name: metric.result() for metric in self.metrics if metric is not compiled}

    def get_config(self) -> dict[str, Any]:
        return {
            "student": keras.saving.serialize_keras_object(self.student),
            "teacher": keras.saving.serialize_keras_object(self.teacher),
            "temperature": self.temperature,
            "soft_weight": self.soft_weight,
            "label_weight": self.label_weight,
            "hidden_weight": self.hidden_weight,
            "hidden_loss": self.hidden_loss,
            "layer_map": self.layer_map,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        models = {
            name: keras.saving.deserialize_keras_object(config[name])
            for name in ("student", "teacher")
        }
        # Files of version 0.1 store a shared vocabulary once.
        parts = [model.preprocessor for model in models.values() if model.preprocessor]
        tokenizers = [part.tokenizer for part in parts]
        if (
            len(parts) == 2
            and all(tokenizer.vocabulary is None for tokenizer in tokenizers)
            and type(tokenizers[0]) is type(tokenizers[1])
        ):
            parts[1].tokenizer = tokenizers[0]
        return cls(**{**config, **models})


def _run(task, layers):
    """Return a task's outputs and the hidden states (B, T, D) of `layers` (0: embeddings)."""
    if task.backbone not in task.operations:  # An embedder.
        return task.output, [task.backbone.hidden_states[layer] for layer in layers]
    states = []

    def encode(inputs, positions=None, **kwargs):
        hidden_states, _ = task.backbone._encode(inputs)
        states.extend(hidden_states[layer] for layer in layers)
        outputs = task.backbone._named_outputs(hidden_states)
        if positions is not None:
            places = ops.expand_dims(positions, -1)
            tokens = ops.take_along_axis(outputs["sequence_output"], places, axis=1)
            outputs["sequence_output"] = tokens  # (B, P, D)
        return outputs

    outputs = keras_internals.run_through_graph(
        task, task.inputs, lambda operation: encode if operation is task.backbone else operation
    )
    return outputs, states


# === Soft targets ===


class _SoftTargets(keras.losses.Loss):
    """Divergence of logits from a teacher's, at a temperature."""

    def __init__(self, divergence, temperature, reduction):
        super().__init__(reduction=reduction, name="soft_loss")
        self.divergence = divergence
        self.temperature = temperature

    def call(self, y_true, y_pred):
        # Gradients shrink with the squared temperature; the factor restores their scale.
        return self.temperature**2 * self.divergence(
            y_true / self.temperature, y_pred / self.temperature
        )


def _between_classes(target, logits):
    logs, target_logs = ops.log_softmax(logits), ops.log_softmax(target)
    return ops.sum(ops.exp(target_logs) * (target_logs - logs), axis=-1)


def _of_each_class(target, logits):
    def part(sign):
        target_logs = ops.log_sigmoid(sign * target)
        return ops.exp(target_logs) * (target_logs - ops.log_sigmoid(sign * logits))

    return ops.mean(part(1.0) + part(-1.0), axis=-1)


def _soft_loss(loss, temperature):
    """Return the loss of student and teacher outputs for a loss on labels."""
    by_class = keras.losses.SparseCategoricalCrossentropy, TokenCrossEntropy, ChainCrossEntropy
    if isinstance(loss, by_class):
        return _SoftTargets(_between_classes, temperature, loss.reduction)
    if isinstance(loss, keras.losses.BinaryCrossentropy):
        return _SoftTargets(_of_each_class, temperature, loss.reduction)
    return loss


def _mean_loss(losses, targets, outputs, sample_weight):
    """Average the losses of the outputs; sample weights are per output or shared."""
    flat = keras.tree.flatten(outputs)
    losses, weights = keras.tree.flatten(losses), keras.tree.flatten(sample_weight)
    losses = losses * len(flat) if len(losses) == 1 else losses
    weights = weights * len(flat) if len(weights) == 1 else weights
    parts = [
        loss(target, output, sample_weight=weight)
        for loss, target, output, weight in zip(
            losses, keras.tree.flatten(targets), flat, weights or [None] * len(flat), strict=True
        )
    ]
    return sum(parts) / len(parts)


# === Checks ===


def _check_settings(temperature, soft_weight, label_weight, hidden_weight, hidden_loss):
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {temperature}.")
    weights = {
        "soft_weight": soft_weight,
        "label_weight": label_weight,
        "hidden_weight": hidden_weight,
    }
    for name, weight in weights.items():
        if weight < 0:
            raise ValueError(f"{name} must be 0 or more, got {weight}.")
    if not soft_weight and not hidden_weight:
        raise ValueError(
            "With soft_weight=0 and hidden_weight=0 the teacher has no effect; make one of them "
            "positive, or train the student alone."
        )
    check_choice("hidden_loss", hidden_loss, ("cosine", "mse"))


def _check_pair(student, teacher):
    for role, model in (("student", student), ("teacher", teacher)):
        if not isinstance(model, BertTask):
            raise ValueError(
                f"The {role} must be a task model, such as a BertTextClassifier; got a "
                f"{type(model).__name__}."
            )
        activation = getattr(model, "activation", None)
        if activation not in (None, keras.activations.linear):
            raise ValueError(
                f"The {role} has activation='{activation.__name__}', but soft targets need logits; "
                "build it with activation=None."
            )
    if student.long.has_windows != teacher.long.has_windows:
        raise ValueError(
            f"The student has long={student.long.mode!r} and the teacher {teacher.long.mode!r}; "
            "either both or neither must read windows."
        )
    if not student.trainable_weights:
        raise ValueError("The student has no trainable weights; set student.trainable = True.")
    if student is teacher or student.backbone is teacher.backbone:
        raise ValueError(
            "The student and the teacher are the same model; pass another student, for example "
            "`teacher.with_layers([0, 2, 4])`."
        )
    if type(student) is not type(teacher):
        raise ValueError(
            f"The student is a {type(student).__name__} and the teacher a "
            f"{type(teacher).__name__}; both must be of the same class."
        )
    shapes = [
        keras.tree.map_structure(lambda output: tuple(output.shape), model.output)
        for model in (student, teacher)
    ]
    labels = [getattr(model, "labels", None) for model in (student, teacher)]
    if shapes[0] != shapes[1] or (
        all(labels) and list(map(composed, labels[0])) != list(map(composed, labels[1]))
    ):
        raise ValueError(
            f"The outputs differ: the student's have shape {shapes[0]} and labels {labels[0]}, "
            f"the teacher's {shapes[1]} and {labels[1]}; use the same classes in the same order."
        )
    if None in (student.preprocessor, teacher.preprocessor):
        return
    if not same_tokens(student.preprocessor.tokenizer, teacher.preprocessor.tokenizer):
        raise ValueError(
            "The student and the teacher have different tokenizers; use a student with the "
            "teacher's vocabulary."
        )


def _preprocessor(student, teacher):
    """Return the preprocessor of the student or of the teacher, by more segments."""
    preprocessors = [model.preprocessor for model in (student, teacher) if model.preprocessor]
    owner = (
        student
        if len(preprocessors) < 2 or teacher.backbone.num_segments <= student.backbone.num_segments
        else teacher
    )
    chosen = owner.preprocessor
    most = min(student.backbone.max_sequence_length, teacher.backbone.max_sequence_length)
    if chosen is not None and chosen.sequence_length > most:
        role = "student" if chosen is student.preprocessor else "teacher"
        raise ValueError(
            f"The {role}'s preprocessor has sequence_length={chosen.sequence_length}, but one of "
            f"the encoders has only {most} positions; reduce "
            f"`{role}.preprocessor.sequence_length`."
        )
    return chosen


def _layer_pairs(student, teacher, layer_map):
    depths = student.backbone.num_layers, teacher.backbone.num_layers
    if isinstance(layer_map, str):
        if layer_map == "last":
            return [depths]
        if layer_map == "uniform":
            return [(i, i * depths[1] // depths[0]) for i in range(depths[0] + 1)]
        raise ValueError(
            f"layer_map='{layer_map}' is unknown; use 'last', 'uniform' or a list of pairs."
        )
    pairs = [tuple(pair) for pair in layer_map]
    for pair in pairs:
        if len(pair) != 2 or not all(0 <= i <= most for i, most in zip(pair, depths)):
            raise ValueError(
                f"layer_map contains {pair}; pass pairs of a student layer, 0 to {depths[0]}, and "
                f"a teacher layer, 0 to {depths[1]}."
            )
    if not pairs:
        raise ValueError("layer_map is empty; pass at least one pair, or set hidden_weight=0.")
    return pairs
