"""Conversion of tokenizers to the files that `transformers` reads: the reverse of `from_files`.

transformers' model-specific classes follow rules of their own, but the generic class uses
`tokenizer.json` as it is, and so returns the same tokens as kerasbert.

`tokenizer.json` is built as a dict. The library `tokenizers` would need as much code, and its
versions write different files: from 0.20 on, merges that older versions cannot read.
"""

import base64

from kerasbert.base.strict_json import to_json
from kerasbert.families import get_family
from kerasbert.text.alignment import FILLER
from kerasbert.text.byte_fallback import ByteFallbackTokenizer, splits_of
from kerasbert.text.byte_pair import BytePairTokenizer
from kerasbert.text.choose import tokenizer_class
from kerasbert.text.fast import FastTokenizer
from kerasbert.text.gpt import END_OF_WORD, GPTTokenizer
from kerasbert.text.marian import MarianTokenizer
from kerasbert.text.sentence_piece import (
    WORD_BEGIN,
    AlbertTokenizer,
    DebertaV3Tokenizer,
    SentencePieceTokenizer,
    original_order,
    read_proto,
)
from kerasbert.text.tokenizer_files import ROLES, as_lines
from kerasbert.text.wordpiece import MAX_WORD_CHARACTERS, BertTokenizer

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
    if tokenizer.normalize is not None:
        steps = [{"type": tokenizer.normalize}, content.get("normalizer")]
        content["normalizer"] = {"type": "Sequence", "normalizers": [s for s in steps if s]}
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
    content |= {"truncation": None, "padding": None}
    if padded_to is not None:
        content |= _rows(tokenizer, sequence_length, padded_to)
    special = {f"{role}_token": getattr(tokenizer, f"{role}_token") for role in ROLES}
    segments = ["token_type_ids"] if has_segments else []
    config = {
        "tokenizer_class": GENERIC_CLASS,
        "model_max_length": sequence_length,
        "model_input_names": ["input_ids", *segments, "attention_mask"],
        **special,
    }
    finds_special |= tokenizer.special_tokens_in_strings
    if tokenizer.special_tokens_in_strings or not finds_special:
        config["split_special_tokens"] = not finds_special
    return {
        "tokenizer.json": _json(content),
        "tokenizer_config.json": _json(config),
        "special_tokens_map.json": _json(special if finds_special else {}),
    }


def _content(tokenizer, finds_special, has_segments=False, also=()):
    """Return the content of a `tokenizer.json`, added tokens, other files, and settings."""
    described = next(
        describe(tokenizer) for kind, describe in _DESCRIBE.items() if isinstance(tokenizer, kind)
    )
    model, files = described.pop("model"), described.pop("files")
    settings = described.pop("settings")
    if tokenizer.normalize is not None:
        # Identifies the first step, as some tokenizers have normal forms of their own.
        settings["normalize"] = tokenizer.normalize
        steps = [{"type": tokenizer.normalize}, described["normalizer"]]
        described["normalizer"] = {"type": "Sequence", "normalizers": [s for s in steps if s]}
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


def tokenizer_json(tokenizer):
    """Return the content of a `tokenizer.json` with the rules of a tokenizer: a dict."""
    return _content(tokenizer, tokenizer.special_tokens_in_strings)[0]


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


def _size_without(tokenizer, extra):
    """Return the model's vocabulary size without `extra` added tokens at its end.

    Readers number these after all others and never split words into them.
    """
    found = {t["content"] for t in tokenizer.added_tokens if not tokenizer._is_control(t)}
    size = len(tokenizer.vocabulary)
    while tokenizer.vocabulary[size - 1] in found & extra:
        size -= 1
    return size


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
        return None if isinstance(tokenizer, GPTTokenizer) else _byte_level(tokenizer)
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
    if not isinstance(tokenizer, BytePairTokenizer):
        return template
    # ByteLevel trims the white space at the start of a token from its offsets.
    return {"type": "Sequence", "processors": [_byte_level(tokenizer), template]}


def _byte_level(tokenizer):
    return {
        "type": "ByteLevel",
        "add_prefix_space": tokenizer.add_prefix_space,
        "trim_offsets": True,
        "use_regex": True,
    }


