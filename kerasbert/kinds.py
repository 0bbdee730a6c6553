"""Table of the kinds of heads.

To add a kind, add a row and a folder such as `heads/text_classifier/`, with a file for each part
that differs from `heads/base/`.
"""

import importlib
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Kind:
    """One kind of head; names only, so that reading the table imports nothing.

    Args:
        name: its name in `convert(task=...)` and `file_task(head=...)`.
        model: string. Class in its `model.py`; "" if only `kerasbert.lineage` has this head.
        preprocessor: string. Class in its `preprocessor.py`; "" for none.
        served: string. Class in its `served.py`; "" for none.
        data: string. Class in its `data.py`; "" for none.
        settings: dict. Defaults of its head.
        like: string. Kind with the same weights, whose settings in `families` and tables in
            `checkpoints` it uses; "" for its own.
        parts: tuple. Kinds whose heads it combines.
        huggingface: string. Suffix of its class names in transformers; "" for none.
        keras_hub: string. Suffix of its class names in KerasHub; "" for none.
        sentence_transformers: its class name in sentence-transformers; "" for none.
        pipeline: string. Pipeline tag on the Hugging Face hub; "" for none.
        method: string. Its inference method for texts.
        usage: string. Arguments of an example call of that method, for model cards.
        takes_pairs: whether it needs text pairs.
        labels: string. Type of the labels in its tables: "class", "choice", "tag", "number" or
            "answer"; "" if it reads no tables.
        vectors: string. What `embed` returns, "dense" or "sparse"; "" for none.
        explains: string. The output that attributions explain: "class", "number", "token_class",
            "masked_token" or "answer"; "" for none.
        panels: tuple. Panels of the playground for it, besides those of every encoder.
        single: whether it is one model whose heads other formats can represent.
        folder: string. Package, below `kerasbert`, of the files named above; "" for `heads.<name>`.
    """

    name: str
    model: str = ""
    preprocessor: str = ""
    served: str = ""
    data: str = ""
    settings: dict = field(default_factory=dict)
    like: str = ""
    parts: tuple = ()
    huggingface: str = ""
    keras_hub: str = ""
    sentence_transformers: str = ""
    pipeline: str = ""
    method: str = ""
    usage: str = ""
    takes_pairs: bool = False
    labels: str = ""
    vectors: str = ""
    explains: str = ""
    panels: tuple = ()
    single: bool = True
    folder: str = ""

    @property
    def tables(self):
        """Name of the kind whose settings in `families` and tables in `checkpoints` it uses."""
        return self.like or self.name

    def load(self, part):
        """Import its class for one part: "model", "preprocessor", "served" or "data".

        >>> KINDS["text_classifier"].load("model").__name__
        'BertTextClassifier'
        """
        folder = self.folder or f"heads.{self.name}"
        module = importlib.import_module(f"kerasbert.{folder}.{part}")
        return getattr(module, getattr(self, part))


