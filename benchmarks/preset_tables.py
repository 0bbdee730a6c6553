"""Small presets compared with the alternatives that a user has, in English, Korean and Japanese.

    python benchmarks/preset_tables.py OUT --presets bert_tiny_demo_en_uncased --tasks en
    python benchmarks/preset_tables.py OUT --presets FOLDER --tasks ko,ja --treebanks UD --seeds 0,1
    python benchmarks/preset_tables.py OUT --table    # only prints the finished runs, as Markdown

English text classification: film reviews (fresh or rotten), TREC's questions (6 classes), messages
(spam or not), and paragraphs of Brown (press, belles lettres, learned, fiction). Korean and
Japanese text classification: topics of a chat, groups of emoji by their names and keywords,
programs by paragraphs of LibreOffice's help, sections of Debian's packages by their titles, and in
Korean also commands to a smart home (the Japanese data has templates of only 4 intents). Parts of
speech need `--treebanks`, a folder with the dev (for training) and test files of UD. Related items,
such as those of one document, conversation, template or source package, are never in both training
and test. The test has 500 texts, or 30% of all; for the help it always has the same pages, which
are not in the presets' training text.

- full: all weights are trained with mean pooling and AdamW. The peak learning rate is the one that
  the preset recommends, or else 1e-4, with warmup over a tenth of the steps. Training takes 10
  epochs on 100 labels in batches of 8; in batches of 16, it takes 6 epochs on 500 labels and 2 on
  more than 1,500.
- frozen: mean embeddings, standardized, and logistic regression.
- random: the same architecture and tokenizer with random weights, as full and as frozen.
- TF-IDF of words and word bigrams, and hashed character n-grams within words (of 3 to 6 characters;
  1 to 4 in Korean and Japanese), as in fastText but without training embeddings of them. Both use
  logistic regression. Every logistic regression selects its C by cross-validation with 3 folds of
  its training labels.
- minilm: MiniLM-L6, in English.

A fifth of the labels (at most 300) is held out first, to fit the temperature and for the column
"held out"; with up to 1,000 labels the model is then trained again on all labels. Scores are means
over seeds; a seed determines the texts and the initial weights. The 95% intervals are from 2,000
resamples of the seeds and of each seed's test texts. Differences are paired: both scores have the
same seeds and texts. A difference is "ahead" or "behind" if its interval excludes 0, and "level"
otherwise. The calibration error is measured on the test set after temperature scaling.

Two kinds of tasks need no labels. Similarity tasks have pairs of TREC's questions from the same
fine class or from two, and pairs of package titles from the same section or from two; the score is
the Spearman correlation with 1 and 0. Retrieval tasks (nDCG@10) have Python's documentation of its
library, replies of films and chats, passages of Brown, paragraphs of one page of the help, and
names of an emoji in Korean that are searched for by its name in Japanese and vice versa. The
contestants are mean embeddings, TF-IDF and, for retrieval, BM25; TF-IDF and BM25 read Korean and
Japanese as single letters and pairs of letters. With `--held-out TEXT`, encoders predict masked
words of this text.

Each contestant runs in a separate process. OUT/results.jsonl has one line per run, and finished
runs are not repeated, so other settings need another folder. The encoders run on PyTorch unless
KERAS_BACKEND is set.
"""

import functools
import gc
import itertools
import json
import os
import random
import subprocess
import sys
import warnings
from collections import Counter, defaultdict
from pathlib import Path
from statistics import mean
from time import perf_counter
from typing import Annotated

import few_labels
import numpy as np
import real_data
import training_embedders
import typer
from contest import console, environment, table
from few_labels import TESTED, listed

RETRAINED, HELD_OUT, RESAMPLES = 1000, 300, 2000
RANDOM, MINILM = ", random", "minilm"
# First and last number of the documents of each genre, in the order of the Brown corpus.
GENRES = {"press": (0, 88), "belles lettres": (189, 264), "learned": (294, 374)}
GENRES["fiction"] = (374, 500)


# === Tasks ===