def _word_piece(tokenizer):
    extra = {token["content"] for token in tokenizer.added_tokens if token.get("extra")}
    vocabulary = tokenizer.vocabulary[: _size_without(tokenizer, extra)]
    words = {"type": "BertPreTokenizer" if tokenizer.split_on_punctuation else "WhitespaceSplit"}
    if tokenizer.split_characters:
        words = {"type": "Sequence", "pretokenizers": [words, _each(".")]}
    elif tokenizer.split_on:
        each = _each(f"[{tokenizer.split_on}]")
        words = {"type": "Sequence", "pretokenizers": [each, words]}
    settings = {
        "do_lower_case": tokenizer.lowercase,
        "strip_accents": tokenizer.strip_accents,
        "tokenize_chinese_chars": tokenizer.split_on_cjk,
    }
    if tokenizer.max_input_chars_per_word != MAX_WORD_CHARACTERS:
        settings["max_input_chars_per_word"] = tokenizer.max_input_chars_per_word
    if tokenizer.split_characters:
        settings["subword_tokenizer_type"] = "character"
    if tokenizer.split_on:
        settings["split_on"] = tokenizer.split_on
    return {
        "settings": settings,
        "files": {"vocab.txt": as_lines(vocabulary)},
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": tokenizer.split_on_cjk,
            "strip_accents": tokenizer.strip_accents,
            "lowercase": tokenizer.lowercase,
        },
        "pre_tokenizer": words,
        "decoder": {"type": "WordPiece", "prefix": tokenizer.suffix_indicator, "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": tokenizer.unk_token,
            "continuing_subword_prefix": tokenizer.suffix_indicator,
            "max_input_chars_per_word": tokenizer.max_input_chars_per_word,
            "vocab": {token: id for id, token in enumerate(vocabulary)},
        },
    }


def _each(pattern):
    """Return a step that makes each match a word."""
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


def _byte_pair(tokenizer):
    vocabulary = {token: id for id, token in enumerate(tokenizer.vocabulary)}
    form = tokenizer.normalization
    return {
        "settings": {"add_prefix_space": tokenizer.add_prefix_space},
        "files": {
            "vocab.json": _json(vocabulary),
            "merges.txt": as_lines(["#version: 0.2", *tokenizer.merges]),
        },
        "normalizer": None if form is None else {"type": form},
        "pre_tokenizer": _byte_level(tokenizer),
        "decoder": _byte_level(tokenizer),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocabulary,
            "merges": list(tokenizer.merges),
        },
    }


def _gpt(tokenizer):
    described = _byte_pair(tokenizer)
    model = {"unk_token": tokenizer.unk_token, "end_of_word_suffix": END_OF_WORD}
    return {
        **described,
        "settings": {},
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "BPEDecoder", "suffix": END_OF_WORD},
        "model": {**described["model"], **model},
    }


def _without_extra(tokenizer):
    """Return the SentencePiece model without added tokens at its end."""
    proto = read_proto(tokenizer.proto)
    extra = {piece.piece for piece in proto.pieces if piece.type == piece.CONTROL}
    del proto.pieces[_size_without(tokenizer, extra) :]
    return proto


def _sentence_piece(tokenizer):
    proto = _without_extra(tokenizer)
    kinds = proto.SentencePiece
    if proto.trainer_spec.model_type != proto.trainer_spec.UNIGRAM:
        raise ValueError(
            "The tokenizer's SentencePiece model is not a unigram model, and transformers supports "
            "no others; convert with tokenizer=False."
        )
    steps, settings = [], {}
    if isinstance(tokenizer, AlbertTokenizer):
        steps += [_replace(quotes, '"') for quotes in ("``", "''")]
        if not tokenizer.keep_accents:
            steps += [{"type": "NFKD"}, {"type": "StripAccents"}]
        if tokenizer.lowercase:
            steps.append({"type": "Lowercase"})
        settings["do_lower_case"] = tokenizer.lowercase
        settings["keep_accents"] = tokenizer.keep_accents
        files = {"spiece.model": tokenizer.proto}
    elif isinstance(tokenizer, DebertaV3Tokenizer):
        files = {"spm.model": tokenizer.proto}
    else:
        original = original_order(tokenizer)
        files = {} if original is None else {"sentencepiece.bpe.model": original}
    charsmap = proto.normalizer_spec.precompiled_charsmap
    if charsmap:
        if proto.normalizer_spec.name != "user_defined":
            # `transformers` applies the map to each character alone, so it composes none.
            steps.append({"type": "NFC"})
        charsmap = base64.b64encode(charsmap).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    steps += _hidden(proto)
    scheme = "always" if proto.normalizer_spec.add_dummy_prefix else "never"
    space = {
        "type": "Metaspace",
        "replacement": WORD_BEGIN,
        "prepend_scheme": scheme,
        "split": True,
    }
    unknown = [id for id, piece in enumerate(proto.pieces) if piece.type == kinds.UNKNOWN]
    return {
        "settings": settings,
        "files": files,
        "normalizer": {"type": "Sequence", "normalizers": steps} if steps else None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "WhitespaceSplit"}, space],
        },
        "decoder": space,
        "model": {
            "type": "Unigram",
            "unk_id": unknown[0] if unknown else None,
            "byte_fallback": False,
            "vocab": _scored(proto),
        },
    }