_ROWS = (
    Kind(
        name="text_classifier",
        model="BertTextClassifier",
        preprocessor="BertTextClassifierPreprocessor",
        served="ServedClassifier",
        data="TextClassification",
        huggingface="ForSequenceClassification",
        keras_hub="TextClassifier",
        pipeline="text-classification",
        method="classify",
        usage='["A text.", "Another one."]',
        labels="class",
        explains="class",
        panels=("classify",),
    ),
    Kind(
        name="text_regressor",
        model="BertTextRegressor",
        preprocessor="BertTextRegressorPreprocessor",
        served="ServedRegressor",
        data="TextRegression",
        like="text_classifier",
        huggingface="ForSequenceClassification",
        keras_hub="TextClassifier",
        pipeline="text-classification",
        method="score",
        usage='["A text.", "Another one."]',
        labels="number",
        explains="number",
        panels=("classify",),
    ),
    Kind(
        name="reranker",
        model="BertReranker",
        preprocessor="BertRerankerPreprocessor",
        served="ServedReranker",
        data="Reranking",
        like="text_classifier",
        huggingface="ForSequenceClassification",
        keras_hub="TextClassifier",
        sentence_transformers="CrossEncoder",
        pipeline="text-ranking",
        method="rank",
        usage='"A query", ["A text.", "Another one."]',
        takes_pairs=True,
        labels="number",
        explains="number",
        panels=("classify", "search"),
    ),
    Kind(
        name="token_classifier",
        model="BertTokenClassifier",
        preprocessor="BertTokenClassifierPreprocessor",
        served="ServedTagger",
        data="TokenClassification",
        settings={"pooling": "tokens"},
        huggingface="ForTokenClassification",
        pipeline="token-classification",
        method="tag",
        usage='"A text."',
        labels="tag",
        explains="token_class",
        panels=("tag",),
    ),
    Kind(
        name="question_answering",
        model="BertQuestionAnswering",
        preprocessor="BertQuestionAnsweringPreprocessor",
        served="ServedReader",
        data="QuestionAnswering",
        settings={"pooling": "tokens", "dropout": 0.0},
        huggingface="ForQuestionAnswering",
        pipeline="question-answering",
        method="answer",
        usage='"Who?", "A text that says who."',
        takes_pairs=True,
        labels="answer",
        explains="answer",
        panels=("answer",),
    ),
    Kind(
        name="multiple_choice",
        model="BertMultipleChoice",
        preprocessor="BertMultipleChoicePreprocessor",
        served="ServedChooser",
        data="MultipleChoice",
        huggingface="ForMultipleChoice",
        pipeline="multiple-choice",
        method="choose",
        usage='"A text", ["so", "or so"]',
        labels="choice",
        panels=("choose",),
    ),
    Kind(
        name="next_sentence_predictor",
        model="BertNextSentencePredictor",
        preprocessor="BertNextSentencePredictorPreprocessor",
        served="ServedNextSentence",
        settings={"dropout": 0.0, "sentence_order": False},
        huggingface="ForNextSentencePrediction",
        method="follows",
        usage='"A sentence.", "The next one."',
        takes_pairs=True,
        explains="class",
        panels=("classify",),
    ),
    Kind(
        name="masked_lm",
        model="BertMaskedLM",
        preprocessor="BertMaskedLMPreprocessor",
        served="ServedMaskedLM",
        huggingface="ForMaskedLM",
        keras_hub="MaskedLM",
        pipeline="fill-mask",
        method="fill_mask",
        usage='"A text with a [MASK] word."',
        explains="masked_token",
        panels=("fill",),
    ),
    Kind(
        name="sparse_embedder",
        model="BertSparseEmbedder",
        preprocessor="BertSparseEmbedderPreprocessor",
        served="ServedSparseEmbedder",
        like="masked_lm",
        huggingface="ForMaskedLM",
        keras_hub="MaskedLM",
        sentence_transformers="SparseEncoder",
        pipeline="feature-extraction",
        method="embed",
        usage='["A text.", "Another one."]',
        vectors="sparse",
        panels=("similar", "search"),
    ),
    Kind(
        name="pretrainer",
        model="BertPretrainer",
        preprocessor="BertPretrainerPreprocessor",
        served="ServedPretrainer",
        parts=("masked_lm", "next_sentence_predictor"),
        huggingface="ForPreTraining",
        pipeline="fill-mask",
        method="fill_mask",
        usage='"A text with a [MASK] word."',
        explains="masked_token",
        panels=("fill",),
    ),
    Kind(
        name="text_embedder",
        model="BertTextEmbedder",
        preprocessor="BertTextEmbedderPreprocessor",
        served="ServedEmbedder",
        settings={"pooling": "mean"},
        sentence_transformers="SentenceTransformer",
        pipeline="sentence-similarity",
        method="embed",
        usage='["A text.", "Another one."]',
        vectors="dense",
        panels=("similar", "search"),
    ),
    Kind(
        name="causal_lm",
        model="BertCausalLM",
        preprocessor="BertCausalLMPreprocessor",
        served="ServedCausalLM",
        huggingface="LMHeadModel",
        keras_hub="CausalLM",
        pipeline="text-generation",
        method="generate",
        usage='"Once upon a time"',
        panels=("write",),
    ),
    Kind(name="seq2seq_lm", huggingface="ForConditionalGeneration"),
    Kind(
        name="replaced_token_detector",
        model="BertReplacedTokenDetector",
        preprocessor="BertReplacedTokenDetectorPreprocessor",
        served="ServedDetector",
        settings={"pooling": "tokens", "dropout": 0.0},
        huggingface="ForPreTraining",
        method="detect",
        usage='"A text with a wrong word."',
        panels=("tag",),
    ),
    Kind(
        name="structural_probe",
        model="BertStructuralProbe",
        preprocessor="BertStructuralProbePreprocessor",
        served="ServedProbe",
        method="parse",
        usage='["A", "sentence", "of", "words"]',
    ),
    Kind(name="multi_task", model="BertMultiTask", served="ServedTasks", single=False),
    Kind(name="distiller", model="BertDistiller", single=False),
    # Its instances have the kind of their members.
    Kind(name="ensemble", model="BertEnsemble", single=False),
    Kind(
        name="electra_pretrainer",
        model="ElectraPretrainer",
        preprocessor="ElectraPretrainerPreprocessor",
        parts=("replaced_token_detector",),
        single=False,
    ),
)
KINDS = {row.name: row for row in _ROWS}
ENCODER = Kind("encoder", model="BertBackbone", served="ServedEncoder")
SEARCH_INDEX = Kind("search_index", model="SearchIndex", served="ServedIndex", folder="search")
# Classes that can be served, besides those of `KINDS`.
SERVED = (
    ENCODER,
    Kind("elmo_embedder", model="ElmoEmbedder", served="ServedElmo", folder="lineage.elmo"),
    Kind(
        "seq2seq_lm",
        model="TransformerSeq2SeqLM",
        served="ServedSeq2SeqLM",
        folder="lineage.seq2seq",
    ),
    SEARCH_INDEX,
)
# Formats of benchmarks other than tables, by `Task.form`, with their classes.
FORMS = {
    name: Kind(name, data=data, folder="tasks.superglue")
    for name, data in (
        ("superglue", "Classes"),
        ("superglue_copa", "CauseOrEffect"),
        ("superglue_multirc", "MultiRC"),
        ("superglue_record", "Entities"),
        ("superglue_wic", "WordsInContext"),
        ("superglue_wsc", "Winograd"),
    )
}


def kinds_with(part):
    """Return the rows of all kinds for which the field `part`, such as "data", is not empty.

    >>> [kind.name for kind in kinds_with("data")][:2]
    ['text_classifier', 'text_regressor']
    """
    return [kind for kind in KINDS.values() if getattr(kind, part)]


def kind_of(model):
    """Return the row of `KINDS` for a task or its class; `None` for custom tasks and others."""
    return KINDS.get(getattr(model, "kind", None))


def tables_of(model):
    """Return `Kind.tables` of a task or its class; `None` for anything else."""
    kind = getattr(model, "kind", None)
    return kind and KINDS[kind].tables
