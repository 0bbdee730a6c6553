"""Conversion of tokenizers to the files that `transformers` reads: the reverse of `from_files`.

transformers' model-specific classes follow rules of their own, but the generic class uses
`tokenizer.json` as it is, and so returns the same tokens as kerasbert.

`tokenizer.json` is built as a dict. The library `tokenizers` would need as much code, and its
versions write different files: from 0.20 on, merges that older versions cannot read.
"""

from kerasbert.base.strict_json import to_json
from kerasbert.families import get_family
from kerasbert.text.choose import tokenizer_class
from kerasbert.text.engine import in_form_first
from kerasbert.text.fast import FastTokenizer
from kerasbert.text.marian import MarianTokenizer
from kerasbert.text.sentence_piece import (
    SentencePieceTokenizer,
    read_proto,
)
from kerasbert.text.tokenizer_files import ROLES

GENERIC_CLASS = "PreTrainedTokenizerFast"


def transformers_files(
    tokenizer, family, sequence_length, has_segments, finds_special=False, padded_to=None, also=()
):
    """Return the files of a tokenizer.

    The files match `[MASK]`, `[SEP]` and so on in raw text if the tokenizer does. Otherwise these
    tokens are not among the added tokens of `tokenizer.json`, which are always matched. Only the
    configuration names them; its `split_special_tokens` keeps `transformers` from matching them.

    Args:
        tokenizer: a tokenizer of kerasbert.
        family: string. The family of its encoder.
        sequence_length: int. The encoder's maximum number of tokens.
        has_segments: bool. Whether the second text of a pair has another segment id.
        finds_special: bool. Whether to always match special tokens, as `fill_mask` does.
        padded_to: "batch" or int. Let `tokenizers` truncate rows to `sequence_length` and pad them
            to the longest row of the batch or to this length; `None` leaves both to the reader.
        also: list of strings. Tokens that are always matched, such as those that readers put before
            texts.

    Returns:
        A dict of file name to bytes.

    Raises:
        ValueError: for a tokenizer that `transformers` does not support.
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
    content, added, files, settings = _content(tokenizer, finds_special, has_segments, also)
    if padded_to is not None:
        content |= _rows(tokenizer, sequence_length, padded_to)
    model = content["model"]
    kind = "ByteFallback" if model.get("byte_fallback") else model["type"]
    is_usual = tokenizer_class(kind, family) is type(tokenizer)
    special = {f"{role}_token": getattr(tokenizer, f"{role}_token") for role in ROLES}
    special |= {"bos_token": tokenizer.cls_token, "eos_token": tokenizer.sep_token}
    config = {
        # Names the class if the family's files usually have another one.
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
    if tokenizer.special_tokens_in_strings or not finds_special:
        # Omitted if only the argument asks to match special tokens, so that the same tokenizer is
        # read back.
        config["split_special_tokens"] = not finds_special
    files["tokenizer.json"] = _json(content)
    files["tokenizer_config.json"] = _json(config)
    # Readers without `transformers` match the tokens in this file.
    files["special_tokens_map.json"] = _json(special if finds_special else {})
    return files


def _as_it_is(tokenizer, sequence_length, has_segments, finds_special, padded_to, also):
    """Return the file that a `FastTokenizer` runs, and a configuration."""
    content = dict(tokenizer.content)
    if tokenizer.normalize is not None:  # Otherwise a part that is absent stays so.
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
        # `transformers` does not match special tokens then, but others.
        content["added_tokens"] = [
            {**token, "special": token["content"] in control} for token in content["added_tokens"]
        ]
    if padded_to is not None:
        content |= _rows(tokenizer, sequence_length, padded_to)
        if not finds_special:
            # The library alone always matches added tokens.
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
    if tokenizer.special_tokens_in_strings or not finds_special:
        config["split_special_tokens"] = not finds_special
    return {
        "tokenizer.json": _json(content),
        "tokenizer_config.json": _json(config),
        "special_tokens_map.json": _json(special if finds_special else {}),
    }


def _content(tokenizer, finds_special, has_segments=False, also=()):
    """Return the content of a `tokenizer.json`, added tokens, other files, and settings."""
    described = tokenizer.described()
    model, files = described.pop("model"), described.pop("files")
    settings = described.pop("settings")
    if tokenizer.normalize is not None:
        # Identifies the first step, as some tokenizers have normal forms of their own.
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
    return content, added, files, settings


def _marian(tokenizer):
    """Return Marian's files: its class in transformers reads no `tokenizer.json`."""
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


def _rows(tokenizer, length, padded_to):
    """Return the settings for truncation and padding in `tokenizers`."""
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


def _added_tokens(tokenizer, finds_special, also=()):
    """Return control, marker and added tokens with their ids, sorted by id; `also` is not special.

    Unless special tokens are matched, only control tokens are marked as special, so that
    `transformers` still matches the others.
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
    """Return the template `[CLS] A [SEP] B [SEP]`, with RoBERTa's two separators if needed."""
    cls, sep = tokenizer.cls_token, tokenizer.sep_token
    second = int(has_segments and tokenizer.num_separators == 1)  # The segment of B.

    def special(token, segment=0):
        return {"SpecialToken": {"id": token, "type_id": segment}}

    def text(name, segment=0):
        return {"Sequence": {"id": name, "type_id": segment}}

    single = [special(cls), text("A"), special(sep)]
    pair = [*single, *[special(sep)] * (tokenizer.num_separators - 1)]
    pair += [text("B", second), special(sep, second)]
    if tokenizer.begins_second:
        pair = [*single, special(cls, 1), text("B", 1), special(sep, 1)]
    if not getattr(tokenizer, "marks_ends", True):
        return tokenizer.trims_offsets()
    if getattr(tokenizer, "marks_last", False):
        single = [text("A"), special(sep), special(cls, 2)]
        pair = [*single[:2], text("B", 1), special(sep, 1), special(cls, 2)]
    template = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": pair,
        "special_tokens": {
            token: {"id": token, "ids": [tokenizer.token_to_id(token)], "tokens": [token]}
            for token in (cls, sep)
        },
    }
    trims = tokenizer.trims_offsets()
    return template if trims is None else {"type": "Sequence", "processors": [trims, template]}
