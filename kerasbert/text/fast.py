"""`FastTokenizer`, the tokenizer of any `tokenizer.json`."""

from __future__ import annotations

import copy
import os
from typing import TYPE_CHECKING

import keras
import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.base.errors import check_value, check_whole
from kerasbert.base.files import read_json, write_files
from kerasbert.base.strict_json import to_json
from kerasbert.text import ops
from kerasbert.text.added_tokens import stands_alone
from kerasbert.text.engine import FastEngine, in_form_first
from kerasbert.text.subword import SubwordTokenizer, once
from kerasbert.text.tokenizer_files import ROLES, TokenizerFiles

if TYPE_CHECKING:
    from typing import Any, Self

    from kerasbert.base.aliases import AnyPath

CONTENT_FILE = "content.json"
# Marks of spaces in vocabularies of byte-level and SentencePiece models.
SPACES = ("Ġ", "▁")


@keras.saving.register_keras_serializable(package="kerasbert")
class FastTokenizer(SubwordTokenizer):
    """The tokenizer of any `tokenizer.json`, run by the Rust library `tokenizers`.

    `from_preset` makes one for files with steps or options that no other class has as a TensorFlow
    graph, such as those trained with the library: any normalizer, pre-tokenizer and model. Token
    ids and offsets are those of the library.

    It works wherever texts are in memory or in a local `tf.data.Dataset`. `export_serving` needs
    the graph, and names the step that has none; exports to ONNX, LiteRT, OpenVINO and the browser
    ship the file.

    Args:
        content: the path of a `tokenizer.json`, or its parsed content.
        control: list of strings. Tokens that texts do not match unless `special_tokens_in_strings`;
            the tokens with a role, such as `[SEP]`, are always among them.
        num_separators: int. Number of special tokens between the texts of a pair.
        begins_second: bool. Whether the last of these is the start token.
        missing: list of strings. Roles, such as "mask", for which the file has no token; the
            separator stands in for it where rows need one.
        reason: string. Why no other class can read the file.
        special_tokens_in_strings: bool. See `BertTokenizer`.
        unk_token, cls_token, sep_token, pad_token, mask_token: strings. Special tokens.

    Raises:
        ValueError: for a file that the library cannot read, or without the special tokens.

    Example:

    >>> import json
    >>> from tokenizers import Tokenizer, models, pre_tokenizers
    >>> words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "1"]
    >>> words = {word: id for id, word in enumerate(words)}
    >>> library = Tokenizer(models.WordLevel(words, "[UNK]"))
    >>> library.pre_tokenizer = pre_tokenizers.Digits(individual_digits=True)
    >>> FastTokenizer(json.loads(library.to_str())).tokenize("11")
    [5, 5]
    """

    def __init__(
        self,
        content: Any = None,
        control: Any = (),
        num_separators: int = 1,
        begins_second: bool = False,
        missing: Any = (),
        reason: str | None = None,
        special_tokens_in_strings: bool = False,
        unk_token: str = "[UNK]",
        cls_token: str = "[CLS]",
        sep_token: str = "[SEP]",
        pad_token: str = "[PAD]",
        mask_token: str = "[MASK]",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            special_tokens_in_strings,
            unk_token,
            cls_token,
            sep_token,
            pad_token,
            mask_token,
            **kwargs,
        )
        for name, value in (("control", control), ("missing", missing)):
            check_value(name, list(value) if isinstance(value, tuple) else value, "names")
        check_whole("num_separators", num_separators)
        check_value("begins_second", begins_second, "flag")
        check_value("reason", reason, "name?")
        self.control = list(control)
        self.missing = list(missing)
        self.num_separators = num_separators
        self.begins_second = begins_second
        self.reason = reason
        self.file_assets = [CONTENT_FILE]
        self.set_content(content)

    @classmethod
    def from_files(cls, directory: AnyPath, reason: str | None = None, **overrides: Any) -> Self:
        """Read the tokenizer of a Hugging Face directory.

        Args:
            directory: string. Has a `tokenizer.json`.
            reason: string. Why no other class can read it.
            **overrides: arguments of the constructor that replace the directory's.
        """
        files = TokenizerFiles(directory)
        if not files.model:
            raise ValueError(f"FastTokenizer needs a 'tokenizer.json' in '{directory}'.")
        files.check_fixed()
        content = {
            **files.json,
            "model": {"type": files.kind(), **files.model},
            "added_tokens": files.numbered_tokens(),
        }
        tokens = FastEngine(content).vocabulary()
        if more := files.unnumbered_tokens(tokens):
            content["added_tokens"] = sorted(
                content["added_tokens"] + more, key=lambda token: token["id"]
            )
            tokens = FastEngine(content).vocabulary()
        for token in content["added_tokens"]:
            if tokens[token["id"] : token["id"] + 1] != [token["content"]]:
                raise ValueError(
                    f"The added token {token['content']!r} in '{directory}' has the id "
                    f"{token['id']}, which the library `tokenizers` does not give it; save the "
                    "tokenizer again with the library."
                )
        special = files.special_tokens(cls, tokens) | files.frame(cls)
        missing = [
            role
            for role in ROLES
            if special[f"{role}_token"] not in tokens and not files.names_token(role)
        ]
        special |= {f"{role}_token": special["sep_token"] for role in missing}
        found = files.found_tokens(tokens)
        arguments = {
            "content": content,
            "control": [token["content"] for token in found if token.get("control")],
            "missing": missing,
            "reason": reason,
            **special,
            **files.settings(),
        }
        # The normal form is one of the file's own steps.
        arguments.pop("normalize", None)
        return files.checked(cls(**arguments | overrides))

    def set_content(self, content: Any) -> None:
        """Set the content of the `tokenizer.json`: a dict, or a path."""
        if isinstance(content, (str, os.PathLike)):
            content = read_json(content)
        check_value("content", content, "object?")
        # Bypasses Keras' attribute tracking, as for vocabularies.
        object.__setattr__(self, "content", content)
        self._set_tokens(None if content is None else FastEngine(content).vocabulary())

    def save_assets(self, dir_path: AnyPath) -> None:
        self._check_vocabulary()
        write_files(dir_path, {CONTENT_FILE: to_json(self.content, ensure_ascii=False).encode()})

    def load_assets(self, dir_path: AnyPath) -> None:
        self.set_content(os.path.join(dir_path, CONTENT_FILE))

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "content": None,  # Saved as an asset.
            "control": list(self.control),
            "num_separators": self.num_separators,
            "begins_second": self.begins_second,
            "missing": list(self.missing),
            "reason": self.reason,
        }

    @property
    def added_tokens(self) -> list[dict[str, Any]]:
        """The file's added tokens."""
        return list((self.content or {}).get("added_tokens") or [])

    @property
    def control_tokens(self) -> list[str]:
        return list(dict.fromkeys([*self.special_tokens, *self.control]))

    def check_graph(self) -> None:
        why = self.reason or "FastTokenizer runs the library `tokenizers`, which is no graph."
        raise ValueError(
            f"This tokenizer cannot run in a TensorFlow graph. {why.partition(';')[0]}. Export it "
            "with tokens_only=True, or with export_onnx, export_litert or export_openvino, which "
            "ship its tokenizer.json."
        )

    @once
    def _engine(self):
        """Return the engine of texts: control tokens are the special ones of its file."""
        control = set(self.control_tokens)
        content = copy.deepcopy(self.content)
        for token in content.get("added_tokens") or []:
            token["special"] = token["content"] in control
        content["normalizer"] = in_form_first(self.normalize, content.get("normalizer"))
        return FastEngine(content, self.special_tokens_in_strings)

    def _encode(self, name, texts):
        found = self._engine().encode(texts, offsets=name != "_tokenize")
        if self.special_tokens_in_strings:
            return found
        # The model may have a piece for a control token that its text was split into.
        has_unknown = "unk" not in self.missing
        model = self.content["model"]
        known = {model.get("unk_id"), self._token_ids.get(model.get("unk_token"))}
        known |= {self.unk_token_id} if has_unknown else set()
        control = np.array([i for i in self.special_token_ids if i not in known], "int32")
        ids = found[0].values
        is_control = np.isin(ids, control)
        if has_unknown:
            ids = np.where(is_control, self.unk_token_id, ids).astype("int32")
            return found[0].with_values(ids), *found[1:]
        kept = np.add.reduceat(np.append(~is_control, 0), found[0].row_splits[:-1])
        kept = np.where(found[0].row_lengths() > 0, kept, 0)
        return tuple(ops.Ragged.from_row_lengths(x.values[~is_control], kept) for x in found)

    def graph(self, name: str) -> Any:
        """Return `name` as a function of tensors; a graph calls back into this process."""
        self._check_vocabulary()
        if name == "_detokenize":
            return self._detokenized
        count = 1 if name == "_tokenize" else 3

        def run(texts):
            found = self._encode(name, texts.tolist())
            return found[0].row_splits, *(x.values for x in found)

        def on_tensors(texts):
            if tf.executing_eagerly():
                found = run(texts.numpy())
            else:
                found = tf.numpy_function(run, [texts], [tf.int64, *[tf.int32] * count])
                for x in found:
                    x.set_shape([None])
            splits, *values = found
            rows = [tf.RaggedTensor.from_row_splits(x, splits, validate=False) for x in values]
            return rows[0] if count == 1 else tuple(rows)

        return on_tensors

    def _detokenized(self, ids):
        def run(values, splits):
            rows = ops.Ragged(values, splits).to_list()
            self._check_ids(rows)
            return np.array([text.encode() for text in self._engine().decode(rows)], object)

        if tf.executing_eagerly():
            return tf.constant(run(ids.values.numpy(), ids.row_splits.numpy()))
        texts = tf.numpy_function(run, [ids.values, ids.row_splits], tf.string)
        texts.set_shape([None])
        return texts

    def _decode(self, rows):
        return self._engine().decode(rows)

    def _word_edges(self, token):
        model = self.content["model"]
        prefix, suffix = (
            model.get(name) for name in ("continuing_subword_prefix", "end_of_word_suffix")
        )
        if suffix:
            return False, token.endswith(suffix)
        if prefix:
            return not token.startswith(prefix), False
        for mark in SPACES:
            token = token.replace(mark, " ")
        if not token.strip():
            return token == " ", False
        return tuple(char.isspace() or stands_alone(char) for char in (token[0], token[-1]))
