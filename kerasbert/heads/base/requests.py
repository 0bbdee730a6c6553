"""Validation of requests inside exported graphs.

Clients may send anything: a row instead of a batch crashed the server, and a negative id read
another token's embedding.

N rows, T tokens per row.
"""

import dataclasses

from kerasbert.backend.tensorflow import tf
from kerasbert.base.parts import encoder_of

# Names of axes in error messages.
_WORDS = {
    "batch": "rows",
    "choices": "choices or windows",
    "conditions": "conditions",
    "characters": "characters per word",
    "predictions": "positions",
    "words": "words",
}
# Inputs with positions of tokens.
_POSITIONS = ("mask_positions", "word_starts", "word_counts")
_IDS = ("token_ids", "input_ids")
_FIRST = (*_IDS, "character_ids", "text", "question", "prompt")
_SEGMENTS = ("segment_ids", "token_type_ids")
_MASKS = ("padding_mask", "attention_mask")


@dataclasses.dataclass(frozen=True)
class Limits:
    """Valid ranges of a model's integer inputs.

    Attributes:
        ranges: dict of input name to `(least, most)`, ints. "tokens" as `most` is the last position
            of a row.
        longest: maximum number of tokens per row, or `None` for no limit.
    """

    ranges: dict
    longest: int | None = None


def limits_of(model, names):
    """Return the `Limits` of a model's inputs.

    Args:
        model: a task or an encoder.
        names: list of strings. Names of the inputs, prefixed with the task's name for several
            tasks.
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
    """Return the names of the axes of a signature's inputs: a dict of input name to a tuple."""
    found = {}
    for name, one in specs.items():
        # Rows of encoder and decoder may differ in length.
        side = next((x for x in ("encoder_", "decoder_") if name.startswith(x)), "")
        if name == "choices":
            second = ("choices",)
        elif name == "mask_positions":
            second = ("predictions",)
        elif name.startswith("where_"):
            second = ("conditions",)
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
    """Return the conditions that a request must meet.

    Args:
        features: dict of input name to tensor.
        axes: dict of input name to the names of its axes; "tokens" at the end marks the length of
            rows.
        limits: `Limits`.

    Returns:
        List of `(sentence, met, found)`: the error message, a bool tensor, and tensors to show.
    """
    shapes = {name: tf.shape(x) for name, x in features.items()}
    first, found = {}, []
    # Messages compare others with token ids or the first text.
    for name in sorted(axes, key=lambda name: not name.endswith(_FIRST)):
        # `others`: first input with the same axis, to its places in both.
        names, others = axes[name], {}
        for place, axis in enumerate(names):
            if axis not in first:
                first[axis] = name, place
                if axis.endswith("tokens"):
                    found += _length(name, shapes[name], place, limits.longest)
            elif first[axis][0] != name:
                others.setdefault(first[axis][0], []).append((place, first[axis][1], axis))
        for other, places in others.items():
            same = [shapes[name][here] == shapes[other][there] for here, there, _ in places]
            words = " and ".join(_WORDS.get(_word(axis), "tokens per row") for *_, axis in places)
            sentence = f"{name} must have as many {words} as {other}; their shapes are"
            found.append((sentence, _all(same), [shapes[name], shapes[other]]))
    for name, (least, most) in limits.ranges.items():
        if name in features:
            x, end = features[name], most
            if most == "tokens":
                # Positions refer to rows of the same task.
                ids = name.removesuffix(next(e for e in _POSITIONS if name.endswith(e)))
                ids += "token_ids"
                end = tf.cast(shapes[ids][len(axes[ids]) - 1] - 1, x.dtype)
            # A valid value gives empty batches a minimum and a maximum.
            values = tf.concat([tf.reshape(x, [-1]), tf.constant([least], x.dtype)], 0)
            lowest, highest = tf.reduce_min(values), tf.reduce_max(values)
            sentence = f"{name} must be from {least} to {_last(most)}; the smallest and largest are"
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
    """Wrap a signature's function so that it fails for an invalid request.

    Args:
        function: function of tensors by keyword.
        specs: dict of input name to `tf.TensorSpec`.
        limits: `Limits`.
    """

    def run(**inputs):
        # A server's C++ session does not check ranks.
        inputs = {name: tf.ensure_shape(x, specs[name].shape) for name, x in inputs.items()}
        with tf.control_dependencies(asserted(conditions(inputs, axes_of(specs), limits))):
            inputs = {name: tf.identity(x) for name, x in inputs.items()}
        return function(**inputs)

    return run


def asserted(conditions):
    """Return operations that fail if a condition is not met."""
    return [
        tf.raw_ops.Assert(condition=met, data=[sentence, *data], summarize=8)
        for sentence, met, data in conditions
    ]


def fail_unless(features, conditions):
    """Return the features, after ops that fail if a condition is not met, for ONNX and LiteRT.

    These formats have no `Assert`. Instead, a zero is read from a table and added to the masks, at
    an index outside of the table for an invalid request. ONNX Runtime's error has the op's name,
    which states the condition.
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
    """Return the outputs, or NaN if a condition is not met, for OpenVINO, whose ops cannot fail."""
    met = _all([met for _, met, _ in conditions])
    return {name: tf.where(met, x, float("nan")) for name, x in outputs.items()}
