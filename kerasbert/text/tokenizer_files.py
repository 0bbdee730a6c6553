"""The tokenizer files of a checkpoint: `tokenizer.json`, configurations and vocabularies."""

import inspect
import math
import os
import reprlib

from kerasbert.base.errors import check_fields, check_value, is_whole
from kerasbert.base.files import read_json, settle
from kerasbert.text.alignment import FORMS

ROLES = ("unk", "cls", "sep", "pad", "mask")
# Names in files of models with begin and end tokens, but no class and separator tokens.
_ALSO = {"cls": "bos", "sep": "eos"}
# Usual names, for directories that do not specify any.
USUAL = {
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "pad": ("[PAD]", "<pad>"),
    "mask": ("[MASK]", "<mask>"),
}
# Kinds of models in a `tokenizer.json`, and files that hold the same model.
MODEL_FILES = {
    "WordPiece": ("vocab.txt",),
    "BPE": ("vocab.json",),
    "Unigram": ("spiece.model", "sentencepiece.bpe.model", "spm.model"),
    # A unigram or byte-pair model that splits unknown characters into bytes.
    "ByteFallback": ("tokenizer.model",),
}
# Placeholder of an id without a token. A vocabulary may have as many of these as tokens, plus
# `SPARE`.
_NONE = "[no token {}]"
SPARE = 10_000
# Types of the fields.
_TOKENS = {f"{role}_token": "token?" for role in (*ROLES, "bos", "eos")}
_SIDE_FILES = ("tokenizer_config.json", "tokenizer.json")
_CONFIG = {
    **_TOKENS,
    "tokenizer_class": "name?",
    "model_max_length": "length?",
    "added_tokens_decoder": "object?",
    "split_special_tokens": "flag?",
    "do_lower_case": "flag?",
    "strip_accents": "flag?",
    "tokenize_chinese_chars": "flag?",
    "max_input_chars_per_word": "count?",
    "word_tokenizer_type": "name?",
    "subword_tokenizer_type": "name?",
    "keep_accents": "flag?",
    "split_by_punct": "flag?",
    "add_prefix_space": "flag?",
    "add_bos_token": "flag?",
    "add_eos_token": "flag?",
    # Written by kerasbert.
    "normalize": "name?",
    "split_on": "name?",
}
# For settings of a `tokenizer.json` that may have any value, because the tokenizer follows it or
# ids do not depend on it.
ANY = object()
# All fields of a `tokenizer.json`, of its models and of its added tokens. Any other field could
# change ids in an unknown way, so it is rejected.
_JSON_FIELDS = (
    *("version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer"),
    *("post_processor", "decoder", "model"),
)
_MODEL_FIELDS = {
    "WordPiece": ("unk_token", "continuing_subword_prefix", "max_input_chars_per_word"),
    "BPE": (
        *("unk_token", "continuing_subword_prefix", "merges", "dropout", "end_of_word_suffix"),
        *("fuse_unk", "byte_fallback", "ignore_merges"),
    ),
    "Unigram": ("unk_id", "byte_fallback"),
}
_ADDED_FIELDS = ("id", "content", "single_word", "lstrip", "rstrip", "normalized", "special")
_JSON = {
    "truncation": "object?",
    "padding": "object?",
    "model": "object?",
    "added_tokens": "list?",
    "normalizer": "object?",
    "pre_tokenizer": "object?",
    "post_processor": "object?",
}
_MODEL = {
    "max_input_chars_per_word": "count?",
    "fuse_unk": "flag?",
    "ignore_merges": "flag?",
    "end_of_word_suffix": "name?",
    "type": "name?",
    "unk_token": "name?",
    "continuing_subword_prefix": "name?",
    "merges": "list?",
    "unk_id": "whole?",
    "byte_fallback": "flag?",
}
_STEP = {
    "type": "name?",
    "lowercase": "flag?",
    "strip_accents": "flag?",
    "handle_chinese_chars": "flag?",
    "use_regex": "flag?",
    "add_prefix_space": "flag?",
    "prepend_scheme": "name?",
    "precompiled_charsmap": "name?",
    "single": "list?",
    "pair": "list?",
    "cls": "list?",
    "sep": "list?",
}
# For the parts of a `tokenizer.json`: a verb phrase for errors, and the field with a sequence's
# steps.
_PARTS = {
    "normalizer": ("normalizes text with", "normalizers"),
    "pre_tokenizer": ("splits words with", "pretokenizers"),
    "post_processor": ("frames rows with", "processors"),
}
_WAY_OUT = "load the model with preprocessor=None and pass token ids."
# Classes of `transformers` that add special tokens as `tokenizer.json` says, not by own rules.
GENERIC = ("PreTrainedTokenizerFast", "PreTrainedTokenizer", "TokenizersBackend")
_GENERIC = (None, "", *GENERIC)