def genres():
    documents = real_data.brown_tagged()
    for genre, (first, last) in GENRES.items():
        for number in range(first, last):
            lines = [" ".join(word for word, _ in one) for one in documents[number]]
            for start in range(0, len(lines) - 3, 4):
                text = " ".join(lines[start : start + 4])
                yield text.replace("``", '"').replace("''", '"'), genre, number


def chat(language):
    """Return texts of topics with at least 15 conversations; conversations that share a text count
    as one.
    """
    rows, of_text, leader = real_data.chat_topics(language), {}, {}

    def first(group):
        while group in leader:
            group = leader[group]
        return group

    for _, group, text in rows:
        one, other = first(group), first(of_text.setdefault(text, group))
        if one != other:
            leader[one] = other
    found = [(text, topic, first(group)) for topic, group, text in rows]
    counts = Counter(topic for topic, _ in {row[1:] for row in found})
    return [row for row in found if counts[row[1]] >= 15]


def commands():
    """Return sentences of intents with at least 3 templates, from at most 30 templates per
    intent.
    """
    rows, templates = real_data.korean_commands(), defaultdict(dict)
    for intent, template, _ in rows:
        templates[intent][template] = None
    for intent, template, text in rows:
        if len(templates[intent]) >= 3 and template in list(templates[intent])[:30]:
            yield text, intent, template


def ungrouped(rows):
    return [(text, name, text) for text, name in rows]


# `(text, class, group)` of each text, and the score.
CLASSES = {
    "en-reviews": (lambda: ungrouped(few_labels.rows_of("reviews")), "accuracy"),
    "en-trec": (lambda: ungrouped(few_labels.rows_of("trec")), "accuracy"),
    "en-sms": (lambda: ungrouped(few_labels.rows_of("spam")), "macro F1"),
    "en-genres": (genres, "accuracy"),
    "ko-commands": (commands, "macro F1"),
}
for _code in ("ko", "ja"):
    CLASSES[f"{_code}-chat"] = (functools.partial(chat, _code), "macro F1")
    CLASSES[f"{_code}-emoji"] = (
        lambda code=_code: ungrouped(row[::-1] for row in real_data.emoji_names(code)),
        "accuracy",
    )
    CLASSES[f"{_code}-packages"] = (
        lambda code=_code: [(c, a, b) for a, b, c in real_data.package_titles(code)],
        "macro F1",
    )
    CLASSES[f"{_code}-help"] = (
        lambda code=_code: [(c, a, b) for a, b, c in real_data.help_topics(code)],
        "macro F1",
    )
TAGS = ("ko-tags", "ja-tags", "en-tags")
RETRIEVAL = ("en-library", "en-replies", "en-passages", "ko-replies", "ja-replies")
RETRIEVAL += ("ko-pages", "ja-pages", "ko-to-ja", "ja-to-ko")
SIMILARITY = ("en-similarity", "ko-similarity", "ja-similarity")
SCORES = {name: score for name, (_, score) in CLASSES.items()}
SCORES |= dict.fromkeys(TAGS, "accuracy") | dict.fromkeys(RETRIEVAL, "nDCG@10")
SCORES |= dict.fromkeys(SIMILARITY, "Spearman") | {"masked": "words found"}


@functools.cache
def rows_of(task):
    """Return the distinct texts of a task, in a fixed order."""
    return sorted({row[0]: row for row in CLASSES[task][0]()}.values(), key=lambda row: row[0])


def split(rows, seed, is_test=None):
    """Return `(train, test)`: groups of each class go into the test until it has 500 texts or 30%
    of all.

    Args:
        is_test: function of a group. Whether it is in the test, whatever the seed.
    """
    draw = random.Random(seed)
    if is_test:
        train, test = ([r for r in rows if is_test(r[2]) == side] for side in (False, True))
        draw.shuffle(train)
        draw.shuffle(test)
        return train, test[:TESTED]
    groups, classes = defaultdict(list), defaultdict(list)
    for row in rows:
        groups[row[2]].append(row)
    for group, members in groups.items():
        classes[members[0][1]].append(group)
    share, train, test = min(TESTED / len(rows), 0.3), [], []
    for name in sorted(classes):
        names = draw.sample(classes[name], len(classes[name]))
        wanted, found = share * sum(len(groups[one]) for one in names), 0
        for place, group in enumerate(names):
            is_test = found < wanted and place < len(names) - 1
            (test if is_test else train).extend(groups[group])
            found += len(groups[group])
    draw.shuffle(train)
    draw.shuffle(test)
    return train, test[:TESTED]