def _byte_fallback(tokenizer):
    proto = _without_extra(tokenizer)
    spec = proto.trainer_spec
    if spec.model_type not in (spec.UNIGRAM, spec.BPE):
        raise ValueError(
            "The tokenizer's SentencePiece model is neither unigram nor byte-pair, and "
            "transformers supports no others; convert with tokenizer=False."
        )
    if spec.model_type == spec.UNIGRAM:
        unknown = next(id for id, p in enumerate(proto.pieces) if p.type == p.UNKNOWN)
        model = {"type": "Unigram", "unk_id": unknown, "vocab": _scored(proto)}
    else:
        model = {
            "type": "BPE",
            "dropout": None,
            "unk_token": tokenizer.unk_token,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "vocab": {piece.piece: id for id, piece in enumerate(proto.pieces)},
            "merges": _merges(proto),
        }
    scheme = tokenizer.prepend_scheme
    space = {"type": "Metaspace", "replacement": WORD_BEGIN, "prepend_scheme": scheme}
    before = None
    if scheme == "prepend":
        before = [{"type": "Prepend", "prepend": WORD_BEGIN}, _replace(" ", WORD_BEGIN)]
        before = {"type": "Sequence", "normalizers": before}
    decoders = [_replace(WORD_BEGIN, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
    if scheme != "never":
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "settings": {},
        "files": {},
        "normalizer": before,
        "pre_tokenizer": {**space, "split": False} if before is None else None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {**model, "byte_fallback": True},
    }


def _merges(proto):
    """Return the merges of a byte-pair model, best first; see `byte_fallback.byte_pair_proto`."""
    pieces = [piece for piece in proto.pieces if _found(piece)]
    known = {piece.piece for piece in pieces}
    # Runs of spaces, which the model matches as a whole, must be merged before anything else.
    pieces.sort(
        key=lambda p: (p.type == p.NORMAL, -p.score if p.type == p.NORMAL else -len(p.piece))
    )
    return [f"{a} {b}" for piece in pieces for a, b in splits_of(piece.piece, known)]


def _replace(old, new):
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def _found(piece):
    """Return whether text can become the piece; control pieces cannot."""
    return piece.type in (piece.NORMAL, piece.USER_DEFINED)


def _scored(proto):
    """Return pieces with scores, the lowest for pieces that text must not become.

    The format has no piece types, and `transformers` would match "<s>" like any piece, so every
    other segmentation must score higher.
    """
    lowest = min((piece.score for piece in proto.pieces if _found(piece)), default=0.0)
    return [
        [piece.piece, piece.score if _found(piece) else len(piece.piece) * lowest - 1]
        for piece in proto.pieces
    ]


def _hidden(proto):
    """Return steps that keep control pieces that have no other segmentation from being matched.

    The steps insert a filler after an unknown character, with which it forms one unknown piece.
    """
    single = {piece.piece for piece in proto.pieces if _found(piece) and len(piece.piece) == 1}
    steps = []
    for piece in proto.pieces:
        unknown = next((char for char in piece.piece if char not in single), None)
        if not _found(piece) and unknown is not None:
            hidden = piece.piece.replace(unknown, unknown + FILLER, 1)
            steps.append(_replace(piece.piece, hidden))
    return steps


_DESCRIBE = {
    BertTokenizer: _word_piece,
    GPTTokenizer: _gpt,
    BytePairTokenizer: _byte_pair,
    ByteFallbackTokenizer: _byte_fallback,
    SentencePieceTokenizer: _sentence_piece,
}
