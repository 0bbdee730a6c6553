"""What the files of a checkpoint say about its tokenizer."""

import inspect
import json
import os

ROLES = ("unk", "cls", "sep", "pad", "mask")
# Names in use, for directories that do not say.
USUAL = {
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "pad": ("[PAD]", "<pad>"),
    "mask": ("[MASK]", "<mask>"),
}
# Kinds of models in a `tokenizer.json`, and the files that hold the same.
MODEL_FILES = {
    "WordPiece": ("vocab.txt",),
    "BPE": ("vocab.json",),
    "Unigram": ("spiece.model", "sentencepiece.bpe.model"),
}


def read_vocabulary(path):
    """Read a `vocab.txt`: one token a line, the line number is the id.

    Only the newline is taken off: a token may itself be an odd Unicode space.
    """
    with open(path, "rb") as file:
        data = file.read()
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"'{path}' is not UTF-8 (byte {error.start}).") from None
    lines = [line[:-1] if line.endswith("\r") else line for line in lines]
    while lines and not lines[-1]:
        lines.pop()
    if not lines:
        raise ValueError(f"The vocabulary file '{path}' is empty.")
    return lines


def read_merges(path):
    """Read a `merges.txt`: one pair a line, the most frequent first."""
    with open(path, encoding="utf-8", newline="\n") as file:
        lines = [line.rstrip("\r\n") for line in file]
    return [line for line in lines if line and not line.startswith("#version")]


def tokens_by_id(vocabulary):
    """A dict of tokens to ids as a list in the order of the ids."""
    size = max(vocabulary.values(), default=-1) + 1
    tokens = [f"[no token {id}]" for id in range(size)]
    for token, id in vocabulary.items():
        tokens[id] = token
    return tokens


class TokenizerFiles:
    """What the tokenizer files of a directory say.

    Args:
        directory: string.
    """

    def __init__(self, directory):
        self.directory = os.fspath(directory)
        if not os.path.isdir(self.directory):
            raise ValueError(f"'{self.directory}' is not a directory.")
        self.config = self.read_json("tokenizer_config.json")
        self.special_tokens_map = self.read_json("special_tokens_map.json")
        self.json = self.read_json("tokenizer.json")
        self.model = self.json.get("model") or {}
        if self.model and "vocab" not in self.model:
            raise ValueError(f"The model in '{self.path('tokenizer.json')}' has no 'vocab'.")

    def path(self, *names):
        """Path of the first of these files that is there, or `None`."""
        for name in names:
            path = os.path.join(self.directory, name)
            if os.path.isfile(path):
                return path
        return None

    def read_json(self, name):
        """A JSON object of the directory; empty if there is no such file."""
        path = self.path(name)
        if path is None:
            return {}
        try:
            with open(path, encoding="utf-8-sig") as file:
                data = json.load(file)
        except ValueError as error:
            raise ValueError(f"'{path}' is not JSON ({error}): fetch it again.") from None
        if not isinstance(data, dict):
            raise ValueError(f"'{path}' holds a JSON {type(data).__name__}, not an object.")
        return data

    def model_type(self):
        """ "WordPiece", "BPE" or "Unigram"; `None` if no file tells."""
        if self.model:
            kind = self.model.get("type")
            if kind is None:  # files of 2020 leave it out
                kind = "BPE" if "merges" in self.model else "WordPiece"
                kind = "Unigram" if isinstance(self.model.get("vocab"), list) else kind
            return kind
        for kind, names in MODEL_FILES.items():
            if self.path(*names):
                return kind
        return None

    def require(self, kind, cls):
        """Raise unless the directory has a model of this kind."""
        found = self.model_type()
        if found == kind or self.path(*MODEL_FILES[kind]):
            return
        names = " or ".join(f"'{name}'" for name in (*MODEL_FILES[kind], "tokenizer.json"))
        if found is None:
            raise ValueError(f"{cls.__name__} needs {names} in '{self.directory}'.")
        raise ValueError(
            f"{cls.__name__} needs a {kind} model, but '{self.directory}' has a {found} model: "
            "use `kerasbert.tokenizers.tokenizer_from_files`, which picks the class."
        )

    def added_tokens(self):
        """Added tokens by id: dicts of `content` and their settings."""
        tokens = {}
        for token, id in self.read_json("added_tokens.json").items():
            tokens[id] = {"content": token}
        for id, token in (self.config.get("added_tokens_decoder") or {}).items():
            tokens[int(id)] = token
        for token in self.json.get("added_tokens") or []:
            tokens[token["id"]] = token
        names = ("content", "lstrip", "rstrip", "normalized", "single_word", "special")
        return {
            id: {name: token[name] for name in names if token.get(name)}
            for id, token in sorted(tokens.items())
        }

    def with_added_tokens(self, tokens):
        """The tokens, in the order of their ids, and the added ones at theirs."""
        tokens = list(tokens)
        known = set(tokens)
        for id, token in self.added_tokens().items():
            if token["content"] in known:
                continue
            tokens.extend(f"[no token {i}]" for i in range(len(tokens), id + 1))
            tokens[id] = token["content"]
        return tokens

    def special_tokens(self, cls, tokens):
        """`{"unk_token": ...}`: as the files say, else as is usual for the class or for others."""
        parameters = inspect.signature(cls).parameters
        tokens = set(tokens)
        names = {}
        for role in ROLES:
            name = f"{role}_token"
            token = self.config.get(name) or self.special_tokens_map.get(name)
            token = token.get("content") if isinstance(token, dict) else token
            if token is None and role == "unk":
                token = self.model.get("unk_token")
            usual = [parameters[name].default, *USUAL[role]]
            there = [x for x in usual if x in tokens]
            names[name] = token or (there or usual)[0]
        return names

    def normalizers(self):
        """The steps of the `tokenizer.json` before words are split."""
        return _steps(self.json.get("normalizer"), "normalizers")

    def pre_tokenizers(self):
        """The steps of the `tokenizer.json` that split words."""
        return _steps(self.json.get("pre_tokenizer"), "pretokenizers")


def _steps(step, inner):
    if not step:
        return []
    if step.get("type") == "Sequence":
        return [x for part in step[inner] for x in _steps(part, inner)]
    return [step]
