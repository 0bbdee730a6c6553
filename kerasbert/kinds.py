"""Table of the kinds of heads, with their class names in each subpackage.

To add a kind, add a row, and a file of its name in each subpackage where it differs from the base,
such as `models/text_classifier.py` and `preprocessors/text_classifier.py`.
"""

import importlib
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Kind:
    """One kind of head; names only, so that reading the table imports nothing.

    Args:
        name: string. Name of its files, and in `convert(task=...)` and `file_task(head=...)`.
        models: string. Class in `kerasbert/models/<name>.py`; "" if only `kerasbert.lineage` has
            this head.
        preprocessors: string. Class in `kerasbert/preprocessors/<name>.py`; "" for none.
        export: string. Class in `kerasbert/export/<name>.py` that serves it; "" for none.
        tasks: string. Class in `kerasbert/tasks/<name>.py` that reads data and writes predictions;
            "" for none.
        settings: dict. Defaults of its head, which family and caller can override.
        like: string. Kind with the same weights, whose settings in `families` and tables in
            `conversion` apply to this one; "" for its own.
        parts: tuple. Kinds whose heads it combines.
        huggingface: string. Suffix of its class names in transformers; "" for none.
        keras_hub: string. Suffix of its class names in KerasHub; "" for none.
        pipeline: string. Pipeline tag on the Hugging Face hub; "" for none.
        usage: string. Example call of its inference method, for model cards.
        single: bool. Whether it is one model whose heads other formats can represent.
    """

    name: str
    models: str = ""
    preprocessors: str = ""
    export: str = ""
    tasks: str = ""
    settings: dict = field(default_factory=dict)
    like: str = ""
    parts: tuple = ()
    huggingface: str = ""
    keras_hub: str = ""
    pipeline: str = ""
    usage: str = ""
    single: bool = True

    @property
    def tables(self):
        """The kind whose settings in `families` and tables in `conversion` apply to this one."""
        return self.like or self.name

    def load(self, room):
        """Import its class from a subpackage: "models", "preprocessors", "export" or "tasks".

        >>> KINDS["text_classifier"].load("models").__name__
        'BertTextClassifier'
        """
        module = importlib.import_module(f"kerasbert.{room}.{self.name}")
        return getattr(module, getattr(self, room))


