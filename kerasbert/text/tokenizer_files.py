"""The tokenizer files of a checkpoint."""

import inspect
import os

from kerasbert.base.errors import check_fields, check_value
from kerasbert.base.files import read_json, settle
from kerasbert.text.alignment import FORMS
from kerasbert.text.languages import languages_of
from kerasbert.text.tokenizer_json import (
    ADDED_FIELDS,
    CONTENT,
    check_content,
    check_names,
    model_kind,
    steps_of,
)
from kerasbert.text.vocabulary_files import place_tokens

ROLES = ("unk", "cls", "sep", "pad", "mask")
# Roles of models with begin and end tokens instead of class and separator.
ALSO = {"cls": "bos", "sep": "eos"}
# Usual special tokens, if files do not specify them.
USUAL = {
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "pad": ("[PAD]", "<pad>"),
    "mask": ("[MASK]", "<mask>"),
}
# Kinds of models in a `tokenizer.json`, and other files of the same model.
MODEL_FILES = {
    "WordPiece": ("vocab.txt",),
    "BPE": ("vocab.json",),
    "Unigram": (*("spiece.model", "sentencepiece.bpe.model", "sentencepiece.model", "spm.model"),),
    # Unigram or byte-pair model with byte fallback.
    "ByteFallback": ("tokenizer.model",),
}
_TOKENS = {f"{role}_token": "token?" for role in (*ROLES, "bos", "eos")}
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
    "do_lowercase_and_remove_accent": "flag?",
    "do_lowercase": "flag?",
    "lang2id": "object?",
    # Written by kerasbert.
    "normalize": "name?",
    "split_on": "name?",
}
# Classes of `transformers` that add special tokens by the `tokenizer.json`, not by own rules.
GENERIC = ("PreTrainedTokenizerFast", "PreTrainedTokenizer", "TokenizersBackend")


