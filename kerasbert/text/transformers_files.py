"""Tokenizer files for `transformers`, the reverse of `from_files`.

transformers' generic class, unlike those of single models, follows `tokenizer.json`, and so returns
kerasbert's tokens.

`tokenizer.json` is built as a dict, because versions of the library `tokenizers` write different
files: since 0.20, merges that older ones cannot read.
"""

from kerasbert.base.strict_json import to_json
from kerasbert.families import get_family
from kerasbert.text.choose import tokenizer_class
from kerasbert.text.engine import in_form_first
from kerasbert.text.fast import FastTokenizer
from kerasbert.text.languages import row_segments
from kerasbert.text.marian import MarianTokenizer
from kerasbert.text.moses import XLMTokenizer
from kerasbert.text.packing import layouts
from kerasbert.text.sentence_piece import SentencePieceTokenizer
from kerasbert.text.sentence_piece_models import read_proto
from kerasbert.text.tokenizer_files import ROLES

GENERIC_CLASS = "PreTrainedTokenizerFast"


def transformers_files(
    tokenizer, family, sequence_length, has_segments, finds_special=False, padded_to=None, also=()
):
    """Return the files of a tokenizer.

    `[MASK]`, `[SEP]` and so on are matched in texts if the tokenizer matches them. Otherwise they
    are only in the configuration, whose `split_special_tokens` tells `transformers` not to match
    them; added tokens of `tokenizer.json` are always matched.

    Args:
        tokenizer: a tokenizer of kerasbert.
        family: string. The family of its encoder.
        sequence_length: int. The encoder's maximum number of tokens.
        has_segments: whether the second text of a pair has another segment id.
        finds_special: whether to always match special tokens, as `fill_mask` does.
        padded_to: "batch" or int. `tokenizers` then truncates rows to `sequence_length`, and pads
            them to the longest row or to this length. `None` leaves both to the reader.
        also: list of strings. Further tokens that are always matched, such as those that readers
            put before queries and texts.

    Returns:
        A dict of file name to bytes.

    Raises:
        ValueError: if `transformers` does not support the tokenizer.
    """
    tokenizer._check_vocabulary()
    if isinstance(tokenizer, FastTokenizer):
        return _as_it_is(tokenizer, sequence_length, has_segments, finds_special, padded_to, also)
    is_marian = isinstance(tokenizer, MarianTokenizer)
    if is_marian != (get_family(family).tokenizer == MarianTokenizer.__name__):
        raise ValueError(
            f"transformers does not support a {type(tokenizer).__name__} with a model of the "
            f"family {family}; convert with tokenizer=False, or use format='kerasbert'."
        )
    if is_marian:
        return _marian(tokenizer)
    finds_special |= tokenizer.special_tokens_in_strings
    if isinstance(tokenizer, XLMTokenizer):
        return _xlm(tokenizer, sequence_length, finds_special, padded_to)
    content, added, settings = _content(tokenizer, finds_special, has_segments, also)
    files = tokenizer.model_files()
    if padded_to is not None:
        content |= _rows(tokenizer, sequence_length, padded_to)
    model = content["model"]
    kind = "ByteFallback" if model.get("byte_fallback") else model["type"]
    is_usual = tokenizer_class(kind, family) is type(tokenizer)
    special = {f"{role}_token": getattr(tokenizer, f"{role}_token") for role in ROLES}
    special |= {"bos_token": tokenizer.cls_token, "eos_token": tokenizer.sep_token}
    config = {
        # The generic class, or the tokenizer's own if the family usually has another.
        "tokenizer_class": GENERIC_CLASS if is_usual else type(tokenizer).__name__,
        "model_max_length": sequence_length,
        "model_input_names": [
            "input_ids",
            *(["token_type_ids"] if has_segments else []),
            "attention_mask",
        ],
        **special,
        **({"padding_side": "left"} if getattr(tokenizer, "marks_last", False) else {}),
        "added_tokens_decoder": {
            str(token["id"]): {name: x for name, x in token.items() if name != "id"}
            for token in added
        },
        **settings,
    }
    return files | _json_files(tokenizer, content, config, special, finds_special)


