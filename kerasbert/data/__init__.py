from kerasbert.base import host  # noqa: F401
from kerasbert.data.corpus import blocks, documents
from kerasbert.data.deduplicate import deduplicate
from kerasbert.data.example_batches import read_examples
from kerasbert.data.examples import write_examples
from kerasbert.data.sample_files import sample_file
from kerasbert.data.trees import DependencyTree
from kerasbert.text.batch_plans import (
    bucket_length,
    buckets_up_to,
    given_batches,
    restore_order,
    similar_length_batches,
    sorted_batches,
)
from kerasbert.text.batches import batch_dataset, map_ahead
from kerasbert.text.long_texts import LongTexts
from kerasbert.text.masking import mask_tokens, word_starts
from kerasbert.text.tagging import TagSet, tag_names, word_spans
from kerasbert.text.windows import cut_windows, most_context, window_tokens

__all__ = [
    "DependencyTree",
    "LongTexts",
    "TagSet",
    "batch_dataset",
    "blocks",
    "bucket_length",
    "buckets_up_to",
    "cut_windows",
    "deduplicate",
    "documents",
    "given_batches",
    "map_ahead",
    "mask_tokens",
    "most_context",
    "read_examples",
    "restore_order",
    "sample_file",
    "similar_length_batches",
    "sorted_batches",
    "tag_names",
    "window_tokens",
    "word_spans",
    "word_starts",
    "write_examples",
]