def read_vocabulary(path):
    """Read a `vocab.txt`: one token per line, in the order of the ids.

    Only the newline is stripped, because a token may be an unusual Unicode space.
    """
    lines = _lines_of(path)
    while lines and not lines[-1]:
        lines.pop()
    if not lines:
        raise ValueError(f"The vocabulary file '{path}' is empty; download it again.")
    return lines


def read_merges(path):
    """Read a `merges.txt`: one pair per line, most frequent first."""
    return [line for line in _lines_of(path) if line and not line.startswith("#version")]


def _lines_of(path):
    """Return the lines of a file without line ends, of Unix or Windows."""
    with open(path, "rb") as file:
        data = file.read()
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"'{path}' is not UTF-8 (byte {error.start}); download it again."
        ) from None
    return [line[:-1] if line.endswith("\r") else line for line in lines]


def as_lines(tokens):
    """Return the content of a `vocab.txt` or a `merges.txt`: the reverse of reading it."""
    return "".join(f"{token}\n" for token in tokens).encode()


def tokens_by_id(vocabulary):
    """Convert a dict of token to id to a list in the order of the ids.

    Raises:
        ValueError: for an id that is not a whole number from 0, that two tokens share, or that is
            so large that the vocabulary would be mostly empty.
    """
    return _place([], {}, vocabulary.items())


def _place(tokens, known, more):
    """Insert tokens into a list at their ids; `known` has the ids of the tokens in it."""
    tokens, known = list(tokens), dict(known)
    more = [(token, id) for token, id in more if token not in known]
    limit = 2 * (len(tokens) + len(more)) + SPARE
    for token, id in more:
        if not is_whole(id) or not 0 <= id < limit:
            raise ValueError(
                f"The token {token!r} has the id {id!r}, expected one from 0 to {limit - 1} for "
                f"{len(tokens) + len(more)} tokens; download the file again."
            )
        tokens.extend(_NONE.format(i) for i in range(len(tokens), id + 1))
        if tokens[id] != _NONE.format(id):
            raise ValueError(
                f"The tokens {tokens[id]!r} and {token!r} share the id {id}, but each needs its "
                "own; download the file again."
            )
        tokens[id] = token
    return tokens


def _settings(token):
    """Return an added token's content and its true settings."""
    names = ("lstrip", "rstrip", "normalized", "single_word", "special", "control")
    return {"content": token["content"], **{name: True for name in names if token.get(name)}}


def _fits(value, values):
    """Return whether a value of a `tokenizer.json` is one of `values`; 0 is not `False`."""
    return values is ANY or any(value == x and type(value) is type(x) for x in values)


def _special_of(part):
    """Return the special token in a part of a template; `None` for the place of a text."""
    special = part.get("SpecialToken") if isinstance(part, dict) else None
    token = special.get("id") if isinstance(special, dict) else None
    return token if isinstance(token, str) else None


class UnsupportedError(ValueError):
    """The files are valid, but have a step or an option that the class does not support."""


