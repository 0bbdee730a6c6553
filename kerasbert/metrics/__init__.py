"""Official evaluation metrics of the tasks.

N examples, W words.

Scores are fractions from 0 to 1 (correlations from -1 to 1), as in scikit-learn. Functions take
`(y, predictions)`, N of each, and return a number or a dict of numbers. `ScoreCallback` adds scores
to the logs of `fit`.
"""

import functools
import types

from kerasbert.base import host  # noqa: F401
from kerasbert.metrics.answers import (
    ANSWER_RULES,
    AnswerRules,
    answer_scores,
    squad,
    squad2,
    with_threshold,
)
from kerasbert.metrics.calibration import (
    expected_calibration_error,
    fit_temperature,
    reliability,
    with_temperature,
)
from kerasbert.metrics.callback import ScoreCallback
from kerasbert.metrics.classes import (
    MACRO,
    accuracy,
    f1,
    f1_from,
    macro_f1,
    macro_precision,
    macro_recall,
    matthews,
    mean_absolute_error,
    pearson,
    precision,
    recall,
    scores_by_class,
    spearman,
)
from kerasbert.metrics.ranking import mrr, ndcg
from kerasbert.metrics.superglue import gender_parity, multirc
from kerasbert.metrics.tags import entities, entities_by_type, klue_entities
from kerasbert.metrics.thresholds import best_threshold, conformal_threshold
from kerasbert.metrics.trees import depth_spearman, distance_spearman, root_accuracy, uuas

#: Metrics by name. `squad2` and `klue_entities` have optional arguments beside `(y, predictions)`;
#: the `y` of `multirc` also has questions, and that of `gender_parity` has only names of pairs.
METRICS = types.MappingProxyType(
    {
        "accuracy": accuracy,
        "f1": f1,
        "precision": precision,
        "recall": recall,
        "macro_f1": macro_f1,
        "macro_precision": macro_precision,
        "macro_recall": macro_recall,
        "matthews": matthews,
        "pearson": pearson,
        "spearman": spearman,
        "mean_absolute_error": mean_absolute_error,
        "f1_from_3": f1_from,
        "squad": squad,
        "squad2": squad2,
        "korquad": functools.partial(squad, rules="korquad"),
        "jsquad": functools.partial(squad, rules="jsquad"),
        "multirc": multirc,
        "gender_parity": gender_parity,
        "entities": entities,
        "klue_entities": klue_entities,
        "ndcg@10": ndcg,
        "mrr@10": mrr,
    }
)
#: Name of the main score of each metric that returns several scores.
MAIN_SCORES = {
    "squad": "f1",
    "squad2": "best_f1",
    "korquad": "f1",
    "jsquad": "f1",
    "multirc": "f1a",
    "entities": "f1",
    "klue_entities": "entity_f1",
}

__all__ = [
    "ANSWER_RULES",
    "MACRO",
    "MAIN_SCORES",
    "METRICS",
    "AnswerRules",
    "ScoreCallback",
    "accuracy",
    "answer_scores",
    "best_threshold",
    "conformal_threshold",
    "depth_spearman",
    "distance_spearman",
    "entities",
    "entities_by_type",
    "expected_calibration_error",
    "f1",
    "f1_from",
    "fit_temperature",
    "gender_parity",
    "klue_entities",
    "macro_f1",
    "macro_precision",
    "macro_recall",
    "matthews",
    "mean_absolute_error",
    "mrr",
    "multirc",
    "ndcg",
    "pearson",
    "precision",
    "recall",
    "reliability",
    "root_accuracy",
    "scores_by_class",
    "spearman",
    "squad",
    "squad2",
    "uuas",
    "with_temperature",
    "with_threshold",
]