def _settings(token):
    """Return an added token's content and true settings as a dict."""
    names = ("lstrip", "rstrip", "normalized", "single_word", "special", "control")
    return {"content": token["content"], **{name: True for name in names if token.get(name)}}


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
        self.json = self.read_json("tokenizer.json", CONTENT)
        self.model = self.json.get("model") or {}
        self._check_sides()
        if self.json:
            check_content(self.json, self.directory)

    def path(self, *names):
        """Return the path of the first existing file, or `None`."""
        paths = (os.path.join(self.directory, name) for name in names)
        return next(filter(os.path.isfile, paths), None)

    def read_json(self, name, kinds=()):
        """Return a JSON object with checked fields, or an empty dict without the file."""
        path = self.path(name)
        if path is None:
            return {}
        data = read_json(path)
        check_fields(data, dict(kinds), path)
        return data

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

    def check_fixed(self):
        """Raise if the files tokenize texts at random."""
        if self.model.get("dropout"):
            raise ValueError(
                f"'{self.path('tokenizer.json')}' has dropout={self.model['dropout']}, which "
                "gives a text different tokens each time; set it to null."
            )

    def numbered_tokens(self):
        """Return the added tokens of all files in the form of a `tokenizer.json`."""
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
        """Return special tokens without an id, those not in `tokens` last."""
        known = {token["content"] for token in self.added_tokens().values()}
        ids = {token: id for id, token in enumerate(tokens)}
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        names = [name for name in self._special_by_name() if name not in known]
        for name in names:
            ids.setdefault(name, len(ids))
        return [{"id": ids[name], "content": name, **flags, "special": True} for name in names]

    def names_token(self, role):
        """Return whether the files specify the token of a role, such as "pad"."""
        return self.special_token(f"{role}_token") is not None

    def model_type(self):
        """Return the model's kind, a key of `MODEL_FILES`, or `None`."""
        if self.model:
            return "ByteFallback" if self.model.get("byte_fallback") else model_kind(self.model)
        return next((kind for kind, names in MODEL_FILES.items() if self.path(*names)), None)

    def require(self, kind, cls):
        """Raise if the directory has no model of this kind."""
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
        """Return a dict of id to added token, a dict of `content` and settings."""
        # As in transformers, the last file that has a token counts.
        named = {*self._roles().values(), *self._special_by_name()}
        tokens = {}
        for content, id in self.read_json("added_tokens.json").items():
            settings = {"special": content in named, "normalized": content not in named}
            self._add(tokens, {}, id, {"content": content, **settings}, "added_tokens.json")
        there = {}
        for token in self.json.get("added_tokens") or []:
            id = token.get("id") if isinstance(token, dict) else None
            self._add(tokens, there, id, token, "tokenizer.json")
            what = f"for the added token {token['content']!r}"
            check_names(what, token, ADDED_FIELDS, self.directory)
        there = {}
        for id, token in (self.config.get("added_tokens_decoder") or {}).items():
            id = int(id) if id.isascii() and id.isdigit() and len(id) < 10 else id
            self._add(tokens, there, id, token, "tokenizer_config.json")
        return {id: _settings(token) for id, token in sorted(tokens.items())}

    def found_tokens(self, tokens):
        """Return the `added_tokens` argument for a tokenizer with these tokens.

        `control` marks tokens with a role, such as `[CLS]`, and with `split_special_tokens` all
        special tokens.
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
        """Return the files' dict of role, such as "cls", to token."""
        found = {role: self.special_token(f"{role}_token") for role in (*ROLES, "bos", "eos")}
        return {role: token for role, token in found.items() if token}

    def _special_by_name(self):
        """Return further special tokens without ids, by content."""
        found = {}
        for name, where in (
            ("special_tokens_map.json", self.special_tokens_map),
            ("tokenizer_config.json", self.config),
        ):
            for key in ("additional_special_tokens", "extra_special_tokens"):
                tokens = where.get(key) or []
                if not isinstance(tokens, dict):
                    check_value(key, tokens, "list", self.path(name))
                # A dict maps names, such as "image_token", to tokens.
                for token in tokens.values() if isinstance(tokens, dict) else tokens:
                    check_value(f"a token of {key}", token, "token", self.path(name))
                    token = token if isinstance(token, dict) else {"content": token}
                    found[token["content"]] = {**token, "special": True}
        return found

    def _add(self, tokens, there, id, token, name):
        """Insert an added token at its id; `there` has the file's earlier ones."""
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
        """Return the tokens by id, with added tokens."""
        added = self.added_tokens().items()
        tokens = place_tokens(tokens, ((token["content"], id) for id, token in added))
        known = set(tokens)
        # Tokens without an id get the next ones.
        return [*tokens, *(token for token in self._special_by_name() if token not in known)]

    def special_tokens(self, cls, tokens):
        """Return the special tokens by argument, such as "unk_token".

        Those not specified are the class's defaults or other usual names.
        """
        parameters = inspect.signature(cls).parameters
        tokens = set(tokens)
        names = {}
        for role in ROLES:
            name = f"{role}_token"
            token = self.special_token(name)
            if token is None and role in ALSO:
                token = self.special_token(f"{ALSO[role]}_token")
            if token is None and role == "unk":
                token = self.model.get("unk_token")
            usual = [parameters[name].default, *USUAL[role]]
            there = [x for x in usual if x in tokens]
            names[name] = token or (there or usual)[0]
        for name, token in names.items():
            # A single token may have all roles, as in GPT-2.
            if token not in tokens and parameters[name].default == parameters["sep_token"].default:
                names[name] = names["sep_token"]
        return names

    def special_token(self, name):
        token = self.config.get(name) or self.special_tokens_map.get(name)
        return token.get("content") if isinstance(token, dict) else token

    def settings(self):
        """Return further arguments of all tokenizers."""
        split = self.config.get("split_special_tokens")
        found = {} if split is None else {"special_tokens_in_strings": not split}
        if numbers := self.config.get("lang2id"):
            found["languages"] = languages_of(numbers, self.path("tokenizer_config.json"))
        form = self.normal_form()
        return found if form is None else {**found, "normalize": form}

    def normal_form(self):
        """Return the Unicode normal form of the first step, or `None`."""
        steps = [step.get("type") for step in self.steps("normalizer")]
        is_first = len(steps) > 1 and steps[0] in FORMS and steps[1] == "BertNormalizer"
        return self.config.get("normalize") or (steps[0] if is_first else None)

    def normalizers(self):
        """Return the normalizer steps of the `tokenizer.json`, without that of `normal_form`."""
        steps, form = self.steps("normalizer"), self.normal_form()
        return steps[1:] if form and steps and steps[0].get("type") == form else steps

    def steps(self, part):
        """Return the steps of a part of the `tokenizer.json`; see `steps_of`."""
        return steps_of(self.json, part, self.path("tokenizer.json"))
