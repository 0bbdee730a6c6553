"""SentencePiece models (Kudo and Richardson 2018) as protocol buffers: reading and building."""

import base64
import math

import numpy as np

from kerasbert.text.alignment import FILLER
from kerasbert.text.tokenizer_json import UnsupportedError

WORD_BEGIN = "\u2581"


def model_protos():
    """Return the module of SentencePiece's protocol buffers."""
    try:
        from sentencepiece import sentencepiece_model_pb2
    except ImportError as error:
        raise ImportError(
            "SentencePiece models need two packages: run `pip install sentencepiece protobuf`."
        ) from error
    except Exception as error:
        # sentencepiece 0.2.3 needs protobuf 7 without requiring it, so an older one may be
        # installed.
        raise ImportError(
            f"The installed sentencepiece is incompatible with the installed protobuf ({error}): "
            "run `pip install --upgrade protobuf`, or, if another package needs the older "
            "protobuf, `pip install 'sentencepiece<0.2.3'`."
        ) from error
    return sentencepiece_model_pb2


def read_proto(data):
    """Parse the bytes of a SentencePiece model."""
    proto = model_protos().ModelProto()
    try:
        proto.ParseFromString(data)
    except Exception as error:
        raise ValueError(
            f"These {len(data)} bytes are not a SentencePiece model ({error})."
        ) from None
    if not proto.pieces:
        raise ValueError(f"The SentencePiece model ({len(data)} bytes) has no pieces.")
    return proto


def check_proto(proto):
    """Raise if SentencePiece would abort or read outside its memory.

    Raises:
        ValueError: if a piece has no text or finite score, if there is not exactly one unknown
            piece, or if the character map is damaged.
    """
    unknown = [piece.piece for piece in proto.pieces if piece.type == piece.UNKNOWN]
    if len(unknown) != 1:
        raise ValueError(
            f"The SentencePiece model has {len(unknown)} unknown pieces, expected one; download "
            "it again."
        )
    for id, piece in enumerate(proto.pieces):
        if not piece.piece or not math.isfinite(piece.score):
            raise ValueError(
                f"Piece {id} of the SentencePiece model, {piece.piece!r}, has the score "
                f"{piece.score}, expected a text with a finite score; download it again."
            )
    charsmap = proto.normalizer_spec.precompiled_charsmap
    if charsmap and not _is_charsmap(charsmap):
        raise ValueError(
            f"The SentencePiece model has a damaged character map (precompiled_charsmap) of "
            f"{len(charsmap)} bytes; download it again."
        )


def _is_charsmap(data):
    """Return whether all indices of a character map are inside it.

    A map has the size of a double array (four bytes), the double array (by Darts), and the
    zero-terminated strings to which it points.
    """
    size = int.from_bytes(data[:4], "little")
    units, strings = data[4 : 4 + size], data[4 + size :]
    if len(data) < 4 or len(units) != size or not size or size % 1024 or data[-1:] != b"\0":
        return False
    units = np.frombuffer(units, "<u4").astype("int64")
    is_node = units >> 31 == 0
    next_unit = np.arange(len(units)) ^ (units >> 10) << ((units & 1 << 9) >> 6)
    if not (next_unit[is_node] | 255 < len(units)).all():
        return False
    has_value = is_node & (units >> 8 & 1 > 0)
    return bool((units[next_unit[has_value]] & 0x7FFFFFFF < len(strings)).all())


def build_proto(files):
    """Convert the unigram model of a `tokenizer.json` to a SentencePiece model.

    Args:
        files: `TokenizerFiles`.
    """
    protos = model_protos()
    kinds = protos.ModelProto.SentencePiece
    proto = protos.ModelProto()
    proto.trainer_spec.model_type = protos.TrainerSpec.UNIGRAM
    for step in files.normalizers():
        if step.get("type") == "Precompiled":
            try:
                charsmap = step.get("precompiled_charsmap") or ""
                charsmap = base64.b64decode(charsmap, validate=True)
            except ValueError as error:
                raise ValueError(
                    f"'{files.path('tokenizer.json')}' has a precompiled_charsmap that is not "
                    f"base64 ({error}); download it again."
                ) from None
            proto.normalizer_spec.precompiled_charsmap = charsmap
    for step in files.steps("pre_tokenizer"):
        if step.get("type") == "Metaspace":
            old = "always" if step.get("add_prefix_space", True) else "never"
            proto.normalizer_spec.add_dummy_prefix = step.get("prepend_scheme", old) != "never"
    unknown = files.model.get("unk_id")
    if unknown is None:
        raise UnsupportedError(
            f"'{files.path('tokenizer.json')}' has no unk_id, but a SentencePiece model needs a "
            "piece for unknown characters; load the model with preprocessor=None and pass token "
            "ids."
        )
    for id, (piece, score) in enumerate(files.model["vocab"]):
        kind = kinds.UNKNOWN if id == unknown else kinds.NORMAL
        proto.pieces.add(piece=piece, score=score, type=kind)
    return proto


def replace_step(old, new):
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def mark_control(pieces, names):
    """Make pieces control pieces, which the model never matches.

    Special tokens are matched before the model reads the text, or are ordinary text.
    """
    names = set(names)
    for piece in pieces:
        if piece.piece in names and piece.type != piece.UNKNOWN:
            piece.type = piece.CONTROL


def found_in_text(piece):
    """Return whether text can be converted to a piece, which is false for control pieces."""
    return piece.type in (piece.NORMAL, piece.USER_DEFINED)


def scored_pieces(proto):
    """Return pieces with scores, the lowest for those that text must not become.

    A `tokenizer.json` has no piece types, so any other segmentation must score higher.
    """
    lowest = min((piece.score for piece in proto.pieces if found_in_text(piece)), default=0.0)
    return [
        [piece.piece, piece.score if found_in_text(piece) else len(piece.piece) * lowest - 1]
        for piece in proto.pieces
    ]


def hidden_pieces(proto):
    """Return normalizer steps for control pieces with a character that is no piece.

    Such text has no other segmentation, so it would be matched in spite of its score. The steps
    insert a filler after the character; both become one unknown piece.
    """
    found = (piece.piece for piece in proto.pieces if found_in_text(piece))
    single = {piece for piece in found if len(piece) == 1}
    steps = []
    for piece in proto.pieces:
        unknown = next((char for char in piece.piece if char not in single), None)
        if not found_in_text(piece) and unknown is not None:
            hidden = piece.piece.replace(unknown, unknown + FILLER, 1)
            steps.append(replace_step(piece.piece, hidden))
    return steps