_ROWS = (
    Kind(
        name="text_classifier",
        models="BertTextClassifier",
        preprocessors="BertTextClassifierPreprocessor",
        export="ServedClassifier",
        tasks="TextClassification",
        huggingface="ForSequenceClassification",
        keras_hub="TextClassifier",
        pipeline="text-classification",
        usage='classify(["A text.", "Another one."])',
    ),
    Kind(
        name="text_regressor",
        models="BertTextRegressor",
        preprocessors="BertTextRegressorPreprocessor",
        export="ServedRegressor",
        tasks="TextRegression",
        like="text_classifier",
        huggingface="ForSequenceClassification",
        keras_hub="TextClassifier",
        pipeline="text-classification",
        usage='score(["A text.", "Another one."])',
    ),
    Kind(
        name="reranker",
        models="BertReranker",
        preprocessors="BertRerankerPreprocessor",
        export="ServedReranker",
        tasks="Reranking",
        like="text_classifier",
        huggingface="ForSequenceClassification",
        keras_hub="TextClassifier",
        pipeline="text-ranking",
        usage='rank("A query", ["A text.", "Another one."])',
    ),
    Kind(
        name="token_classifier",
        models="BertTokenClassifier",
        preprocessors="BertTokenClassifierPreprocessor",
        export="ServedTagger",
        tasks="TokenClassification",
        settings={"pooling": "tokens"},
        huggingface="ForTokenClassification",
        pipeline="token-classification",
        usage='tag("A text.")',
    ),
    Kind(
        name="question_answering",
        models="BertQuestionAnswering",
        preprocessors="BertQuestionAnsweringPreprocessor",
        export="ServedReader",
        tasks="QuestionAnswering",
        settings={"pooling": "tokens", "dropout": 0.0},
        huggingface="ForQuestionAnswering",
        pipeline="question-answering",
        usage='answer("Who?", "A text that says who.")',
    ),
    Kind(
        name="multiple_choice",
        models="BertMultipleChoice",
        preprocessors="BertMultipleChoicePreprocessor",
        export="ServedChooser",
        tasks="MultipleChoice",
        huggingface="ForMultipleChoice",
        pipeline="multiple-choice",
        usage='choose("A text", ["so", "or so"])',
    ),
    Kind(
        name="next_sentence_predictor",
        models="BertNextSentencePredictor",
        preprocessors="BertNextSentencePredictorPreprocessor",
        export="ServedNextSentence",
        settings={"dropout": 0.0, "sentence_order": False},
        huggingface="ForNextSentencePrediction",
        usage='follows("A sentence.", "The next one.")',
    ),
    Kind(
        name="masked_lm",
        models="BertMaskedLM",
        preprocessors="BertMaskedLMPreprocessor",
        export="ServedMaskedLM",
        huggingface="ForMaskedLM",
        keras_hub="MaskedLM",
        pipeline="fill-mask",
        usage='fill_mask("A text with a [MASK] word.")',
    ),
    Kind(
        name="sparse_embedder",
        models="BertSparseEmbedder",
        preprocessors="BertSparseEmbedderPreprocessor",
        export="ServedSparseEmbedder",
        like="masked_lm",
        huggingface="ForMaskedLM",
        keras_hub="MaskedLM",
        pipeline="feature-extraction",
        usage='decode(model.embed("A text."), top_k=10)',
    ),
    Kind(
        name="pretrainer",
        models="BertPretrainer",
        preprocessors="BertPretrainerPreprocessor",
        export="ServedPretrainer",
        parts=("masked_lm", "next_sentence_predictor"),
        huggingface="ForPreTraining",
        pipeline="fill-mask",
        usage='fill_mask("A text with a [MASK] word.")',
    ),
    Kind(
        name="text_embedder",
        models="BertTextEmbedder",
        preprocessors="BertTextEmbedderPreprocessor",
        export="ServedEmbedder",
        settings={"pooling": "mean"},
        pipeline="sentence-similarity",
        usage='embed(["A text.", "Another one."])',
    ),
    Kind(
        name="causal_lm",
        models="BertCausalLM",
        preprocessors="BertCausalLMPreprocessor",
        export="ServedCausalLM",
        huggingface="LMHeadModel",
        keras_hub="CausalLM",
        pipeline="text-generation",
        usage='generate("Once upon a time")',
    ),
    Kind(name="seq2seq_lm", huggingface="ForConditionalGeneration"),
    Kind(
        name="replaced_token_detector",
        models="BertReplacedTokenDetector",
        preprocessors="BertReplacedTokenDetectorPreprocessor",
        export="ServedDetector",
        settings={"pooling": "tokens", "dropout": 0.0},
        huggingface="ForPreTraining",
        usage='detect("A text with a wrong word.")',
    ),
    Kind(
        name="structural_probe",
        models="BertStructuralProbe",
        preprocessors="BertStructuralProbePreprocessor",
        export="ServedProbe",
        usage='parse(["A", "sentence", "of", "words"])',
    ),
    Kind(name="multi_task", models="BertMultiTask", export="ServedTasks", single=False),
    Kind(name="distiller", models="BertDistiller", single=False),
    Kind(
        name="electra_pretrainer",
        models="ElectraPretrainer",
        preprocessors="ElectraPretrainerPreprocessor",
        parts=("replaced_token_detector",),
        single=False,
    ),
)
KINDS = {row.name: row for row in _ROWS}


def kinds_with(room):
    """Return the rows that have a class in a subpackage; see `Kind.load`.

    >>> [kind.name for kind in kinds_with("tasks")][:2]
    ['text_classifier', 'text_regressor']
    """
    return [kind for kind in KINDS.values() if getattr(kind, room)]


def tables_of(model):
    """Return `Kind.tables` of a task or its class; `None` for anything else."""
    kind = getattr(model, "kind", None)
    return kind and KINDS[kind].tables
