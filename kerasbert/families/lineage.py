"""Families of `kerasbert.lineage`, whose encoders are classes of their own."""

from kerasbert.families.settings import Family

# The head on `<cls>`, which is the last token.
_SUMMARY = {"pooling": "last", "head_activation": "tanh", "dropout": 0.1}

LINEAGE = {
    "xlnet": Family(
        heads={
            "text_classifier": _SUMMARY,
            "multiple_choice": _SUMMARY,
            "token_classifier": {"dropout": 0.0},
        },
        tokenizer="XLNetTokenizer",
        packing="class_last",
    ),
    "transformer_xl": Family(tokenizer="", packing=None),
    "marian": Family(tokenizer="MarianTokenizer", packing="source_target"),
}
