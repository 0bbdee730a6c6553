"""`read_examples`: batches for pre-training from shards of records.

Shapes: B examples per batch, T tokens, P predictions.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from kerasbert import backend
from kerasbert.base.errors import check_choice, check_whole
from kerasbert.data.example_files import find_examples, parse_examples
from kerasbert.data.example_parts import ExampleParts
from kerasbert.text.batch_plans import buckets_up_to
from kerasbert.text.batches import Passes, as_tf_data
from kerasbert.text.masking import check_rates, mask_tokens, word_starts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from kerasbert.base.aliases import Corpus
    from kerasbert.text.subword import SubwordTokenizer


def read_examples(
    files: Corpus,
    batch_size: int,
    *,
    tokenizer: SubwordTokenizer | None = None,
    masking: str = "dynamic",
    masker: Any = None,
    next_sentence: bool | None = None,
    num_segments: int = 2,
    seed: int = 0,
    start_step: int = 0,
    shuffle_buffer: int = 1 << 16,
    repeat: bool = True,
    shards: Sequence[str] | None = None,
    shard: tuple[int, int] | None = None,
) -> Any:
    """Read batches for `BertPretrainer.fit` from records of `write_examples` or
    google-research/bert.

    Batch s depends only on files, settings, seed and s: `start_step=k` yields exactly the batches
    from the k-th on, and reads of the earlier records only those shuffled together with the first
    needed ones.

    Records are split into at most 16 equal parts, no more than files, whose number divides the
    batch size; each batch has equally many rows of every part. In each epoch a part reads its files
    in another order, and shuffles its share of `shuffle_buffer` records at a time. So with
    `shard=(0, 2)`, a process takes the first half of every batch and reads half of the files, and
    all processes together get the batches of one.

    Rows are truncated to the batch's longest, rounded up to a bucket of
    `kerasbert.data.buckets_up_to`. For several processes, which do not know each other's rows, they
    keep the records' length.

    Files at a URL are downloaded one by one and checked by hash. Files without a manifest, as of
    google-research/bert, are first read once to count records and find truncated files.

    Args:
        files: the folder of `write_examples`, or paths or patterns of TFRecord files, compressed if
            they end in `.gz`.
        batch_size: int.
        tokenizer: the records' tokenizer. It is compared with the manifest, and needed only without
            one for dynamic masking, and to mask whole words.
        masking: "dynamic" restores the masked tokens and masks again in every epoch; "static"
            keeps the records' masks.
        masker: for dynamic masking, settings of `mask_tokens` as a dict, such as
            `{"mask_selection_rate": 0.3, "unit": "word"}`, or a function `(token_ids, maskable,
            seed, lengths)` with the results of `mask_tokens`. A `mask_selection_rate` of `(first,
            last, batches)` changes linearly over these batches, without unused prediction slots.
        next_sentence: whether pairs have labels; `None` means as in the manifest, or true.
        num_segments: int. 0 leaves `segment_ids` out, 1 fills it with zeros, as in RoBERTa.
        seed: int.
        start_step: int. The number of the first batch.
        shuffle_buffer: int. 0 keeps the order of files and records; with a `shard`, the order
            within each part.
        repeat: bool. `True` repeats epochs endlessly, with batches across their ends. `False` is
            one epoch, whose last batch may be smaller.
        shards: list of strings. Names of shards to read, if there is a manifest; `None` reads all.
        shard: `(index, count)`, ints. Which of `count` equal parts of each batch this process
            takes. With `repeat=False` all processes get equal numbers of batches and rows; missing
            rows have weight 0 and are spread over all batches.

    Returns:
        Batches `(x, y, sample_weight)`: `x` is a dict of `token_ids` (B, T), `segment_ids` (B, T),
        `padding_mask` (B, T) and `mask_positions` (B, P); `y` and `sample_weight` are dicts of
        `mlm_logits` (B, P) and `nsp_logits` (B,). They come, made in NumPy, as a `tf.data.Dataset`
        on TensorFlow, and on JAX and PyTorch as a `keras.utils.PyDataset` with its methods `take`,
        `cardinality` and `as_numpy_iterator`.

    Raises:
        ValueError: for files that are missing, truncated or of another kind, another vocabulary,
            and invalid settings.

    Source of the parts: shards per process as in T5X's `seqio`, but with equal numbers of rows.
    """
    check_choice("masking", masking, ("dynamic", "static"))
    check_whole("batch_size", batch_size)
    check_whole("start_step", start_step, 0)
    check_whole("shuffle_buffer", shuffle_buffer, 0)
    index, count = _checked_shard(shard, batch_size)
    source = find_examples(files, tokenizer, shards)
    if next_sentence is None:
        next_sentence = source.next_sentence
    mask = None if masking == "static" else _masker(masker, source, tokenizer, count > 1)
    parts = ExampleParts(source, batch_size, index, count, in_order=not (shuffle_buffer or shard))
    parts.check()

    batch = functools.partial(
        _batch,
        source=source,
        mask=mask,
        next_sentence=next_sentence,
        num_segments=num_segments,
        agreed=count > 1,
    )
    settings = seed, shuffle_buffer, repeat, shard is not None and not repeat

    def made_from(first):
        for step, records in enumerate(parts.batches(first, *settings), first):
            yield batch(records, draw=parts.draws(seed, step))

    count = None if repeat else max(0, -(-source.examples // batch_size) - start_step)
    example = batch([None], draw=parts.draws(seed, start_step))
    batches = Passes(made_from, example, count, start_step)
    return as_tf_data(batches) if backend.trains_in_graphs() else batches


def _checked_shard(shard, batch_size):
    if shard is None:
        return 0, 1
    index, count = shard
    check_whole("shard: count", count)
    check_whole("shard: index", index, 0)
    if index >= count:
        raise ValueError(f"shard={shard} has the index {index}; it must be below {count}.")
    if batch_size % count:
        raise ValueError(
            f"batch_size={batch_size} is for all {count} processes and must be a multiple of "
            f"{count}: each takes an equal part of every batch."
        )
    return int(index), int(count)


def _batch(records, source, mask, draw, next_sentence, num_segments, agreed):
    """Convert serialized records to `(x, y, sample_weight)`.

    Args:
        records: list of B bytes objects; `None` for a row of padding with weight 0.
        draw: function of a shape that draws numbers from 0 to 1.
        agreed: whether shapes must not depend on the rows.
    """
    there, parsed = np.array([record is not None for record in records]), {}
    found = [record for record in records if record is not None]
    for name, values in parse_examples(found, source.length, source.slots).items():
        kind = "float32" if values.dtype == "float32" else "int32"
        parsed[name] = np.zeros((len(records), values.shape[1]), kind)
        parsed[name][there] = values
    parsed["input_mask"][~there, 0] = 1
    lengths = parsed["input_mask"].sum(axis=1)  # (B,)
    longest = source.length
    if not agreed:
        longest = next(x for x in buckets_up_to(longest) if x >= lengths.max())
    x = {
        "token_ids": parsed["input_ids"][:, :longest],  # (B, T)
        "padding_mask": parsed["input_mask"][:, :longest] > 0,
        "mask_positions": parsed["masked_lm_positions"],  # (B, P)
    }
    if num_segments:
        segments = parsed["segment_ids"][:, :longest]
        x["segment_ids"] = segments if num_segments > 1 else np.zeros_like(segments)
    y = {"mlm_logits": parsed["masked_lm_ids"]}
    weights = {"mlm_logits": parsed["masked_lm_weights"]}
    if mask is not None:
        row, slot = np.nonzero(weights["mlm_logits"] > 0)
        x["token_ids"][row, x["mask_positions"][row, slot]] = y["mlm_logits"][row, slot]
        hidden = mask(x["token_ids"], x["padding_mask"], draw, lengths)
        x["token_ids"], x["mask_positions"], y["mlm_logits"] = (
            np.asarray(hidden[name], "int32")
            for name in ("token_ids", "mask_positions", "mask_ids")
        )
        weights["mlm_logits"] = np.asarray(hidden["mask_weights"], "float32")
    if next_sentence:
        y["nsp_logits"] = parsed["next_sentence_labels"][:, 0]
        weights["nsp_logits"] = there.astype("float32")
    weights["mlm_logits"] = weights["mlm_logits"] * there[:, None]
    return x, y, weights


def _masker(masker, source, tokenizer, agreed):
    """Return a function of ids, padding mask, `draw` and lengths that masks tokens."""
    described = source.described
    if described is None:
        raise ValueError(
            "These files have no manifest with the special tokens; pass the `tokenizer`, or "
            "masking='static'."
        )
    masker = {} if masker is None else masker
    edges = changing = None
    if isinstance(masker, dict):
        unknown = sorted(set(masker) - _MASKER)
        if unknown:
            raise ValueError(
                f"masker has the unknown setting {unknown[0]!r}; use some of "
                f"{', '.join(sorted(_MASKER))}."
            )
        rate = masker.get("mask_selection_rate")
        if isinstance(rate, (tuple, list)):
            _, last, batches = changing = rate
            check_whole("mask_selection_rate: batches", batches)
            check_rates(**{**_RATES, **masker, "mask_selection_rate": last})
            masker = {**masker, "mask_selection_rate": max(changing[:2])}
        check_rates(**{**_RATES, **masker})
        if masker.get("unit", "token") != "token":
            if tokenizer is None:
                raise ValueError(
                    f"masker with unit={masker['unit']!r} needs word boundaries; pass the "
                    "`tokenizer` that the records were made with."
                )
            edges = tokenizer.word_edges()

    def mask(token_ids, padding_mask, draw, lengths):
        maskable = padding_mask & ~np.isin(token_ids, described["special_token_ids"])
        if callable(masker):
            return masker(token_ids, maskable, draw.seed, lengths)
        if changing is not None:
            first, last, batches = changing
            done = min(draw.seed[1] / batches, 1.0)
            # A rate below the highest is applied by smaller lengths.
            share = (first + (last - first) * done) / max(first, last)
            lengths = share * lengths
        hidden = mask_tokens(
            token_ids,
            maskable,
            draw,
            vocabulary_size=described["vocabulary_size"],
            mask_token_id=described["mask_token_id"],
            lengths=lengths,
            word_starts=None if edges is None else word_starts(token_ids, edges),
            **masker,
        )
        return hidden if changing is None or agreed else _without_empty_slots(hidden)

    return mask


def _without_empty_slots(hidden):
    """Remove prediction slots that no row uses.

    Slots are removed in quarters of their number, so that few shapes are compiled.
    """
    slots = hidden["mask_ids"].shape[1]
    used = max(1, int(hidden["mask_weights"].sum(axis=1).max()))
    quarter = (slots + 3) // 4
    slots = min(-(-used // quarter) * quarter, slots)
    return {name: x if name == "token_ids" else x[:, :slots] for name, x in hidden.items()}


# The masking settings, with the defaults that `check_rates` needs.
_RATES = {"mask_selection_rate": 0.15, "mask_token_rate": 0.8, "random_token_rate": 0.1}
_MASKER = {*_RATES, "mask_selection_length", "unit"}