def _as_it_is(tokenizer, sequence_length, has_segments, finds_special, padded_to, also):
    """Return a `FastTokenizer`'s `tokenizer.json` and configuration."""
    content = dict(tokenizer.content)
    if tokenizer.normalize is not None:
        content["normalizer"] = in_form_first(tokenizer.normalize, content.get("normalizer"))
    known = {token["content"] for token in tokenizer.added_tokens}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    content["added_tokens"] = sorted(
        tokenizer.added_tokens
        + [
            {"id": tokenizer.token_to_id(token), "content": token, **flags}
            for token in also
            if token not in known
        ],
        key=lambda token: token["id"],
    )
    finds_special |= tokenizer.special_tokens_in_strings
    content |= {"truncation": None, "padding": None}
    control = set(tokenizer.control_tokens)
    if not finds_special:
        # `transformers` then matches only added tokens that are not special.
        content["added_tokens"] = [
            {**token, "special": token["content"] in control} for token in content["added_tokens"]
        ]
    if padded_to is not None:
        content |= _rows(tokenizer, sequence_length, padded_to)
        # The only kind that the web page supports.
        content["post_processor"] = _post_processor(tokenizer, has_segments)
        if not finds_special:
            # Without `transformers`, the library always matches added tokens.
            vocabulary = content["model"]["vocab"]
            names = vocabulary if isinstance(vocabulary, dict) else [name for name, _ in vocabulary]
            hidden = control.intersection(names)
            content["added_tokens"] = [
                token for token in content["added_tokens"] if token["content"] not in hidden
            ]
    special = {f"{role}_token": getattr(tokenizer, f"{role}_token") for role in ROLES}
    segments = ["token_type_ids"] if has_segments else []
    config = {
        "tokenizer_class": GENERIC_CLASS,
        "model_max_length": sequence_length,
        "model_input_names": ["input_ids", *segments, "attention_mask"],
        **special,
    }
    return _json_files(tokenizer, content, config, special, finds_special)


def _json_files(tokenizer, content, config, special, finds_special):
    config |= _languages(tokenizer)
    if tokenizer.special_tokens_in_strings or not finds_special:
        # Omitted if only `finds_special` matches special tokens, so that reading restores the
        # settings.
        config["split_special_tokens"] = not finds_special
    return {
        "tokenizer.json": _json(content),
        "tokenizer_config.json": _json(config),
        # Readers without `transformers` match the tokens in this file.
        "special_tokens_map.json": _json(special if finds_special else {}),
    }


def _content(tokenizer, finds_special, has_segments, also):
    """Return the content of a `tokenizer.json`, added tokens, and settings."""
    described = tokenizer.described()
    model, settings = described.pop("model"), tokenizer.config_settings()
    if tokenizer.normalize is not None:
        # Marks the first step as `normalize`, because some tokenizers have an own normal form.
        settings["normalize"] = tokenizer.normalize
        described["normalizer"] = in_form_first(tokenizer.normalize, described["normalizer"])
    added = _added_tokens(tokenizer, finds_special, also)
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [token for token in added if finds_special or not token["special"]],
        **described,
        "post_processor": _post_processor(tokenizer, has_segments),
        "model": model,
    }
    return content, added, settings


def _marian(tokenizer):
    """Return Marian's files; transformers' class reads no `tokenizer.json`."""
    special = {"unk": "unk", "eos": "sep", "pad": "pad"}
    settings = {
        f"{name}_token": getattr(tokenizer, f"{ours}_token") for name, ours in special.items()
    }
    settings["tokenizer_class"] = MarianTokenizer.__name__
    if tokenizer.normalize is not None:
        raise ValueError(
            f"The tokenizer has normalize={tokenizer.normalize!r}, which transformers' class for "
            "Marian does not support; use format='kerasbert', or normalize texts beforehand."
        )
    if tokenizer.special_tokens_in_strings:
        settings["split_special_tokens"] = False
    return {**tokenizer.files(), "tokenizer_config.json": _json(settings)}


