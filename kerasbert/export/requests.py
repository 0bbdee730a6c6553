"""What a request must hold: checked in the graph that answers it, before anything computes.

Kernels trust the shapes and ids that a model was traced for. What a client sends may have any: a
row in place of a batch ended the server's process, and an id below 0 read another token's vector.

N rows, T tokens of a row.
"""

import dataclasses

from kerasbert.backend.tensorflow import tf
from kerasbert.parts import encoder_of

# In words, for errors.
_WORDS = {
    "batch": "rows",
    "choices": "choices",
    "characters": "characters a word",
    "predictions": "positions",
    "words": "words",
}
# Inputs that name tokens of their row.
_POSITIONS = ("mask_positions", "word_starts", "word_counts")
_IDS = ("token_ids", "input_ids")
_FIRST = (*_IDS, "character_ids", "text", "question", "prompt")
_SEGMENTS = ("segment_ids", "token_type_ids")
_MASKS = ("padding_mask", "attention_mask")


@dataclasses.dataclass(frozen=True)
class Limits:
    """What the token ids and the like of a model may be.

    Attributes:
        ranges: dict of input name to `(least, most)`, whole numbers; for `most`, "tokens" stands
            for the last position of a row.
        longest: int. The most tokens of a row, or `None` for any.
    """

    ranges: dict
    longest: int | None = None


def limits_of(model, names):
    """The `Limits` of a model's inputs.

    Args:
        model: a task or an encoder.
        names: list of strings. The inputs; those of several tasks begin with the task's name.
    """
    encoder = encoder_of(model)
    last = {
        **dict.fromkeys(_IDS, getattr(encoder, "vocabulary_size", 0) - 1),
        "character_ids": getattr(encoder, "num_characters", 0) - 1,
        **dict.fromkeys(_SEGMENTS, max(getattr(encoder, "num_segments", 0), 1) - 1),
        **dict.fromkeys((*_MASKS, "vector_mask"), 1),
        **dict.fromkeys(_POSITIONS, "tokens"),
    }
    ranges = {name: (0, last[end]) for name in names for end in last if name.endswith(end)}
    return Limits(ranges, getattr(encoder, "max_sequence_length", None))


def axes_of(specs):
    """The names of the axes of a signature's inputs, by their names and ranks."""
    found = {}
    for name, one in specs.items():
        # The two rows of a translation have lengths of their own.
        side = next((x for x in ("encoder_", "decoder_") if name.startswith(x)), "")
        if name == "choices":
            second = ("choices",)
        elif name == "mask_positions":
            second = ("predictions",)
        elif name.startswith("word_"):
            second = ("words",)
        elif name == "character_ids":
            second = ("tokens", "characters")
        elif one.shape.rank == 3:
            second = ("choices", "tokens")
        else:
            second = (f"{side}tokens",)
        found[name] = ("batch", *second)[: one.shape.rank]
    return found


def conditions(features, axes, limits):
    """What must be true of a request: a list of `(sentence, bool tensor, found)`.

    Args:
        features: dict of tensors by the names of the inputs.
        axes: dict of the names of each input's axes; what ends in "tokens" is a length of rows.
        limits: `Limits`.

    Returns:
        Of each condition what it says, whether it is met, and tensors that show what is wrong.
    """
    shapes = {name: tf.shape(x) for name, x in features.items()}
    first, found = {}, []
    # Errors compare with the token ids, or with the first text.
    for name in sorted(axes, key=lambda name: not name.endswith(_FIRST)):
        names, others = axes[name], {}  # By the input that has them too: places here and there.
        for place, axis in enumerate(names):
            if axis not in first:
                first[axis] = name, place
                if axis.endswith("tokens"):
                    found += _length(name, shapes[name], place, limits.longest)
            elif first[axis][0] != name:
                others.setdefault(first[axis][0], []).append((place, first[axis][1], axis))
        for other, places in others.items():
            same = [shapes[name][here] == shapes[other][there] for here, there, _ in places]
            words = " and ".join(_WORDS.get(_word(axis), "tokens a row") for *_, axis in places)
            sentence = f"{name} must have as many {words} as {other}; their shapes are"
            found.append((sentence, _all(same), [shapes[name], shapes[other]]))
    for name, (least, most) in limits.ranges.items():
        if name in features:
            x, end = features[name], most
            if most == "tokens":
                # Of several tasks each has its own rows.
                ids = name.removesuffix(next(e for e in _POSITIONS if name.endswith(e)))
                ids += "token_ids"
                end = tf.cast(shapes[ids][len(axes[ids]) - 1] - 1, x.dtype)
            # With one that is fine, so that no row at all has a smallest and a largest too.
            values = tf.concat([tf.reshape(x, [-1]), tf.constant([least], x.dtype)], 0)
            lowest, highest = tf.reduce_min(values), tf.reduce_max(values)
            sentence = f"{name} must be from {least} to {_last(most)}; they are from, to"
            met = [lowest >= least, highest <= end]
            found.append((sentence, _all(met), [lowest, highest]))
    return found


def _length(name, shape, place, longest):
    found = []
    if longest is not None:
        most = min(longest, 2**31 - 1)
        sentence = f"A row must have 1 to {most} tokens; the shape of {name} is"
        found.append((sentence, _all([shape[place] >= 1, shape[place] <= most]), [shape]))
    return found


def _word(axis):
    return next((word for word in _WORDS if axis.endswith(word)), axis)


def _last(most):
    return "the last position of the row" if most == "tokens" else most


def _all(conditions):
    met = conditions[0]
    for condition in conditions[1:]:
        met &= condition
    return met


def checked(function, specs, limits):
    """A signature's function that refuses a request it was not made for.

    Args:
        function: of tensors by keyword.
        specs: dict of `tf.TensorSpec` by their names.
        limits: `Limits`.
    """

    def run(**inputs):
        # Where the graph is run, no one else compares ranks with those that it was traced for.
        inputs = {name: tf.ensure_shape(x, specs[name].shape) for name, x in inputs.items()}
        with tf.control_dependencies(asserted(conditions(inputs, axes_of(specs), limits))):
            inputs = {name: tf.identity(x) for name, x in inputs.items()}
        return function(**inputs)

    return run


def asserted(conditions):
    """Operations that fail where a condition is not met."""
    return [
        tf.raw_ops.Assert(condition=met, data=[sentence, *data], summarize=8)
        for sentence, met, data in conditions
    ]


def gated(features, conditions):
    """The same features by an op that fails where a condition is not met, for ONNX and LiteRT.

    They have no `Assert`. A place that is not there is read from a table of one zero, which is
    added to the masks. ONNX Runtime's error names the op, and that says what was wrong.
    """
    zeros = []
    for sentence, met, _ in conditions:
        name = "".join(c if c.isalnum() else "_" for c in sentence.partition(";")[0])
        zeros.append(tf.gather(tf.zeros([1]), tf.where(met, 0, 1), name=name))
    zero = tf.add_n(zeros)
    return {
        name: x + tf.cast(zero, x.dtype) if name.endswith(_MASKS) else x
        for name, x in features.items()
    }


def nan_unless(outputs, conditions):
    """The outputs, or NaN where a condition is not met, for OpenVINO, none of whose ops fail."""
    met = _all([met for _, met, _ in conditions])
    return {name: tf.where(met, x, float("nan")) for name, x in outputs.items()}
