"""`BlockExamples`: makes the pre-training records of one block of documents.

Shapes: R rows, T tokens per row, P predictions per row.
"""

import math

import numpy as np

from kerasbert.base.errors import check_choice, check_whole
from kerasbert.data.records import compressed_records, encode_examples
from kerasbert.data.sentence_pairs import (
    LABELED,
    OBJECTIVES,
    full_sentences,
    next_sentence_pairs,
    pack_rows,
    sentence_order_pairs,
    translation_pairs,
    truncate_pairs,
)
from kerasbert.text.languages import language_numbers
from kerasbert.text.masking import check_rates, mask_tokens, word_starts

# Rows at a time, whose arrays fit into the CPU cache.
ROWS = 2048


class BlockExamples:
    """Callable that makes a block's records from its documents and its number.

    Besides these, records depend only on tokenizer and settings: random numbers come from the seed,
    block number and copy, and random next sentences from the same block. So any machine can make
    them.

    Args:
        tokenizer: a tokenizer of `kerasbert.tokenizers`.
        **settings: settings of `write_examples`. `languages` are the names in its `text_key`.

    Raises:
        ValueError: for invalid or contradictory settings.

    Example:

    >>> from kerasbert.tokenizers import BertTokenizer
    >>> words = "[PAD] [UNK] [CLS] [SEP] [MASK] it rains sun shines".split()
    >>> make = BlockExamples(BertTokenizer(words), sequence_length=8)
    >>> records, counts = make(0, [["it rains", "sun shines"], ["it shines"]])
    >>> counts["documents"], counts["sentences"], counts["tokens"]
    (2, 3, 6)
    """

    def __init__(
        self,
        tokenizer,
        *,
        sequence_length=128,
        objective="next_sentence",
        copies=1,
        cut_sentences=False,
        short_sequence_rate=None,
        mask_selection_rate=0.15,
        mask_selection_length=None,
        mask_token_rate=0.8,
        random_token_rate=0.1,
        mask_unit="token",
        seed=0,
        languages=None,
    ):
        if not hasattr(tokenizer, "frame"):
            raise ValueError(
                f"tokenizer={tokenizer!r} is not one of `kerasbert.tokenizers`; "
                "make one with its `from_preset` or `from_files`."
            )
        check_choice("objective", objective, OBJECTIVES)
        self.tokenizer = tokenizer
        self.special = tokenizer.frame.count(1 if objective == "full_sentences" else 2)
        check_whole("sequence_length", sequence_length, self.special + 2)
        check_whole("copies", copies)
        check_whole("seed", seed, 0)
        check_rates(
            mask_selection_rate,
            mask_token_rate,
            random_token_rate,
            mask_selection_length,
            mask_unit,
        )
        self.languages = None
        if objective == "translation":
            self.languages = language_numbers(tokenizer, languages)
        if cut_sentences and objective != "full_sentences":
            raise ValueError(
                f"cut_sentences=True needs objective='full_sentences', whose rows it fills; "
                f"leave it out for {objective!r}."
            )
        if short_sequence_rate is None:
            short_sequence_rate = 0.1 if objective in LABELED else 0.0
        if not 0 <= short_sequence_rate <= 1:
            raise ValueError(
                f"short_sequence_rate={short_sequence_rate!r} must be a number from 0 to 1."
            )
        if mask_selection_length is None:
            mask_selection_length = math.ceil(mask_selection_rate * sequence_length)
        self.settings = {
            "sequence_length": sequence_length,
            "objective": objective,
            "copies": copies,
            "short_sequence_rate": short_sequence_rate,
            "mask_selection_rate": mask_selection_rate,
            "mask_selection_length": mask_selection_length,
            "mask_token_rate": mask_token_rate,
            "random_token_rate": random_token_rate,
            "mask_unit": mask_unit,
            "seed": seed,
        }
        # Earlier manifests lack this key, and must compare equal.
        if cut_sentences:
            self.settings["cut_sentences"] = True

    def __call__(self, number, documents):
        """Make the records of one block.

        Args:
            number: int. The block's number.
            documents: iterable of documents, each a list of sentences.

        Returns:
            `(records, counts)`: the content of a gzip TFRecord file, and a dict of ints.
        """
        tokens, sentences, documents = self._tokenize(documents)
        examples, counts = [], {"examples": 0, "not_next": 0, "masked": 0}
        for copy in range(self.settings["copies"]):
            random = np.random.default_rng((self.settings["seed"], number, copy))
            values, rows = self._choose(tokens, sentences, documents, int(random.integers(2**62)))
            rows = truncate_pairs(rows, self.settings["sequence_length"] - self.special, random)
            rows = rows[random.permutation(len(rows))]
            for first in range(0, len(rows), ROWS):
                features = self._features(values, rows[first : first + ROWS], random)
                examples += encode_examples(features)
                counts["masked"] += int(features["masked_lm_weights"].sum())
            counts["not_next"] += int(rows[:, 4].sum())
        counts |= {
            "examples": len(examples),
            "documents": len(documents) - 1,
            "sentences": len(sentences) - 1 if self.languages is None else np.size(sentences),
            "tokens": len(tokens),
        }
        return compressed_records(examples), counts

    def _tokenize(self, documents):
        """Return a block's tokens (N,) and the offsets of its non-empty sentences and documents."""
        documents = list(documents)
        if self.languages is not None:
            return self._tokenize_parallel(documents)
        sizes = [len(document) for document in documents]
        sentences = [sentence for document in documents for sentence in document]
        [ids] = self.tokenizer.ragged(sentences)
        lengths = ids.row_lengths()
        filled = np.cumsum([0, *(lengths > 0)])[np.cumsum([0, *sizes])]
        return (
            np.asarray(ids.values, "int32"),
            np.cumsum([0, *lengths[lengths > 0]]),
            np.unique([0, *filled]),
        )

    def _tokenize_parallel(self, documents):
        """Return tokens, and sentence ends (D, L) by document and language."""
        [ids] = self.tokenizer.ragged([text for document in documents for text in document])
        ends = np.cumsum(ids.row_lengths()).reshape(-1, len(self.languages))
        return np.asarray(ids.values, "int32"), ends, range(len(ends) + 1)

    def _choose(self, tokens, sentences, documents, seed):
        objective, most = (
            self.settings["objective"],
            self.settings["sequence_length"] - self.special,
        )
        short = self.settings["short_sequence_rate"]
        if objective == "translation":
            return tokens, translation_pairs(sentences, self.languages)
        if objective == "full_sentences":
            end = self.tokenizer.end_token_id
            if "cut_sentences" in self.settings:  # Each token is a sentence.
                sentences, documents = np.arange(len(tokens) + 1), sentences[documents]
            return full_sentences(tokens, sentences, documents, most, end, short, seed)
        choose = next_sentence_pairs if objective == "next_sentence" else sentence_order_pairs
        return tokens, choose(sentences, documents, most, short, seed)

    def _features(self, tokens, rows, random):
        """Return the features of `rows`, arrays (R, T), (R, P) and (R, 1), named as in
        google-research/bert.
        """
        ids, settings = self.tokenizer, self.settings
        length, most = settings["sequence_length"], settings["mask_selection_length"]
        packed = pack_rows(tokens, rows, length, ids.frame, ids.pad_token_id)
        token_ids, lengths = packed["input_ids"], packed["lengths"]
        used = np.arange(length) < lengths[:, None]
        special = {ids.start_token_id, ids.end_token_id, *sum(ids.frame, ())}
        free = used & ~np.isin(token_ids, list(special))
        unit, starts = settings["mask_unit"], None
        if unit != "token":
            starts = word_starts(token_ids, ids.word_edges())
        hidden = mask_tokens(
            token_ids,
            free,
            random.integers(2**62, size=2),
            vocabulary_size=ids.vocabulary_size(),
            mask_token_id=ids.mask_token_id,
            lengths=lengths,
            unit=unit,
            word_starts=starts,
            mask_selection_rate=settings["mask_selection_rate"],
            mask_selection_length=most,
            mask_token_rate=settings["mask_token_rate"],
            random_token_rate=settings["random_token_rate"],
        )
        slots = ((0, 0), (0, most - hidden["mask_ids"].shape[1]))
        return {
            "input_ids": hidden["token_ids"],
            "input_mask": used,
            "segment_ids": packed["segment_ids"],
            "masked_lm_positions": np.pad(hidden["mask_positions"], slots),
            "masked_lm_ids": np.pad(hidden["mask_ids"], slots),
            "masked_lm_weights": np.pad(hidden["mask_weights"], slots),
            "next_sentence_labels": rows[:, 4:5],
        }
