from kerasbert.preprocessors.packing import BertPreprocessor as BertPreprocessor
from kerasbert.preprocessors.question_answering import (
    BertQuestionAnsweringPreprocessor as BertQuestionAnsweringPreprocessor,
)
from kerasbert.preprocessors.text_classifier import (
    BertTextClassifierPreprocessor as BertTextClassifierPreprocessor,
)
from kerasbert.preprocessors.token_classifier import (
    BertTokenClassifierPreprocessor as BertTokenClassifierPreprocessor,
)