def some(train, labels):
    """Return `count` rows, with at least two per class, or all rows if `count` is 0; `None` if
    there are too few.
    """
    if labels > len(train):
        return None
    counts, first, others = Counter(), [], []
    for row in train:
        counts[row[1]] += 1
        (first if counts[row[1]] <= 2 else others).append(row)
    return (first + others)[: labels or None]


def apart(y):
    """Return training indices and held-out indices; the held-out ones are at most a fifth of each
    class.
    """
    order = np.random.default_rng(0).permutation(len(y))
    order = order[np.argsort(np.asarray(y)[order], kind="stable")]
    every = max(5, -(-len(y) // HELD_OUT))
    return np.delete(order, slice(every - 1, None, every)), order[every - 1 :: every]


def treebank(folder, language, part):
    """Return the words and parts of speech of a UD file: two lists of lists."""
    from kerasbert.tasks import read_conllu

    (path,) = sorted(Path(folder).glob(f"{language}_*-ud-{part}.conllu*"))
    trees = read_conllu(str(path))
    return [list(tree.words) for tree in trees], [list(tree.tags) for tree in trees]


# === Contestants ===


def by_folds(model, values, score):
    """Return the pipeline with the C that is best in cross-validation; of equally good ones, the
    first.
    """
    from sklearn.model_selection import GridSearchCV, StratifiedKFold

    folds = StratifiedKFold(3, shuffle=True, random_state=0)
    scoring = score.lower().replace("macro f1", "f1_macro")
    return GridSearchCV(model, {"logisticregression__C": values}, scoring=scoring, cv=folds)


def linear(method, task):
    """Return a model whose `fit` and `predict_proba` take texts, or embeddings for the method
    "frozen".
    """
    from sklearn.feature_extraction.text import HashingVectorizer
    from sklearn.feature_selection import VarianceThreshold
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    head = LogisticRegression(max_iter=1000)
    if method == "TF-IDF":
        return by_folds(few_labels.tfidf_model(), (10, 100, 1000, 1), SCORES[task])
    if method == "frozen":
        model = make_pipeline(StandardScaler(), head)
        return by_folds(model, (1e-2, 1e-1, 1e-3, 1), SCORES[task])
    sizes = (3, 6) if task.startswith("en") else (1, 4)
    # Omit n-grams that occur in no text, since the regression would have a weight for each.
    hashed = HashingVectorizer(analyzer="char_wb", ngram_range=sizes, alternate_sign=False)
    return by_folds(
        make_pipeline(hashed, VarianceThreshold(), head), (10, 100, 1000, 1), SCORES[task]
    )


class Encoder:
    """A preset, or its architecture with random weights."""

    def __init__(self, name, options):
        self.random = name.endswith(RANDOM)
        given = options["paths"][name.removesuffix(RANDOM)]
        self.preset = real_data.minilm_dir() if given == MINILM else given
        self.rate, self.precision = options["rate"], options["precision"]
        self.epochs, self.length = options["epochs"], options["length"]
        self.vectors, self.seed = {}, None

    def make(self, kind, seed, **arguments):
        import keras
        import quality

        gc.collect()  # Free the memory of the previous model.
        keras.utils.set_random_seed(seed)
        settings = {"preset": self.preset}
        arguments |= {"sequence_length": self.length, "dtype": self.precision}
        return quality.load(kind, settings, not self.random, **arguments)

    def embed(self, texts, seed):
        """Return mean embeddings; each text is computed only once."""
        from kerasbert.models import BertTextEmbedder

        if self.seed is None or (self.random and seed != self.seed):
            self.embedder, self.vectors = self.make(BertTextEmbedder, seed), {}
            self.seed = seed
        new = [text for text in dict.fromkeys(texts) if text not in self.vectors]
        if new:
            self.vectors |= zip(new, np.asarray(self.embedder.embed(new)))
        return np.stack([self.vectors[text] for text in texts])

    def train(self, kind, x, y, labels, seed, **arguments):
        """Return a trained model."""
        import keras
        import quality

        from kerasbert.presets import finetuning_learning_rate

        model = self.make(kind, seed, labels=labels, **arguments)
        settings = {
            "rate": self.rate or finetuning_learning_rate(self.preset) or 1e-4,
            "batch_size": 8 if len(x) <= 100 else 16,
            "epochs": self.epochs or min(max(2, -(-3000 // len(x))), 10),
            "min_steps": 0,
            "jit_compile": keras.backend.backend() == "jax",
            "verbose": 0,
        }
        return quality.train_model(model, x, y, settings)


def probabilities(task, encoder, method, train, texts, labels, seed):
    """Train a model on rows and return its probabilities (N, C) for texts; `labels` are class
    numbers.
    """
    x, names = map(list, zip(*train))
    if method == "full":
        from kerasbert.models import BertTextClassifier

        model = encoder.train(BertTextClassifier, x, names, labels, seed, pooling="mean")
        return model.predict_proba(texts)
    if method == "frozen":
        x, texts = encoder.embed(x, seed), encoder.embed(texts, seed)
    model = linear(method, task)
    with warnings.catch_warnings():
        # Ignore the warning that a class has fewer texts than there are folds.
        warnings.simplefilter("ignore")
        model.fit(x, [labels.index(name) for name in names])
    found = np.zeros((len(texts), len(labels)))
    found[:, model.classes_] = model.predict_proba(texts)
    return found


def score_classes(task, encoder, method, count, seed, options):
    from kerasbert.metrics import expected_calibration_error, fit_temperature, with_temperature

    # The presets were trained on the other pages of the help.
    is_test = real_data.is_test_page if task.endswith("-help") else None
    train, test = split(rows_of(task), seed, is_test)
    train = some(train, count)
    if train is None:
        return None
    train = [row[:2] for row in train]
    texts, gold = [row[0] for row in test], [row[1] for row in test]
    labels = sorted({name for _, name in train} | set(gold))
    y = np.array([labels.index(name) for _, name in train])
    inside, outside = apart(y)
    again = len(train) <= RETRAINED
    asked = [train[i][0] for i in outside]
    given = (task, encoder, method)
    found = probabilities(
        *given, [train[i] for i in inside], asked if again else asked + texts, labels, seed
    )
    held, found = found[: len(asked)], found[len(asked) :]
    if again:
        found = probabilities(*given, train, texts, labels, seed)
    temperature = fit_temperature(y[outside], held)
    gold = np.array([labels.index(name) for name in gold])
    error = expected_calibration_error(gold, with_temperature(found, temperature))
    return {
        "calibration": round(error, 4),
        "temperature": round(temperature, 3),
        "held_out": round(float(np.mean(held.argmax(1) == y[outside])), 4),
        "train": len(train),
        "classes": len(labels),
        "rows": {"gold": gold.tolist(), "found": found.argmax(1).tolist()},
    }


def endings(word):
    """Return a word and its endings, the longest first."""
    return [word, *((size, word[-size:]) for size in (4, 3, 2, 1)), ""]


def most_frequent(words, tags):
    """Return a function of a word: its most frequent tag, or that of its longest known ending."""
    counts = defaultdict(Counter)
    for word, tag in itertools.chain(*map(zip, words, tags)):
        for ending in endings(word):
            counts[ending][tag] += 1
    best = {ending: count.most_common(1)[0][0] for ending, count in counts.items()}
    return lambda word: next(best[ending] for ending in endings(word) if ending in best)


def score_tags(task, encoder, method, count, seed, options):
    words, tags = treebank(options["treebanks"], task[:2], "dev")
    if count > len(words):
        return None
    order = random.Random(seed).sample(range(len(words)), count or len(words))
    words, tags = ([column[i] for i in order] for column in (words, tags))
    texts, gold = (column[:TESTED] for column in treebank(options["treebanks"], task[:2], "test"))
    if encoder is None:
        tag_of = most_frequent(words, tags)
        found = [[tag_of(word) for word in one] for one in texts]
    else:
        from kerasbert.models import BertTokenClassifier

        labels = sorted({tag for one in tags + gold for tag in one})
        pieces = {"label_pieces": options["pieces"]}
        model = encoder.train(BertTokenClassifier, words, tags, labels, seed, **pieces)
        found = model.predict_labels(texts)
    right = [sum(a == b for a, b in zip(*pair)) for pair in zip(found, gold)]
    return {"train": len(words), "rows": {"right": right, "total": list(map(len, gold))}}


def similar_pairs(task, seed, count=1000):
    """Return two lists of texts, and for each pair whether the classes are equal, as in half of the
    pairs.
    """
    draw, of_class = random.Random(seed), defaultdict(list)
    if task.startswith("en"):
        found = [((coarse, fine), text) for coarse, fine, text in real_data.trec_questions()]
    else:
        found = [(section, text) for section, _, text in real_data.package_titles(task[:2])]
    for name, text in found:
        of_class[name].append(text)
    of_class = {name: texts for name, texts in of_class.items() if len(texts) > 1}
    names, rows = sorted(of_class), []
    weights = [len(of_class[name]) for name in names]
    while len(rows) < count:
        one, other = draw.choices(names, weights, k=2)
        if len(rows) % 2:
            rows.append((*draw.sample(of_class[one], 2), 1))
        elif one != other:
            rows.append((draw.choice(of_class[one]), draw.choice(of_class[other]), 0))
    return tuple(map(list, zip(*rows)))


def asked(task, seed):
    """Return queries and their relevant texts."""
    language, what = task.split("-", 1)
    if what == "passages":
        from sparse_search import passages

        return passages(1, seed)[1]
    if language == "en":
        data = what.replace("replies", "dialogues")
        return list(map(list, training_embedders.pairs_of(0, seed, data)[1]))
    draw = random.Random(seed)
    if what == "replies":
        texts = real_data.chat_topics(language)
        pairs = [(a, b) for (*one, a), (*other, b) in itertools.pairwise(texts) if one == other]
    elif what == "pages":
        pages = defaultdict(list)
        for _, page, text in real_data.help_topics(language):
            if real_data.is_test_page(page):
                pages[page].append(text)
        pairs = [draw.sample(texts, 2) for _, texts in sorted(pages.items()) if len(texts) > 1]
    else:
        names = (real_data.emoji_names(code) for code in task.split("-to-"))
        pairs = [(a, b) for (_, a), (_, b) in zip(*names, strict=True)]
    # Each text once, as each query has one relevant text.
    pairs = {b: a for a, b in {a: b for a, b in draw.sample(pairs, len(pairs))}.items()}
    return list(pairs.values())[:TESTED], list(pairs)[:TESTED]


def reading(task):
    """Return arguments of scikit-learn's vectorizers; Korean and Japanese "words" are letters and
    letter pairs.
    """
    return {} if task.startswith("en") else {"analyzer": "char_wb", "ngram_range": (1, 2)}


def bm25(task, queries, texts, k1=1.5, b=0.75):
    """Return BM25 scores (Q, N) of queries and texts."""
    from sklearn.feature_extraction.text import CountVectorizer

    reader = CountVectorizer(**reading(task))
    counts = reader.fit_transform(texts).toarray().astype("float32")
    lengths, holding = counts.sum(1, keepdims=True), (counts > 0).sum(0)
    rarity = np.log(1 + (len(texts) - holding + 0.5) / (holding + 0.5))
    weights = counts * (k1 + 1) / (counts + k1 * (1 - b + b * lengths / lengths.mean()))
    return (reader.transform(queries) > 0) @ (weights * rarity).T


def gains(scores):
    """Return nDCG@10 of each query, for scores (N, N) whose relevant text is on the diagonal."""
    ranks = (scores > np.diag(scores)[:, None]).sum(1) + 1
    return np.where(ranks <= 10, 1 / np.log2(1 + ranks), 0.0)


def score_vectors(task, encoder, method, count, seed, options):
    is_pairs = task in SIMILARITY
    first, second, *gold = similar_pairs(task, seed) if is_pairs else asked(task, seed)
    if method == "BM25":
        return {"rows": {"gain": gains(bm25(task, first, second)).round(4).tolist()}}
    if method == "TF-IDF":
        from sklearn.feature_extraction.text import TfidfVectorizer

        reader = TfidfVectorizer(sublinear_tf=True, **reading(task)).fit([*first, *second])
        vectors = [reader.transform(texts).toarray() for texts in (first, second)]
    else:
        vectors = [encoder.embed(texts, seed) for texts in (first, second)]
        vectors = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in vectors]
    if is_pairs:
        cosines = (vectors[0] * vectors[1]).sum(1)
        return {"rows": {"label": gold[0], "cosine": cosines.round(5).tolist()}}
    return {"rows": {"gain": gains(vectors[0] @ vectors[1].T).round(4).tolist()}}


def score_masked(task, encoder, method, count, seed, options):
    import recipe

    from kerasbert.models import BertMaskedLM

    with warnings.catch_warnings():
        # With a random head, there is nothing to score.
        warnings.filterwarnings("error", "New, random weights")
        model = BertMaskedLM.from_preset(encoder.preset)
    out, name = Path(options["out"]) / "masked", Path(encoder.preset).name
    name += "-" + Path(options["held_out"]).stem
    given = (encoder.preset, options["held_out"], out, model.preprocessor.tokenizer, name)
    found = recipe.score(*given)
    words = found["masked_words"]
    right = round(found["word_accuracy"] * words)
    return {**found, "rows": {"right": [1] * right + [0] * (words - right), "total": [1] * words}}


def runner(task):
    if task in CLASSES:
        return score_classes
    if task.startswith("masked"):
        return score_masked
    return score_tags if task in TAGS else score_vectors


def methods_of(task, model):
    """Return the methods by which a contestant does a task; an empty list if it does not."""
    is_encoder = model not in ("TF-IDF", "character n-grams", "BM25", "most frequent tag")
    if is_encoder and model.startswith(MINILM) and not task.startswith("en"):
        return []
    if task in CLASSES:
        counted = {"TF-IDF": ["TF-IDF"], "character n-grams": ["characters"]}
        return ["full", "frozen"] if is_encoder else counted.get(model, [])
    if task in TAGS:
        return ["full"] if is_encoder else ["tags"] * (model == "most frequent tag")
    if task.startswith("masked"):
        return ["masked"] * (is_encoder and not model.endswith(RANDOM))
    if is_encoder:
        return ["vectors"]
    return [model] * (model == "TF-IDF" or (model == "BM25" and task in RETRIEVAL))


# === Tables ===


def resampled(row, score):
    """Return a run's score on its test texts, followed by its scores on resamples of them: floats
    (1 + B,).
    """
    rows = {name: np.asarray(column, float) for name, column in row["rows"].items()}
    count = len(next(iter(rows.values())))
    draw = np.random.default_rng(row["key"][4])
    weights = draw.multinomial(count, np.full(count, 1 / count), RESAMPLES)
    weights = np.concatenate([np.ones((1, count)), weights])
    if "gain" in rows:
        return weights @ rows["gain"] / count
    if "total" in rows:
        return (weights @ rows["right"]) / (weights @ rows["total"])
    if score == "Spearman":
        from scipy.stats import rankdata

        # The correlation of the ranks among all texts.
        ranks = np.stack([rankdata(column) for column in rows.values()])
        ranks -= ranks.mean(1, keepdims=True)
        means = weights @ ranks.T / count
        a, b = ranks
        covariance = weights @ (a * b) / count - means[:, 0] * means[:, 1]
        spread = weights @ (ranks.T**2) / count - means**2
        return covariance / np.sqrt(spread.prod(1))
    gold, found = rows["gold"], rows["found"]
    if score == "accuracy":
        return weights @ (gold == found) / count
    classes = np.unique([gold, found])
    right = weights @ ((gold == found)[:, None] & (gold[:, None] == classes))
    sizes = weights @ ((gold[:, None] == classes) * 1.0 + (found[:, None] == classes))
    return np.where(sizes > 0, 2 * right / np.maximum(sizes, 1), 0).sum(1) / (sizes > 0).sum(1)


def over_seeds(runs):
    """Return `(mean, low, high)` of scores (S, 1 + B)."""
    runs = np.asarray(runs)
    chosen = np.random.default_rng(0).integers(len(runs), size=(len(runs), RESAMPLES))
    means = np.take_along_axis(runs[:, 1:], chosen, axis=0).mean(0)
    return (runs[:, 0].mean(), *np.percentile(means, (2.5, 97.5)))


def against(ours, theirs):
    """Describe the difference of two contestants' scores for the same seeds; both are dicts by
    seed.
    """
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return ""
    value, low, high = over_seeds([ours[seed] - theirs[seed] for seed in seeds])
    verdict = "ahead" if low > 0 else "behind" if high < 0 else "level"
    return f"{verdict} {value:+.3f} [{low:+.3f}, {high:+.3f}]"


def show(rows, tasks):
    found = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        task, model, method, labels, seed = row["key"]
        found[task][labels, model, method][seed] = row
    for task in (task for task in found if task.startswith(tasks)):
        score = SCORES[task.split(":")[0]]
        runs = {
            key: {seed: resampled(row, score) for seed, row in of_seed.items()}
            for key, of_seed in found[task].items()
        }
        shown = []
        for labels, model, method in sorted(runs, key=lambda key: (key[0] or 1e9, *key[1:])):
            key, of_seed = (labels, model, method), found[task][labels, model, method]
            value, low, high = over_seeds(list(runs[key].values()))
            rivals = [("TF-IDF",) * 2, ("character n-grams", "characters"), ("BM25",) * 2]
            rivals += [("most frequent tag", "tags"), (model + RANDOM, method)]
            is_ours = method in ("full", "frozen", "vectors")
            others = [runs.get((labels, *rival), {}) if is_ours else {} for rival in rivals]
            columns = ("calibration", "held_out", "seconds")
            means = [
                mean(row[column] for row in of_seed.values())
                if all(column in row for row in of_seed.values())
                else ""
                for column in columns
            ]
            shown.append(
                [
                    f"{model}, {method}" if is_ours else model,
                    next(iter(of_seed.values())).get("train", ""),
                    f"{value:.3f} [{low:.3f}, {high:.3f}]",
                    *(f"{x:.3f}" if x != "" else "" for x in means[:2]),
                    f"{means[2]:.1f}",
                    len(of_seed),
                    *(against(runs[key], other) for other in others),
                ]
            )
        heads = ["", "labels", f"{score} [95%]", "calibration error", "held out", "seconds"]
        heads += ["seeds", "minus TF-IDF", "minus character n-grams", "minus BM25"]
        heads += ["minus most frequent tag", "minus random twin"]
        kept = [i for i in range(len(heads)) if i < 3 or any(row[i] != "" for row in shown)]
        console.width = 400
        table(task, [heads[i] for i in kept], [[row[i] for i in kept] for row in shown])


# === Runs ===


def read(path):
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def main(
    out: Annotated[Path, typer.Argument(help="Folder for the results.")],
    presets: Annotated[
        str, typer.Option(help="Preset names or folders.")
    ] = "bert_tiny_demo_en_uncased",
    tasks: Annotated[str, typer.Option(help="Comma-separated prefixes of tasks.")] = "en",
    only: Annotated[str, typer.Option(help="Comma-separated prefixes of contestants.")] = "",
    methods: Annotated[
        str, typer.Option(help="Methods for encoders: full, frozen.")
    ] = "full,frozen",
    labels: Annotated[
        str, typer.Option(help="Comma-separated numbers of labeled texts, or all.")
    ] = "100,500,all",
    seeds: Annotated[str, typer.Option(help="Comma-separated seeds.")] = "0,1,2,3,4",
    treebanks: Annotated[
        str, typer.Option(help="Folder with UD treebanks, for parts of speech.")
    ] = "",
    held_out: Annotated[str, typer.Option(help="Held-out text for masked words.")] = "",
    rate: Annotated[float, typer.Option(help="Learning rate of full; 0 for the preset's.")] = 0.0,
    epochs: Annotated[
        int, typer.Option(help="Epochs of full; 0 for the defaults described above.")
    ] = 0,
    length: Annotated[int, typer.Option(help="Maximum tokens per text.")] = 64,
    precision: Annotated[str, typer.Option(help="Precision of encoders.")] = "float32",
    pieces: Annotated[
        str, typer.Option(help="Pieces of a word that learn its tag: first or all.")
    ] = "first",
    threads: int = 1,
    table: Annotated[bool, typer.Option(help="Only print the tables.")] = False,
    model: Annotated[str, typer.Option(hidden=True)] = "",
):
    """Run what is missing, and print the tables."""
    results, chosen = out / "results.jsonl", tuple(listed(tasks))
    names = [name for name in SCORES if name.startswith(chosen) and name != "masked"]
    if not treebanks:
        names = [name for name in names if name not in TAGS]
    if held_out:
        names.append(f"masked:{Path(held_out).stem}")
    paths = {Path(one).name: one for one in listed(presets)} | {MINILM: MINILM}
    models = ["TF-IDF", "character n-grams", "BM25", "most frequent tag", MINILM]
    models += [name + end for name in paths if name != MINILM for end in ("", RANDOM)]
    models = [name for name in models if name.startswith(tuple(listed(only)) or "")]
    if table:
        return show(read(results), (*chosen, "masked"))
    out.mkdir(parents=True, exist_ok=True)
    done = {tuple(row["key"]) for row in read(results)}
    known, sizes = listed(methods), [int(x.replace("all", "0")) for x in listed(labels)]
    missing = {name: [] for name in ([model] if model else models)}
    for name, task, seed in itertools.product(missing, names, listed(seeds, int)):
        if task.startswith("masked") and seed:
            continue  # This method uses no random numbers.
        for method in methods_of(task, name):
            if method in known or method not in ("full", "frozen"):
                counts = sizes if task in CLASSES or task in TAGS else [0]
                keys = [(task, name, method, count, seed) for count in counts]
                missing[name] += [key for key in keys if key not in done]
    if not model:
        for name in missing:
            if missing[name]:
                console.print("running", name, len(missing[name]))
                command = [sys.executable, *sys.argv, "--model", name]
                backend = os.environ.get("KERAS_BACKEND", "torch")
                where = environment(f"kerasbert/{backend}", threads)
                if subprocess.run(command, env=where).returncode:
                    console.print("failed", name)
        return show(read(results), (*chosen, "masked"))
    options = {"paths": paths, "rate": rate, "treebanks": treebanks, "out": out}
    options |= {"held_out": held_out, "precision": precision, "pieces": pieces}
    options |= {"epochs": epochs, "length": length}
    if os.environ["KERAS_BACKEND"] == "torch":
        import torch

        torch.set_num_threads(threads)
    is_encoder = model.removesuffix(RANDOM) in paths
    encoder = Encoder(model, options) if is_encoder else None
    for key in missing[model]:
        start = perf_counter()
        found = runner(key[0])(key[0], encoder, *key[2:], options)
        if found is None:
            console.print("too few texts", *key)
            continue
        seconds = round(perf_counter() - start, 2)
        row = {"key": key, "seconds": seconds, "backend": os.environ["KERAS_BACKEND"], **found}
        with open(results, "a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        console.print(*key, f"{seconds:.1f} s")


if __name__ == "__main__":
    typer.run(main)
