"""The settings of a WordPiece tokenizer in the files of a Google or Hugging Face directory."""

import re
import warnings

from kerasbert.text.tokenizer_files import GENERIC, ROLES
from kerasbert.text.tokenizer_json import ANY, follow, follow_model
from kerasbert.text.vocabulary_files import read_vocabulary, tokens_by_id


def wordpiece_arguments(files, cls):
    """Return the arguments of `cls`, a `BertTokenizer`, from `TokenizerFiles`."""
    files.require("WordPiece", cls)
    path = files.path("vocab.txt")
    tokens = read_vocabulary(path) if path else tokens_by_id(files.model["vocab"])
    rules, splits = _words_of(files, cls) if files.model else ({}, ())
    config = files.config
    # Unless specified, a vocabulary with capitals is cased.
    cased = any(token[:1] != "[" and token != token.lower() for token in tokens)
    # With a tokenizer.json, transformers' generic class ignores the configuration.
    said = {} if rules and config.get("tokenizer_class") in GENERIC else config
    arguments = {
        "lowercase": said.get("do_lower_case", rules.get("lowercase", not cased)),
        "strip_accents": said.get("strip_accents", rules.get("strip_accents")),
        "split_on_cjk": said.get("tokenize_chinese_chars", rules.get("handle_chinese_chars", True)),
        "split_on_punctuation": "WhitespaceSplit" not in splits,
        "split_characters": config.get("subword_tokenizer_type") == "character"
        or splits[1:] == ["Split"],
        "split_on": config.get("split_on") or _split_on(files),
        "suffix_indicator": files.model.get("continuing_subword_prefix") or "##",
        "character_rules": config.get("character_rules", "tokenizers" if files.model else "google"),
        **files.special_tokens(cls, tokens),
        **files.settings(),
    }
    words = config.get("word_tokenizer_type") or "basic"
    if words != "basic":
        warnings.warn(
            f"The checkpoint in '{files.directory}' segments words with {words}, which cannot run "
            "in a TensorFlow graph; segment texts yourself, with a space between words.",
            stacklevel=3,
        )
        # Words of segmented texts are not split further. Kana keep their diacritics.
        arguments["lowercase"] = config.get("do_lower_case", False)
        arguments |= {"split_on_cjk": False, "split_on_punctuation": False}
        arguments["strip_accents"] = False
    own, tokens = set(tokens), files.with_added_tokens(tokens)
    special = {arguments[f"{role}_token"] for role in ROLES}
    arguments |= {
        "vocabulary": tokens,
        "added_tokens": [
            token if token["content"] in own else {**token, "extra": True}
            for token in files.found_tokens(tokens)
            if token["content"] not in special or token.keys() - {"content", "special", "control"}
        ],
        "max_input_chars_per_word": _longest_word(files),
    }
    return arguments


def _words_of(files, cls):
    """Return the normalizer's fields and the pre-tokenizers' types of a `tokenizer.json`."""
    form = {"clean_text": (True,), "handle_chinese_chars": ANY, "strip_accents": ANY}
    known = {"BertNormalizer": [{**form, "lowercase": ANY}]}
    rules = follow(files, "normalizer", cls, known, [["BertNormalizer"]])
    on = _split_on(files)
    patterns = [{"Regex": "."}, *([{"Regex": f"[{on}]"}] if on else [])]
    each = {"pattern": patterns, "behavior": ("Isolated",), "invert": (False,)}
    known = {"BertPreTokenizer": [{}], "WhitespaceSplit": [{}], "Split": [each]}
    plain = [["BertPreTokenizer"], ["WhitespaceSplit"]]
    words = [*plain, *([*one, "Split"] for one in plain)]
    words += [["Split", *one] for one in plain if on]
    splits = [step["type"] for step in follow(files, "pre_tokenizer", cls, known, words)]
    prefix = files.model.get("continuing_subword_prefix", "##")
    follow_model(files, cls, {"continuing_subword_prefix": [prefix] if prefix else []})
    return rules[0] if rules else {}, splits


def _split_on(files):
    """Return the characters that the first step makes words, or ""."""
    first = next(iter(files.steps("pre_tokenizer")), {})
    pattern = first.get("pattern") if first.get("type") == "Split" else None
    pattern = pattern.get("Regex", "") if isinstance(pattern, dict) else ""
    is_class = isinstance(pattern, str) and re.fullmatch(r"\[[^^\[\]][^\[\]]*\]", pattern)
    return pattern[1:-1] if is_class and first.get("behavior") == "Isolated" else ""


def _longest_word(files):
    """Return the maximum length of a word that WordPiece splits."""
    # Without a tokenizer.json, the configuration has the limit. 200 is Google's default.
    said = files.config.get("max_input_chars_per_word")
    said = files.model.get("max_input_chars_per_word", said)
    others = ("config.json", "tokenizer_config.json", "tokenizer.json")
    is_googles = files.path("bert_config.json") or not files.path(*others)
    return said or (200 if is_googles else 100)
