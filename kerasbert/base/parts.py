"""Parts of a task: its encoder, head and preprocessor."""

import warnings

from kerasbert.base.keywords import config_of


def encoder_of(model):
    """Return the encoder of a task, or the encoder itself."""
    return getattr(model, "backbone", model)


def tells_segments(model):
    """Return whether the texts of a pair get different segment ids.

    Encoder and preprocessor must have more than one.
    """
    count = encoder_of(model).num_segments
    given = getattr(getattr(model, "preprocessor", None), "num_segments", None)
    return (count if given is None else min(count, given)) > 1


def head_weights(model):
    """Return the weights of a task that are not its encoder's."""
    inner = {id(weight) for weight in encoder_of(model).weights}
    return [weight for weight in model.weights if id(weight) not in inner]


def same_tokens(tokenizer, other):
    """Return whether two tokenizers map every text to the same ids."""
    return tokenizer is other or _tokens(tokenizer) == _tokens(other)


def _tokens(tokenizer):
    config = {k: v for k, v in tokenizer.get_config().items() if k not in ("name", "dtype")}
    return type(tokenizer), config, tokenizer.vocabulary and tokenizer.get_vocabulary()


def own_preprocessor(backbone, preprocessor, cls, long=None, **settings):
    """Check a task's preprocessor, and copy it with the task's settings and the same tokenizer.

    Args:
        backbone: the `BertBackbone` to fit.
        preprocessor: a preprocessor, or `None`.
        cls: its class.
        long: see `kerasbert.text.long_texts.LongTexts`; `None` keeps the preprocessor's.
        **settings: settings of the task; unknown ones are ignored.
    """
    if preprocessor is None:
        return None
    if not isinstance(preprocessor, cls):
        raise TypeError(
            f"preprocessor must be a {cls.__name__}, got a {type(preprocessor).__name__}; create "
            f"it with {cls.__name__}(tokenizer, sequence_length=...)."
        )
    if hasattr(preprocessor, "check_family"):
        preprocessor.check_family(getattr(backbone, "family", None))
    # Loading a `.keras` file restores the vocabulary after the model.
    is_empty = preprocessor.tokenizer.vocabulary is None
    tokens = backbone.vocabulary_size if is_empty else preprocessor.tokenizer.vocabulary_size()
    if tokens > backbone.vocabulary_size:
        raise ValueError(
            f"The tokenizer has {tokens} tokens, but the encoder's vocabulary_size is "
            f"{backbone.vocabulary_size}; load both from the same preset."
        )
    if tokens < 0.9 * backbone.vocabulary_size:
        warnings.warn(
            f"The tokenizer has only {tokens} tokens for the encoder's vocabulary_size of "
            f"{backbone.vocabulary_size}; check that its vocabulary file is complete.",
            stacklevel=3,
        )
    languages = getattr(preprocessor.tokenizer, "languages", None) or ()
    if 1 < backbone.num_segments < len(languages):
        raise ValueError(
            f"The tokenizer has {len(languages)} languages, but the encoder has embeddings for "
            f"{backbone.num_segments} (num_segments); load both from the same preset."
        )
    if preprocessor.sequence_length > backbone.max_sequence_length:
        raise ValueError(
            f"The preprocessor's sequence_length {preprocessor.sequence_length} exceeds the "
            f"encoder's {backbone.max_sequence_length} positions; set sequence_length="
            f"{backbone.max_sequence_length} or less."
        )
    config = {**config_of(preprocessor), "tokenizer": preprocessor.tokenizer}
    count = min(backbone.num_segments, 2)
    # Both texts of a pair keep a single segment.
    settings["num_segments"] = min(count, 1) if preprocessor.num_segments == 1 else count
    config.update((name, value) for name, value in settings.items() if name in config)
    if long is not None:
        config["long"] = long  # The default is not in the config.
    return type(preprocessor).from_config(config)