class TokenizerFiles:
    """The tokenizer files of a directory.

    Args:
        directory: string.
    """

    def __init__(self, directory):
        self.directory = os.fspath(directory)
        if not os.path.isdir(self.directory):
            raise ValueError(f"'{self.directory}' is not a directory.")
        settle(self.directory)
        self.config = self.read_json("tokenizer_config.json", _CONFIG)
        self.special_tokens_map = self.read_json("special_tokens_map.json", _TOKENS)
        self.json = self.read_json("tokenizer.json", _JSON)
        self.model = self.json.get("model") or {}
        self._check_sides()
        if self.json:
            self._check_names("a field", self.json, _JSON_FIELDS)
        if self.model:
            self._check_model()

    def path(self, *names):
        """Return the path of the first of these files that exists, or `None`."""
        paths = (os.path.join(self.directory, name) for name in names)
        return next(filter(os.path.isfile, paths), None)

    def read_json(self, name, kinds=()):
        """Read a JSON object and check its fields; it is empty if the file does not exist."""
        path = self.path(name)
        if path is None:
            return {}
        data = read_json(path)
        check_fields(data, dict(kinds), path)
        return data

    def _check_names(self, what, found, known):
        """Raise for an unknown field of the `tokenizer.json`."""
        for name in found:
            if name not in known:
                raise ValueError(
                    f"The tokenizer.json in '{self.directory}' has {what} {name!r}, which is "
                    f"unknown and may change the tokens; {_WAY_OUT}"
                )

    def _check_sides(self):
        """Raise if texts are truncated at their beginning."""
        for path, side in (
            (self.path("tokenizer_config.json"), self.config.get("truncation_side")),
            (self.path("tokenizer.json"), (self.json.get("truncation") or {}).get("direction")),
        ):
            if side not in (None, "right", "Right"):
                raise ValueError(
                    f"'{path}' has truncation_side='{side}', but kerasbert truncates texts at the "
                    "end; set it to 'right' if the model was trained with that, or truncate the "
                    "texts yourself."
                )

    def follow(self, part, cls, known, orders=None):
        """Return the steps of a part of the `tokenizer.json`, all supported by a class.

        Args:
            part: string. "normalizer", "pre_tokenizer" or "post_processor".
            cls: type. The tokenizer's class, for errors.
            known: dict of a step's type to a list of its valid forms, each a dict of field to
                allowed values or `ANY`.
            orders: list of valid lists of types, or `None` for any order.

        Raises:
            ValueError: for an unsupported type, field, value or order.
        """
        verb, inner = _PARTS[part]
        if part not in self.json:
            return []  # Without the part, the class applies its default.
        steps = self.normalizers() if part == "normalizer" else self._steps(part, inner)
        kinds = [step.get("type") for step in steps]
        if any(kind not in known for kind in kinds) or orders and kinds not in orders:
            said = " or ".join(map(str, orders)) if orders else ", ".join(known)
            raise UnsupportedError(
                f"The tokenizer.json in '{self.directory}' {verb} {kinds}, but {cls.__name__} "
                f"supports {said}; {_WAY_OUT}"
            )
        for step in steps:
            forms = [{"type": ANY, **form} for form in known[step["type"]]]
            wrong = [
                [name for name, x in step.items() if not _fits(x, form.get(name, ()))]
                for form in forms
            ]
            if all(wrong):
                name = min(wrong, key=len)[0]
                raise UnsupportedError(
                    f"The tokenizer.json in '{self.directory}' {verb} {step['type']} with {name}="
                    f"{reprlib.repr(step[name])}, which {cls.__name__} does not support; {_WAY_OUT}"
                )
        return steps

    def follow_model(self, cls, known):
        """Raise for model options that a class does not support.

        Args:
            cls: type. The tokenizer's class.
            known: dict of option to its supported values.
        """
        for name, values in known.items():
            if name in self.model and not _fits(self.model[name], values):
                raise UnsupportedError(
                    f"The tokenizer.json in '{self.directory}' has {name}="
                    f"{reprlib.repr(self.model[name])} in its model, which {cls.__name__} does not "
                    f"support; {_WAY_OUT}"
                )

    def checked(self, tokenizer):
        """Return a tokenizer after checking that the files add the same special tokens."""
        by_itself = self.config.get("tokenizer_class") not in _GENERIC
        if "post_processor" not in self.json or by_itself and not self.json["post_processor"]:
            return tokenizer  # The class in transformers adds them.
        found = self._rows(type(tokenizer))
        cls, sep = tokenizer.cls_token, tokenizer.sep_token
        single = [cls, None, sep]
        pair = [*single, *[sep] * (tokenizer.num_separators - 1), None, sep]
        if tokenizer.begins_second:
            pair = [*single, *single]
        if getattr(tokenizer, "marks_last", False):
            single, pair = [None, sep, cls], [None, sep, None, sep, cls]
        if not getattr(tokenizer, "marks_ends", True):
            single, pair = [None], [None, None]
        for step in self._steps("post_processor", "processors"):
            named = step.get("special_tokens") or {}
            for token, part in named.items() if isinstance(named, dict) else ():
                ids = part.get("ids") if isinstance(part, dict) else None
                if token in single and ids != [tokenizer.token_to_id(token)]:
                    raise ValueError(
                        f"The tokenizer.json in '{self.directory}' frames rows with ids={ids} for "
                        f"{token!r}, whose id is {tokenizer.token_to_id(token)}; download it again."
                    )
        for name, row, wanted in zip(("a text", "a pair"), found, (single, pair)):
            if row != wanted:
                texts = [" ".join(token or "..." for token in one) for one in (row, wanted)]
                raise ValueError(
                    f"The tokenizer.json in '{self.directory}' frames {name} as {texts[0]!r}, but "
                    f"preprocessors as {texts[1]!r}; {_WAY_OUT}"
                )
        return tokenizer

    def _rows(self, cls):
        """Return the layouts of a text and a pair: lists of special tokens, `None` for texts."""
        ends = {"cls": ANY, "sep": ANY, "trim_offsets": ANY, "add_prefix_space": ANY}
        known = {
            "TemplateProcessing": [{"single": ANY, "pair": ANY, "special_tokens": ANY}],
            "BertProcessing": [ends],
            "RobertaProcessing": [ends],
            "ByteLevel": [{"trim_offsets": ANY, "add_prefix_space": ANY, "use_regex": ANY}],
        }
        steps = self.follow("post_processor", cls, known)
        steps = [step for step in steps if step["type"] != "ByteLevel"]
        name = self.config.get("tokenizer_class")
        flags = [bool(self.config.get(f"add_{name}_token")) for name in ("bos", "eos")]
        if any(flags) and (name in _GENERIC or not steps):
            bos, eos = (
                [self._special_token(f"{role}_token")] if flag else []
                for role, flag in zip(("bos", "eos"), flags)
            )
            single = [*bos, None, *eos]
            return single, [*single, *single]
        single, pair = [None], [None, None]
        for step in steps:
            if step["type"] == "TemplateProcessing":
                single, pair = (
                    [_special_of(part) for part in step.get(name) or []]
                    for name in ("single", "pair")
                )
                continue
            first, last = (self._end(step, name) for name in ("cls", "sep"))
            single = [first, None, last]
            between = [last] if step["type"] == "BertProcessing" else [last, last]
            pair = [first, None, *between, None, last]
        return single, pair

    def _end(self, step, name):
        """Return the token that a step puts at one end of a row."""
        end = step.get(name)
        if not isinstance(end, list) or not end or not isinstance(end[0], str):
            raise ValueError(
                f"'{self.path('tokenizer.json')}' has {name}={reprlib.repr(end)} in its "
                f"{step['type']}, expected a token and its id; download it again."
            )
        return end[0]

    def _check_model(self):
        """Raise unless the model in the `tokenizer.json` is valid for its kind."""
        path, model = self.path("tokenizer.json"), self.model
        check_fields(model, _MODEL, path)
        fields = _MODEL_FIELDS.get(self.kind())
        if fields is not None:
            self._check_names("an option of its model,", model, ("type", "vocab", *fields))
        if "vocab" not in model:
            raise ValueError(f"The model in '{path}' has no 'vocab'; download it again.")
        kind, vocabulary = self.kind(), model["vocab"]
        check_value("vocab", vocabulary, "list" if kind == "Unigram" else "object", path)
        if kind == "BPE":
            check_value("merges", model.get("merges"), "list", path)
        if kind != "Unigram":
            return
        for id, row in enumerate(vocabulary):
            fits = isinstance(row, list) and len(row) == 2 and isinstance(row[0], str)
            fits = fits and isinstance(row[1], (int, float)) and math.isfinite(row[1])
            if not fits:
                raise ValueError(
                    f"Piece {id} in '{path}' is {reprlib.repr(row)}, expected a string and a "
                    "number; download it again."
                )
        unknown = model.get("unk_id")
        if unknown is not None and unknown >= len(vocabulary):
            raise ValueError(
                f"'{path}' has unk_id={unknown}, which is not one of its {len(vocabulary)} pieces; "
                "download it again."
            )

    def check_fixed(self):
        """Raise if texts are tokenized at random."""
        if self.model.get("dropout"):
            raise ValueError(
                f"'{self.path('tokenizer.json')}' has dropout={self.model['dropout']}, with which "
                "a text has other tokens each time; set it to null."
            )

    def numbered_tokens(self):
        """Return the added tokens of all files, as in a `tokenizer.json`."""
        flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
        return [
            {
                "id": id,
                "content": token["content"],
                **{flag: bool(token.get(flag)) for flag in flags},
            }
            for id, token in self.added_tokens().items()
        ]

    def unnumbered_tokens(self, tokens):
        """Return special tokens that files name without an id; those not in `tokens` come last."""
        known = {token["content"] for token in self.added_tokens().values()}
        ids = {token: id for id, token in enumerate(tokens)}
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        names = [name for name in self._special_by_name() if name not in known]
        for name in names:
            ids.setdefault(name, len(ids))
        return [{"id": ids[name], "content": name, **flags, "special": True} for name in names]

    def names_token(self, role):
        """Return whether the files name the token with a role, such as "pad"."""
        return self._special_token(f"{role}_token") is not None

    def frame(self, cls):
        """Return the arguments that follow from the tokens at the ends of rows.

        Args:
            cls: type. The tokenizer's class, for errors.
        """
        if "post_processor" not in self.json or not self.json["post_processor"]:
            return {}
        flags = [self.config.get(f"add_{name}_token") for name in ("bos", "eos")]
        single, pair = self._rows(cls)
        if (
            any(flags)
            or len(single) != 3
            or single[1] is not None
            or None in (single[0], single[2])
        ):
            return {}  # `checked` describes it.
        between = pair[2 : len(pair) - 2]
        return {
            "cls_token": single[0],
            "sep_token": single[2],
            "num_separators": max(len(between), 1),
            "begins_second": between[-1:] == single[:1] != single[2:],
        }

    def model_type(self):
        """Return the model's kind, a key of `MODEL_FILES`; `None` if no file determines it."""
        if self.model:
            return "ByteFallback" if self.model.get("byte_fallback") else self.kind()
        return next((kind for kind, names in MODEL_FILES.items() if self.path(*names)), None)

    def kind(self):
        """Return the model's type as named in the `tokenizer.json`."""
        kind = self.model.get("type")
        if kind is None:  # Files of 2020 omit it.
            kind = "BPE" if "merges" in self.model else "WordPiece"
            kind = "Unigram" if isinstance(self.model.get("vocab"), list) else kind
        return kind

    def require(self, kind, cls):
        """Raise unless the directory has a model of this kind."""
        found = self.model_type()
        if found == kind or self.path(*MODEL_FILES[kind]):
            return
        names = " or ".join(f"'{name}'" for name in (*MODEL_FILES[kind], "tokenizer.json"))
        if found is None:
            raise ValueError(f"{cls.__name__} needs {names} in '{self.directory}'; download it.")
        raise ValueError(
            f"{cls.__name__} needs a {kind} model, but '{self.directory}' has a {found} model; "
            "use `kerasbert.tokenizers.tokenizer_from_files`, which chooses the class."
        )

    def added_tokens(self):
        """Return added tokens by id: dicts of `content` and their settings."""
        # Files may repeat a token; as in transformers, later files take precedence.
        named = {*self._roles().values(), *self._special_by_name()}
        tokens = {}
        for content, id in self.read_json("added_tokens.json").items():
            settings = {"special": content in named, "normalized": content not in named}
            self._add(tokens, {}, id, {"content": content, **settings}, "added_tokens.json")
        there = {}
        for token in self.json.get("added_tokens") or []:
            id = token.get("id") if isinstance(token, dict) else None
            self._add(tokens, there, id, token, "tokenizer.json")
            self._check_names(f"for the added token {token['content']!r}", token, _ADDED_FIELDS)
        there = {}
        for id, token in (self.config.get("added_tokens_decoder") or {}).items():
            id = int(id) if id.isascii() and id.isdigit() and len(id) < 10 else id
            self._add(tokens, there, id, token, "tokenizer_config.json")
        return {id: _settings(token) for id, token in sorted(tokens.items())}

    def found_tokens(self, tokens):
        """Return the `added_tokens` argument for a tokenizer with these tokens.

        By default, tokens with `control` stay text: those with a role, such as `[CLS]`, and all
        special tokens if transformers does not match them (`split_special_tokens`).
        """
        found = {token["content"]: token for token in self.added_tokens().values()}
        for content, token in self._special_by_name().items():
            found[content] = {**token, **found.get(content, {}), "special": True}
        roles = set(self._roles().values())
        splits = self.config.get("split_special_tokens")
        known = set(tokens)
        return [
            _settings({**token, "control": content in roles or splits and token.get("special")})
            for content, token in found.items()
            if content in known
        ]

    def _roles(self):
        """Return the tokens with a role in the files: a dict of role, such as "cls", to token."""
        found = {role: self._special_token(f"{role}_token") for role in (*ROLES, "bos", "eos")}
        return {role: token for role, token in found.items() if token}

    def _special_by_name(self):
        """Return further special tokens that the files name without an id, by content."""
        found = {}
        for name, where in (
            ("special_tokens_map.json", self.special_tokens_map),
            ("tokenizer_config.json", self.config),
        ):
            for key in ("additional_special_tokens", "extra_special_tokens"):
                tokens = where.get(key) or []
                if not isinstance(tokens, dict):
                    check_value(key, tokens, "list", self.path(name))
                # In a dict, each token has its own name.
                for token in tokens.values() if isinstance(tokens, dict) else tokens:
                    check_value(f"a token of {key}", token, "token", self.path(name))
                    token = token if isinstance(token, dict) else {"content": token}
                    found[token["content"]] = {**token, "special": True}
        return found

    def longest_word(self):
        """Return the maximum length of a word that WordPiece splits into pieces."""
        # Without a tokenizer.json, it is in the configuration; 200 is the default of Google's code.
        said = self.config.get("max_input_chars_per_word")
        said = self.model.get("max_input_chars_per_word", said)
        is_googles = self.path("bert_config.json") or not self.path("config.json", *_SIDE_FILES)
        return said or (200 if is_googles else 100)

    def _add(self, tokens, there, id, token, name):
        """Insert an added token at its id; `there` has the tokens of the same file."""
        path = self.path(name)
        check_value("an added token", token, "object", path)
        check_value("the content of an added token", token.get("content"), "name", path)
        check_value(f"the id of {token['content']!r}", id, "whole", path)
        if there.setdefault(id, token["content"]) != token["content"]:
            raise ValueError(
                f"The added tokens {there[id]!r} and {token['content']!r} in '{path}' share the id "
                f"{id}, but each needs its own; download it again."
            )
        tokens[id] = token

    def with_added_tokens(self, tokens):
        """Return the tokens in the order of their ids, with added tokens at their ids."""
        tokens = list(tokens)
        known = {token: id for id, token in enumerate(tokens)}
        added = self.added_tokens().items()
        tokens = _place(tokens, known, ((token["content"], id) for id, token in added))
        known = set(tokens)
        # Tokens without an id in any file get the next ones.
        return [*tokens, *(token for token in self._special_by_name() if token not in known)]

    def special_tokens(self, cls, tokens):
        """Return `{"unk_token": ...}` from the files, else the class's or other usual names."""
        parameters = inspect.signature(cls).parameters
        tokens = set(tokens)
        names = {}
        for role in ROLES:
            name = f"{role}_token"
            token = self._special_token(name)
            if token is None and role in _ALSO:
                token = self._special_token(f"{_ALSO[role]}_token")
            if token is None and role == "unk":
                token = self.model.get("unk_token")
            usual = [parameters[name].default, *USUAL[role]]
            there = [x for x in usual if x in tokens]
            names[name] = token or (there or usual)[0]
        for name, token in names.items():
            # One token may serve as all of them, as in GPT-2.
            if token not in tokens and parameters[name].default == parameters["sep_token"].default:
                names[name] = names["sep_token"]
        return names

    def _special_token(self, name):
        token = self.config.get(name) or self.special_tokens_map.get(name)
        return token.get("content") if isinstance(token, dict) else token

    def row_tokens(self):
        """Return `cls_token`, `sep_token` and `begins_second`: the tokens at the ends of rows.

        Files may name a `cls_token` and a `sep_token` that no row has, besides a `bos_token` and an
        `eos_token` that each row has.
        """
        steps = self._steps("post_processor", "processors")
        template = next((step for step in steps if step.get("type") == "TemplateProcessing"), {})
        single, pair = (
            [_special_of(part) for part in template.get(name) or []] for name in ("single", "pair")
        )
        flags = [bool(self.config.get(f"add_{name}_token")) for name in ("bos", "eos")]
        if any(flags) or not single:
            found = {
                f"{ours}_token": self._special_token(f"{t}_token") for ours, t in _ALSO.items()
            }
            begins = all(flags)
        else:
            found = {"cls_token": single[0], "sep_token": single[-1]}
            begins = single[0] is not None and pair.count(single[0]) == 2
        return {role: token for role, token in found.items() if token} | {"begins_second": begins}

    def settings(self):
        """Return further arguments that all tokenizers share."""
        split = self.config.get("split_special_tokens")
        found = {} if split is None else {"special_tokens_in_strings": not split}
        form = self.normal_form()
        return found if form is None else {**found, "normalize": form}

    def normal_form(self):
        """Return the normal form that is applied to texts first, or `None`."""
        steps = [step.get("type") for step in self._normalizers()]
        is_first = len(steps) > 1 and steps[0] in FORMS and steps[1] == "BertNormalizer"
        return self.config.get("normalize") or (steps[0] if is_first else None)

    def normalizers(self):
        """Return the `tokenizer.json`'s steps before words are split, without `normal_form`."""
        steps, form = self._normalizers(), self.normal_form()
        return steps[1:] if form and steps and steps[0].get("type") == form else steps

    def _normalizers(self):
        return self._steps("normalizer", "normalizers")

    def pre_tokenizers(self):
        """Return the `tokenizer.json`'s steps that split words."""
        return self._steps("pre_tokenizer", "pretokenizers")

    def _steps(self, name, inner):
        path, steps = self.path("tokenizer.json"), []
        rest = [self.json[name]] if self.json.get(name) else []
        while rest:
            step = rest.pop(0)
            check_value(name, step, "object", path)
            check_fields(step, _STEP, path)
            if step.get("type") == "Sequence":
                check_value(inner, step.get(inner), "list", path)
                rest = step[inner] + rest
            else:
                steps.append(step)
        return steps