def _xlm(tokenizer, sequence_length, finds_special, padded_to):
    """Return XLM's files; transformers' class reads no `tokenizer.json`."""
    if padded_to is not None:
        tokenizer.described()  # Raises an error.
    if tokenizer.normalize is not None:
        raise ValueError(
            f"The tokenizer has normalize={tokenizer.normalize!r}, which transformers' class for "
            "XLM does not support; use format='kerasbert', or normalize texts beforehand."
        )
    special = {"unk": "unk", "bos": "cls", "cls": "sep", "sep": "sep", "pad": "pad", "mask": "mask"}
    settings = {
        f"{name}_token": getattr(tokenizer, f"{ours}_token") for name, ours in special.items()
    }
    settings |= {
        "tokenizer_class": type(tokenizer).__name__,
        "model_max_length": sequence_length,
        **_languages(tokenizer),
        **tokenizer.config_settings(),
    }
    if tokenizer.special_tokens_in_strings or not finds_special:
        settings["split_special_tokens"] = not finds_special
    return {**tokenizer.files(), "tokenizer_config.json": _json(settings)}


def _languages(tokenizer):
    """Return the names and ids of a tokenizer's languages, as XLM's files have them."""
    names = tokenizer.languages
    if names is None:
        return {}
    return {
        "lang2id": {name: id for id, name in enumerate(names)},
        "id2lang": {str(id): name for id, name in enumerate(names)},
    }


def _rows(tokenizer, length, padded_to):
    """Return the parts of a `tokenizer.json` for truncation and padding."""
    return {
        "truncation": {
            "direction": "Right",
            "max_length": length,
            "strategy": "LongestFirst",
            "stride": 0,
        },
        "padding": {
            "strategy": "BatchLongest" if padded_to == "batch" else {"Fixed": padded_to},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": tokenizer.pad_token_id,
            "pad_type_id": 0,
            "pad_token": tokenizer.pad_token,
        },
    }


def _json(value):
    return (to_json(value, ensure_ascii=False, indent=1) + "\n").encode()


def _added_tokens(tokenizer, finds_special, also):
    """Return control tokens, markers, added tokens and `also`, by id.

    If special tokens are not matched, only control tokens are marked special, so that
    `transformers` matches the others.
    """
    found = {
        token: {"lstrip": tokenizer._strips_left(token), "special": True}
        for token in tokenizer.control_tokens
    }
    found |= {token: {"special": True} for token in tokenizer.markers()}
    for token in tokenizer.added_tokens:
        is_special = tokenizer._is_control(token) or finds_special and token.get("special")
        found[token["content"]] = {**token, "special": is_special}
    if isinstance(tokenizer, SentencePieceTokenizer):
        proto = read_proto(tokenizer.proto)
        for piece in proto.pieces:
            if piece.type == proto.SentencePiece.USER_DEFINED:
                found.setdefault(piece.piece, {})
    found |= {token: {"special": False} for token in also}
    names = ("single_word", "lstrip", "rstrip", "normalized", "special")
    ids = {token: id for id, token in enumerate(tokenizer.vocabulary)}
    return [
        {"id": ids[token], "content": token}
        | {name: bool(settings.get(name, False)) for name in names}
        for token, settings in sorted(found.items(), key=lambda item: ids.get(item[0], -1))
        if token in ids
    ]


def _post_processor(tokenizer, has_segments):
    """Return the post-processor that adds special tokens to a text and a pair."""
    trims = tokenizer.trims_offsets()
    if not getattr(tokenizer, "marks_ends", True):
        return trims
    # The second text has another segment, unless two separators mark it, as in RoBERTa.
    frame = tokenizer.frame
    second = int(has_segments and len(frame.between) < 2 or bool(frame.begin))
    single, pair = layouts(tokenizer, second)
    segments = (0, 1, 2)
    if has_segments and tokenizer.languages is not None:
        single, pair = layouts(tokenizer)
        segments = row_segments(tokenizer, 2)

    def template(row):
        texts = iter("AB")
        return [
            {"Sequence": {"id": next(texts), "type_id": segments[segment]}}
            if token is None
            else {"SpecialToken": {"id": token, "type_id": segments[segment]}}
            for token, segment in row
        ]

    names = dict.fromkeys(token for token, _ in pair if token is not None)
    processor = {
        "type": "TemplateProcessing",
        "single": template(single),
        "pair": template(pair),
        "special_tokens": {
            token: {"id": token, "ids": [tokenizer.token_to_id(token)], "tokens": [token]}
            for token in names
        },
    }
    return processor if trims is None else {"type": "Sequence", "processors": [trims, processor]}
