"""`FastTokenizer`, the tokenizer of any `tokenizer.json`."""

from __future__ import annotations

import copy
import os
from typing import TYPE_CHECKING

import keras
import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.base.errors import check_fields, check_value
from kerasbert.base.files import read_json, write_files
from kerasbert.base.strict_json import to_json
from kerasbert.text import ops
from kerasbert.text.added_tokens import stands_alone
from kerasbert.text.engine import FastEngine, in_form_first
from kerasbert.text.fast_graph.decoders import Decoder
from kerasbert.text.fast_graph.graph import FastGraph
from kerasbert.text.packing import Frame
from kerasbert.text.subword import SubwordTokenizer, once
from kerasbert.text.tokenizer_files import ROLES, TokenizerFiles
from kerasbert.text.tokenizer_inputs import called_from_graphs, check_ids
from kerasbert.text.tokenizer_json import UnsupportedError, model_kind, steps_of
from kerasbert.text.tokenizer_rows import check_rows, frame_tokens

if TYPE_CHECKING:
    from typing import Any, Self

    from kerasbert.base.aliases import AnyPath

CONTENT_FILE = "content.json"
SPACES = ("Ġ", "▁")


@keras.saving.register_keras_serializable(package="kerasbert")
class FastTokenizer(SubwordTokenizer):
    """The tokenizer of any `tokenizer.json`, run by the Rust library `tokenizers`.

    `from_preset` makes one if a file has steps or options for which no other class has a TensorFlow
    graph. Token ids and offsets are those of the library.

    Texts in memory are tokenized by the library. In a `tf.data.Dataset` and in SavedModels, nearly
    all steps run in a TensorFlow graph with the same results. For a step that cannot, such as a
    regular expression with a backreference, `export_serving` raises an error with its name, and a
    local `tf.data.Dataset` calls the library. Exports to ONNX, LiteRT, OpenVINO and the browser
    contain the file.

    Args:
        content: path or parsed content of a `tokenizer.json`.
        control: list of strings. Tokens that texts match only with `special_tokens_in_strings`,
            besides those with a role, such as `[SEP]`.
        frame: dict of lists of tokens. Special tokens of rows: "before", "between", "begin" and
            "after", for `before A after` and `before A between begin B after`, where `begin B
            after` has segment 1. `None` means BERT's: `[CLS] A [SEP]` and `[CLS] A [SEP] B [SEP]`.
        missing: list of strings. Roles without a token, such as "mask", which get the id of another
            special token.
        reason: why no other class can read the file.
        special_tokens_in_strings: bool. See `BertTokenizer`.
        unk_token, cls_token, sep_token, pad_token, mask_token: strings. Special tokens.

    Raises:
        ValueError: if the library cannot read the file, or a special token is missing.

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

    _forms_in_graph = True  # The normal form is one of the engine's steps.

    def __init__(
        self,
        content: Any = None,
        control: Any = (),
        frame: dict[str, list[str]] | None = None,
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
        check_value("frame", frame, "object?")
        if unknown := (frame or {}).keys() - set(Frame._fields):
            raise ValueError(f"frame has {sorted(unknown)}; its fields are {Frame._fields}.")
        check_fields(frame or {}, dict.fromkeys(Frame._fields, "names"), "frame")
        check_value("reason", reason, "name?")
        self.control = list(control)
        self.missing = list(missing)
        self.frame_tokens = None if frame is None else {x: list(frame[x]) for x in frame}
        self.reason = reason
        self.file_assets = [CONTENT_FILE]
        self.set_content(content)

    @classmethod
    def from_files(cls, directory: AnyPath, reason: str | None = None, **overrides: Any) -> Self:
        """Read the tokenizer of a Hugging Face directory.

        Args:
            directory: string. Has a `tokenizer.json`.
            reason: why no other class can read it.
            **overrides: arguments of the constructor that replace the directory's.
        """
        files = TokenizerFiles(directory)
        if not files.model:
            raise ValueError(f"FastTokenizer needs a 'tokenizer.json' in '{directory}'.")
        files.check_fixed()
        content = {
            **files.json,
            "model": {"type": model_kind(files.model), **files.model},
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
                    f"{token['id']}, but the library `tokenizers` assigns another id; save the "
                    "tokenizer again with the library."
                )
        frame = frame_tokens(files, cls)
        special = files.special_tokens(cls, tokens)
        if frame:
            # Files may have a `cls_token` and a `sep_token` that rows do not use.
            ends = {"cls_token": frame["before"][:1], "sep_token": frame["after"][-1:]}
            special |= {name: one[0] for name, one in ends.items() if one}
        missing = [
            role
            for role in ROLES
            if special[f"{role}_token"] not in tokens and not files.names_token(role)
        ]
        there = [role for role in ("sep", "pad", "cls", "mask", "unk") if role not in missing]
        special |= {f"{role}_token": special[f"{there[0]}_token"] for role in missing if there}
        found = files.found_tokens(tokens)
        arguments = {
            "content": content,
            "control": [token["content"] for token in found if token.get("control")],
            "frame": frame,
            "missing": missing,
            "reason": reason,
            **special,
            **files.settings(),
        }
        # The file has the normal form as one of its steps.
        arguments.pop("normalize", None)
        return check_rows(files, cls(**arguments | overrides))

    def set_content(self, content: Any) -> None:
        """Set the content of the `tokenizer.json`: a dict, or a path."""
        if isinstance(content, (str, os.PathLike)):
            content = read_json(content)
        check_value("content", content, "object?")
        # Keras must not track this attribute.
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
            "frame": self.frame_tokens,
            "missing": list(self.missing),
            "reason": self.reason,
        }

    @property
    def frame(self) -> Frame:
        if self.frame_tokens is None:
            return super().frame
        # The ids are unknown until the file is loaded.
        id_of = (lambda token: None) if self.vocabulary is None else self.token_to_id
        tokens = (self.frame_tokens.get(name, ()) for name in Frame._fields)
        return Frame(*(tuple(map(id_of, part)) for part in tokens))

    def trims_offsets(self) -> dict[str, Any] | None:
        """Return the file's post-processor that excludes white space from offsets, or `None`."""
        for one in steps_of(self.content or {}, "post_processor", CONTENT_FILE):
            if one.get("type") in ("ByteLevel", "RobertaProcessing") and one.get("trim_offsets"):
                names = ("add_prefix_space", "trim_offsets", "use_regex")
                return {"type": "ByteLevel", **{name: one.get(name, True) for name in names}}
        return None

    @property
    def added_tokens(self) -> list[dict[str, Any]]:
        """The file's added tokens."""
        return list((self.content or {}).get("added_tokens") or [])

    @property
    def control_tokens(self) -> list[str]:
        return list(dict.fromkeys([*self.special_tokens, *self.control]))

    def check_graph(self) -> None:
        if why := self._graph_or_reason()[1]:
            raise ValueError(
                f"This tokenizer cannot run in a TensorFlow graph, because its tokenizer.json has "
                f"{why}. Export it with tokens_only=True, or with export_onnx, export_litert or "
                "export_openvino, which ship its tokenizer.json."
            )

    @once
    def _graph_or_reason(self):
        """Return `(graph, None)`, or `(None, step)` if a TensorFlow graph cannot run a step."""
        try:
            return FastGraph(self._engine(), self.special_tokens_in_strings), None
        except UnsupportedError as error:
            return None, str(error)

    @once
    def _engine(self):
        """Return the engine for texts, where only control tokens are special."""
        control = set(self.control_tokens)
        content = copy.deepcopy(self.content)
        for token in content.get("added_tokens") or []:
            token["special"] = token["content"] in control
        content["normalizer"] = in_form_first(self.normalize, content.get("normalizer"))
        return FastEngine(content, self.special_tokens_in_strings)

    @once
    def _never_made(self):
        """Return ids of the model that text must not get."""
        if self.special_tokens_in_strings:
            return np.zeros(0, "int32")
        model = self.content["model"]
        known = {model.get("unk_id"), self._token_ids.get(model.get("unk_token"))}
        known |= set() if "unk" in self.missing else {self.unk_token_id}
        return np.array([i for i in self.special_token_ids if i not in known], "int32")

    def _encode(self, name, texts):
        found = self._engine().encode(texts, offsets=name != "_tokenize")
        is_control = np.isin(found[0].values, self._never_made())
        if "unk" not in self.missing:
            ids = np.where(is_control, self.unk_token_id, found[0].values).astype("int32")
            return found[0].with_values(ids), *found[1:]
        kept = np.add.reduceat(np.append(~is_control, 0), found[0].row_splits[:-1])
        kept = np.where(found[0].row_lengths() > 0, kept, 0)
        return tuple(ops.Ragged.from_row_lengths(x.values[~is_control], kept) for x in found)

    def _tokenize(self, text):
        return self._tokenize_with_offsets(text)[0]

    def _tokenize_with_offsets(self, text):
        found = self._graph_or_reason()[0](text)
        if not len(self._never_made()):
            return found
        ids = found[0].flat_values
        is_control = tf.reduce_any(ids[:, tf.newaxis] == self._never_made(), axis=1)
        if "unk" not in self.missing:
            return found[0].with_flat_values(tf.where(is_control, self.unk_token_id, ids)), *found[
                1:
            ]
        return tuple(
            tf.ragged.boolean_mask(x, found[0].with_flat_values(~is_control)) for x in found
        )

    def graph(self, name: str) -> Any:
        """Return the method `name` for tensors; it calls Python if a graph cannot run a step."""
        self._check_vocabulary()
        in_graph = not tf.executing_eagerly()
        if name == "_detokenize":
            return super().graph(name) if in_graph else self._detokenized
        if in_graph and self._graph_or_reason()[0]:
            return super().graph(name)
        return called_from_graphs(self, name)

    def _detokenized(self, ids):
        rows = ops.Ragged(ids.values.numpy(), ids.row_splits.numpy()).to_list()
        check_ids(rows, len(self.vocabulary))
        return tf.constant([text.encode() for text in self._engine().decode(rows)], tf.string)

    @once
    def _decoder(self):
        try:
            return Decoder(self._engine())
        except UnsupportedError as error:
            raise ValueError(
                f"This tokenizer cannot decode tokens in a TensorFlow graph, because its "
                f"tokenizer.json has {error}. Decode lists of ids instead."
            ) from None

    def _detokenize(self, ids):
        return self._decoder()(ids)

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
