"""Decoders of a `tokenizer.json` for TensorFlow graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerasbert.backend.tensorflow import tf
from kerasbert.text.byte_pair import byte_characters
from kerasbert.text.fast_graph.tables import library_step
from kerasbert.text.ops import rows_of
from kerasbert.text.tokenizer_json import UnsupportedError

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.text.engine import FastEngine

# Decoders that treat the last (`True`) or the first (`False`) token differently.
_AT_END = {"BPEDecoder": True, "Metaspace": False, "WordPiece": False}


class Decoder:
    """Converts token ids to texts.

    Args:
        engine: `FastEngine` that returns the same texts.

    Raises:
        UnsupportedError: if a graph cannot run the file's decoder.
    """

    def __init__(self, engine: FastEngine) -> None:
        step, tokens = engine.content()["decoder"], engine.vocabulary()
        kind = None if step is None else step["type"]
        self._at_end = _AT_END.get(kind, False)
        if kind is None:
            self._edge = [token.encode() for token in tokens]
            self._inner = [b" " + token for token in self._edge]
        elif kind == "ByteLevel":
            as_byte = {char: byte for byte, char in enumerate(byte_characters())}
            self._edge = self._inner = [
                bytes(as_byte[c] for c in token) if as_byte.keys() >= set(token) else token.encode()
                for token in tokens
            ]
        elif kind in _AT_END:
            decode = library_step("decoder", step).decode
            self._edge = [decode([token]).encode() for token in tokens]
            if self._at_end:
                self._inner = [decode([token, "a"])[:-1].encode() for token in tokens]
            else:
                self._inner = [decode(["a", token])[1:].encode() for token in tokens]
        else:
            raise UnsupportedError(f"the decoder {kind}")

    def __call__(self, ids: Any) -> Any:
        """Convert ids, ragged (N, P), to strings (N,)."""
        row = rows_of(ids)
        change = row[1:] != row[:-1]
        edge = tf.ones_like(row[:1], "bool")
        is_edge = tf.concat([change, edge] if self._at_end else [edge, change], 0)
        edge, inner = (
            tf.gather(tf.constant(x), ids.flat_values) for x in (self._edge, self._inner)
        )
        texts = tf.strings.reduce_join(ids.with_flat_values(tf.where(is_edge, edge, inner)), -1)
        # Tokens may have incomplete UTF-8, so all bytes of a text are decoded together.
        return tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8")
