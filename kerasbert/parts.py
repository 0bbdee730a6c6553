"""What a task is made of: its encoder, a preprocessor, and a head of its own."""

import warnings

from kerasbert._keywords import config_of


def encoder_of(model):
    """The encoder of a task, or the encoder itself."""
    return getattr(model, "backbone", model)


def head_weights(model):
    """The weights of a task that are not its encoder's."""
    inner = {id(weight) for weight in encoder_of(model).weights}
    return [weight for weight in model.weights if id(weight) not in inner]


def same_tokens(tokenizer, other):
    """Whether two tokenizers make the same ids of each text."""
    return tokenizer is other or _tokens(tokenizer) == _tokens(other)


def _tokens(tokenizer):
    config = {k: v for k, v in tokenizer.get_config().items() if k not in ("name", "dtype")}
    return type(tokenizer), config, tokenizer.vocabulary and tokenizer.get_vocabulary()


def own_preprocessor(backbone, preprocessor, cls, **settings):
    """A task's own copy of the preprocessor that it is given, with what the two share.

    The tokenizer is not copied.

    Args:
        backbone: the `BertBackbone` that it has to fit.
        preprocessor: a preprocessor, or `None`.
        cls: the class that it has to be of.
        **settings: those of the task; a preprocessor that does not know one goes without.
    """
    if preprocessor is None:
        return None
    if not isinstance(preprocessor, cls):
        raise TypeError(
            f"preprocessor is a {type(preprocessor).__name__}, and has to be a {cls.__name__}; "
            f"make one by {cls.__name__}(tokenizer, sequence_length=...)."
        )
    if hasattr(preprocessor, "check_family"):
        preprocessor.check_family(getattr(backbone, "family", None))
    # A `.keras` file gives the vocabulary after the model.
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
            f"{backbone.vocabulary_size}; is its vocabulary file whole?",
            stacklevel=3,
        )
    if preprocessor.sequence_length > backbone.max_sequence_length:
        raise ValueError(
            f"The preprocessor's sequence_length {preprocessor.sequence_length} exceeds the "
            f"encoder's {backbone.max_sequence_length} positions; set sequence_length="
            f"{backbone.max_sequence_length} or less."
        )
    config = {**config_of(preprocessor), "tokenizer": preprocessor.tokenizer}
    settings["num_segments"] = min(backbone.num_segments, 2)
    config.update((name, value) for name, value in settings.items() if name in config)
    return type(preprocessor).from_config(config)
