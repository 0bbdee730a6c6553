"""Families of `kerasbert.lineage`, whose encoders are classes of their own."""

from kerasbert.families.settings import Family

LINEAGE = {
    "xlnet": Family(
        heads={
            "text_classifier": {"pooling": "last", "head_activation": "tanh", "dropout": 0.1},
        },
        tokenizer="XLNetTokenizer",
        packing="class_last",
    ),
    "transformer_xl": Family(tokenizer="", packing=None),
    "marian": Family(tokenizer="MarianTokenizer", packing="source_target"),
}
