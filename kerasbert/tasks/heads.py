"""What each kind of head makes of a table's columns, and of a model's answers.

N examples. One class a head, all of the same methods, and none with a state.
"""

import difflib
import itertools
import json
import math
import os
import re
import warnings

from kerasbert.data.tagging import OUTSIDE, TagSet, tag_names
from kerasbert.metrics import METRICS, with_threshold
from kerasbert.tasks import readers
from kerasbert.tasks.examples import Examples


class _Head:
    """What is the same for most."""

    def settings(self, task):
        """The arguments of `from_preset` that make the new head."""
        return {"new_head": True}

    def open(self, task, path, split):
        """A file as a `readers.Table`, or as what `examples` takes."""
        source = task.source
        wanted = [source.columns.get(name, name) for name in task.columns]
        if _is_test(split) and path.lower().endswith(".txt"):
            return readers.read_lines(path, wanted, source.encoding)
        return readers.read_table(
            path,
            source.header,
            wanted,
            source.quotes,
            keep_broken=_is_test(split),
            encoding=source.encoding,
        )

    def examples(self, task, table, split):
        """A table as `Examples`."""
        columns = tuple(_texts(table, _column(task, table, name)) for name in task.columns)
        y = self._labels(task, table, split)
        x = columns if len(columns) > 1 else columns[0]
        return _examples(x, y, _ids(task, table), gold=y)

    def check_model(self, task, model):
        """Refuse a model of other classes."""

    def count(self, data):
        """How many predictions there are."""
        return len(data)

    def answers(self, task, model, data, batch_size):
        """`(predictions, probabilities)`, see `Task.answers`."""
        raise NotImplementedError

    def scores(self, task, data, predictions):
        return _scores(task.metrics, data.gold, predictions)

    def _labels(self, task, table, split):
        """The labels of all rows; `None` where a test set has none."""
        name = task.source.columns.get(task.label, task.label)
        name = name if name in table.columns else task.label
        if _is_test(split) and all(v in (None, "") for v in table.columns.get(name, ())):
            return None
        return [
            self._label(task, value, table, position)
            for position, value in enumerate(
                table.column(name, f" for the labels of '{task.name}'")
            )
        ]


class TextClassifier(_Head):
    """Names of classes."""

    def settings(self, task):
        return {"labels": list(task.labels)}

    def _label(self, task, value, table, position):
        text = written(value)
        if text in task.labels:
            return text
        if text in task.source.values:
            return task.labels[task.source.values.index(text)]
        known = [*task.source.values, *task.labels]
        raise ValueError(_unknown(f"{table.place(position)}: the label", text, known))

    def check_model(self, task, model):
        if sorted(self._names(task, model)) != sorted(task.labels):
            raise ValueError(
                f"The model's classes are {', '.join(model.label_names)}, but those of "
                f"'{task.name}' are {', '.join(task.labels)}; take a model that was trained on it."
            )

    def _names(self, task, model):
        """The names of the model's classes, or the task's where it has as many and no names."""
        unnamed = model.labels is None and model.num_classes == len(task.labels)
        return list(task.labels) if unnamed else model.label_names

    def answers(self, task, model, data, batch_size):
        names = self._names(task, model)
        rows = model.predict_proba(data.x, batch_size)
        predictions = [names[i] for i in rows.argmax(axis=-1)]
        return predictions, [dict(zip(names, row)) for row in rows.tolist()]

    def scores(self, task, data, predictions):
        number = {name: number for number, name in enumerate(task.labels)}
        for name in predictions:
            if name not in number:
                raise ValueError(_unknown("The prediction", name, task.labels))
        columns = ([number[name] for name in column] for column in (data.gold, predictions))
        return _scores(task.metrics, *columns)

    def files(self, task, data, predictions, threshold):
        written = dict(zip(task.labels, task.source.values or task.labels))
        return _index_file(task, data, [written[name] for name in predictions])


class TextRegressor(_Head):
    """Numbers."""

    def _label(self, task, value, table, position):
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(f"{table.place(position)}: the label {value!r} is no number.")
        return number

    def answers(self, task, model, data, batch_size):
        return model.score(data.x, batch_size).tolist(), None

    def files(self, task, data, predictions, threshold):
        least, most = task.range or (-math.inf, math.inf)
        numbers = [f"{min(max(number, least), most):.6f}" for number in predictions]
        return _index_file(task, data, numbers)


class MultipleChoice(_Head):
    """Prompts with choices, and the number of the right one."""

    def examples(self, task, table, split):
        (prompts,) = (_texts(table, _column(task, table, name)) for name in task.columns)
        if len(task.choices) == 1:
            choices = [self._list(row, table, i) for i, row in self._rows(task, table)]
        else:
            columns = [_texts(table, _column(task, table, name)) for name in task.choices]
            # Where there are fewer choices, the last columns are empty.
            choices = [_without_empty(list(row)) for row in zip(*columns)]
        if task.choice_start:
            starts = _texts(table, _column(task, table, task.choice_start))
            choices = [
                [f"{start} {choice}".strip() for choice in row]
                for start, row in zip(starts, choices)
            ]
        for position, row in enumerate(choices):
            if not row:
                raise ValueError(f"{table.place(position)} has no choices.")
        y = self._labels(task, table, split)
        for position, label in enumerate(y or ()):
            if not 0 <= label < len(choices[position]):
                raise ValueError(
                    f"{table.place(position)}: the label {label} is none of its "
                    f"{len(choices[position])} choices, which count from 0."
                )
        return _examples((prompts, choices), y, _ids(task, table), gold=y)

    def _rows(self, task, table):
        return enumerate(_column(task, table, task.choices[0]))

    def _list(self, row, table, position):
        if not isinstance(row, list) or not all(isinstance(choice, str) for choice in row):
            raise ValueError(
                f"{table.place(position)}: the choices are {row!r}; give a list of strings, or "
                "name a column for each choice."
            )
        return row

    def _label(self, task, value, table, position):
        text = written(value)
        if not text.isdecimal():
            raise ValueError(
                f"{table.place(position)}: the label {value!r} is no number of a choice from 0."
            )
        return int(text)

    def answers(self, task, model, data, batch_size):
        rows = model.choose(*data.x, batch_size=batch_size)
        return [row["index"] for row in rows], [row["scores"] for row in rows]

    def files(self, task, data, predictions, threshold):
        lines = [f"{i},{choice}" for i, choice in zip(data.ids, predictions)]
        return {task.submission: "\n".join([",pred", *lines, ""])}


class QuestionAnswering(_Head):
    """Questions, contexts, and answers in SQuAD's form."""

    def open(self, task, path, split):
        if os.path.splitext(path)[1].lower() == ".json":
            return readers.read_squad(path, task.source.encoding)
        return super().open(task, path, split)

    def examples(self, task, table, split):
        questions, contexts = (_texts(table, _column(task, table, name)) for name in task.columns)
        ids = _ids(task, table)
        if _is_test(split) and task.label not in table.columns:
            return _examples((questions, contexts), None, ids)
        rows = [
            self._answers(row, context, table, position)
            for position, (row, context) in enumerate(
                zip(table.column(task.label, f" for the answers of '{task.name}'"), contexts)
            )
        ]
        if any(row is None for row in rows):
            return _examples((questions, contexts), None, ids)
        y, lost = [], []
        for position, (row, context) in enumerate(zip(rows, contexts)):
            found = aligned(row["text"], row["answer_start"], context)
            y.append(found)
            if row["text"] and found is None:
                lost.append(position)
        data = _examples((questions, contexts), y, ids, gold=[row["text"] for row in rows])
        if lost:
            warnings.warn(
                f"{len(lost)} of the {len(rows)} answers of {table.source} do not stand in their "
                f"contexts, the first one that of question {ids[lost[0]]!r}; "
                + ("they are left out." if split == "train" else "they are scored all the same."),
                stacklevel=2,
            )
        if lost and split == "train":
            lost = set(lost)
            data = data.take([position for position in range(len(rows)) if position not in lost])
        return data

    def _answers(self, row, context, table, position):
        """A dict of `text` and `answer_start`, lists; `None` where the data hold no answers."""
        if row is None:
            return None
        if isinstance(row, str):  # A column of a plain table: where it stands is to be found.
            return {"text": [row] if row else [], "answer_start": [max(context.find(row), 0)]}
        if isinstance(row, dict) and {"text", "answer_start"} <= set(row):
            text, starts = row["text"], row["answer_start"]
            if isinstance(text, str):
                text, starts = [text], [starts]
            if len(text) == len(starts):
                return {"text": list(text), "answer_start": [int(start) for start in starts]}
        raise ValueError(
            f"{table.place(position)}: the answers are {row!r}; give a string, or 'text' and "
            "'answer_start' with as many of each."
        )

    def answers(self, task, model, data, batch_size):
        rows = [found[0] for found in model.answer(*data.x, batch_size=batch_size)]
        predictions = [{name: row[name] for name in ("answer", "null_score")} for row in rows]
        return predictions, [row["score"] for row in rows]

    def scores(self, task, data, predictions):
        answers = [row["answer"] for row in predictions]
        result = {}
        for name in task.metrics:
            more = ([row["null_score"] for row in predictions],) if name == "squad2" else ()
            result.update(METRICS[name](data.gold, answers, *more))
        return result

    def files(self, task, data, predictions, threshold):
        answers = [row["answer"] for row in predictions]
        nulls = [row["null_score"] for row in predictions]
        if threshold is not None:
            answers = with_threshold(answers, nulls, threshold)
        files = {task.submission: dict(zip(data.ids, answers))}
        if "squad2" in task.metrics:
            odds = (math.exp(-abs(score)) for score in nulls)  # Never above 1: no overflow.
            files["na_prob.json"] = {
                i: (1 if score > 0 else odd) / (1 + odd)
                for i, score, odd in zip(data.ids, nulls, odds)
            }
        return {
            name: json.dumps(content, ensure_ascii=False, indent=1) + "\n"
            for name, content in files.items()
        }


class TokenClassifier(_Head):
    """Tags of words, or spans of whole texts."""

    def settings(self, task):
        scheme = {} if task.scheme is None else {"scheme": task.scheme}
        return {"labels": list(task.labels), **scheme}

    def open(self, task, path, split):
        ending = os.path.splitext(path)[1].lower()
        if ending in (".json", ".jsonl", ".parquet"):
            return super().open(task, path, split)
        source = task.source
        return readers.read_columns(path, source.comment, source.encoding), f"'{path}'"

    def examples(self, task, table, split):
        documents = self._of_table(task, table) if isinstance(table, readers.Table) else None
        if documents is None:
            documents = self._of_lines(task, *table, split)
        if task.units == "characters":
            return self._of_characters(task, documents)
        groups = documents
        if task.context == "sentence":
            groups = [[sentence] for document in documents for sentence in document]
        x = [[word for words, _, _ in group for word in words] for group in groups]
        sentences = [[cells for _, _, cells in group] for group in groups]
        tags = [[tags for _, tags, _ in group] for group in groups]
        if any(row is None for group in tags for row in group):
            return _examples(x, None, sentences=sentences)
        y = [[tag for row in group for tag in row] for group in tags]
        gold = [row for group in tags for row in group]
        return _examples(x, y, gold=gold, sentences=sentences)

    def _of_lines(self, task, documents, source, split):
        """Documents of `(words, tags, other cells)`, one a sentence."""
        (word,), columns = task.columns, task.source.columns
        word, label = columns.get(word, 0), columns.get(task.label, -1)
        needed = max(word, label) + 1 if label >= 0 else max(word + 1, 2)
        if _is_test(split) and self._is_prose(task, documents, label):
            return [self._of_texts(document) for document in documents]
        result = []
        for document in documents:
            result.append([])
            for rows in document:
                for number, cells in rows:
                    if len(cells) < needed and not (_is_test(split) and len(cells) == 1):
                        raise ValueError(
                            f"{source}, line {number}, has {len(cells)} columns, where a word with "
                            f"its label needs {needed}: {' '.join(cells)!r}."
                        )
                words = [cells[word] for _, cells in rows]
                tags, others = None, [[cells[word]] for _, cells in rows]
                if all(len(cells) >= needed for _, cells in rows):
                    places = [f"{source}, line {number}" for number, _ in rows]
                    tags = self._tags(task, [cells[label] for _, cells in rows], places)
                    skip = label % len(rows[0][1])
                    others = [[c for i, c in enumerate(cells) if i != skip] for _, cells in rows]
                result[-1].append((words, tags, others))
        return result

    def _is_prose(self, task, documents, label):
        """Whether lines are texts: some have several words, and none ends in a tag."""
        if task.units == "characters":
            return False
        known = set(tag_names(task.labels, task.scheme))
        rows = [cells for document in documents for rows in document for _, cells in rows]
        ends = {cells[label] for cells in rows if -len(cells) <= label < len(cells)}
        # Of other schemes, too: a wrong tag is no word.
        tags = re.compile(r"[BIOESLU](-.+)?|-DOCSTART-")
        return any(len(cells) > 1 for cells in rows) and not any(
            end in known or tags.fullmatch(end) for end in ends
        )

    def _of_texts(self, document):
        """Each line a sentence without tags."""
        return [(cells, None, [[word] for word in cells]) for rows in document for _, cells in rows]

    def _of_table(self, task, table):
        name = task.source.columns.get(task.label, task.label)
        name = name if name in table.columns else task.label
        labels = table.columns.get(name) or [None] * len(table)
        result = []
        for position, (words, tags) in enumerate(
            zip(_column(task, table, task.columns[0]), labels)
        ):
            place = table.place(position)
            if not isinstance(words, list) or (tags is not None and len(tags) != len(words)):
                raise ValueError(
                    f"{place}: there have to be a list of words and one of as many labels."
                )
            if words:
                places = [place] * len(words)
                tags = None if tags is None else self._tags(task, tags, places)
                result.append([(words, tags, [[word] for word in words])])
        return result

    def _tags(self, task, tags, places):
        """The tags, in the task's scheme, checked."""
        if task.scheme == "BIO" and task.units == "words":
            tags = as_bio(tags)
        known = tag_names(task.labels, task.scheme)
        for tag, place in zip(tags, places):
            if tag not in known:
                raise ValueError(_unknown(f"{place}: the tag", tag, known))
        return tags

    def _of_characters(self, task, documents):
        rows = [row for document in documents for row in document]
        x = ["".join(characters) for characters, _, _ in rows]
        if any(tags is None for _, tags, _ in rows):
            return _examples(x, None)
        y = []
        for text, (characters, tags, _) in zip(x, rows):
            if len(text) != len(characters):
                raise ValueError(f"The sentence {text!r} has lines of more than one character.")
            y.append(spans_of_characters(text, tags))
        return _examples(x, y, gold=y)

    def check_model(self, task, model):
        names = tag_names(task.labels, task.scheme)
        if sorted(model.label_names) != sorted(names):
            raise ValueError(
                f"The model's tags are {', '.join(model.label_names)}, but those of '{task.name}' "
                f"are {', '.join(names)}; take a model that was trained on it."
            )

    def count(self, data):
        return len(data) if data.sentences is None else sum(map(len, data.sentences))

    def answers(self, task, model, data, batch_size):
        if task.units == "characters":
            rows = [
                [(found["start"], found["end"], found["label"]) for found in row]
                for row in model.tag(data.x, batch_size)
            ]
            return rows, None
        predictions = []
        for row, document in zip(model.predict_labels(data.x, batch_size), data.sentences):
            tags = iter(OUTSIDE if tag is None else tag for tag in row)
            predictions += [list(itertools.islice(tags, len(words))) for words in document]
        return predictions, None

    def scores(self, task, data, predictions):
        if task.units == "characters":
            rows = (
                [tags_of_characters(text, spans) for text, spans in zip(data.x, column)]
                for column in (data.gold, predictions)
            )
            return METRICS["klue_entities"](*rows, tag_names(task.labels, task.scheme))
        result = {}
        for name in task.metrics:
            rows = (data.gold, predictions)
            if name != "entities":
                rows = ([tag for row in column for tag in row] for column in rows)
            result.update(_scores([name], *rows))
        return result

    def files(self, task, data, predictions, threshold):
        if task.units == "characters":
            blocks = [
                [f"{char}\t{tag}" for char, tag in zip(text, all_tags(text, spans))]
                for text, spans in zip(data.x, predictions)
            ]
        else:
            sentences = [cells for document in data.sentences for cells in document]
            gold = data.gold or [None] * len(sentences)
            blocks = [
                [
                    # White space separates columns there.
                    " ".join(re.sub(r"\s+", "_", cell) for cell in line)
                    for line in self._columns(cells, right, found)
                ]
                for cells, right, found in zip(sentences, gold, predictions)
            ]
        return {task.submission: "".join("\n".join([*block, "", ""]) for block in blocks)}

    def _columns(self, cells, right, found):
        for place, tag in enumerate(found):
            yield [*cells[place], *([] if right is None else [right[place]]), tag]


HEADS = {
    "text_classifier": TextClassifier(),
    "text_regressor": TextRegressor(),
    "token_classifier": TokenClassifier(),
    "question_answering": QuestionAnswering(),
    "multiple_choice": MultipleChoice(),
}


# === Tags, characters and answers ===


def as_bio(tags):
    """Tags of any scheme as BIO: IOB1's "I-PER" at a beginning is "B-PER".

    >>> as_bio(["I-PER", "I-PER", "O", "I-LOC", "B-LOC"])
    ['B-PER', 'I-PER', 'O', 'B-LOC', 'B-LOC']
    """
    result = [OUTSIDE] * len(tags)
    for type, start, end in _entities(tags):
        result[start:end] = [f"B-{type}", *[f"I-{type}"] * (end - start - 1)]
    return result


def spans_of_characters(text, tags):
    """Tags, one a character, as spans `(start, end, type)`; those of spaces do not count.

    >>> spans_of_characters("a bc d", ["B-X", "O", "I-X", "O", "O", "B-Y"])
    [(0, 3, 'X'), (5, 6, 'Y')]
    """
    places = [place for place, char in enumerate(text) if not char.isspace()]
    found = _entities([tags[place] for place in places])
    return [(places[start], places[end - 1] + 1, type) for type, start, end in found]


def _entities(tags):
    names = sorted(set(tags))
    return TagSet(names).entities([names.index(tag) for tag in tags])


def all_tags(text, spans):
    """BIO tags of all characters of a text, from its spans."""
    tags = [OUTSIDE] * len(text)
    for start, end, type in spans:
        tags[start:end] = [f"B-{type}", *[f"I-{type}"] * (end - start - 1)]
    return tags


def tags_of_characters(text, spans):
    """BIO tags of the characters that are no space, from its spans.

    >>> tags_of_characters("a bc d", [(0, 3, "X")])
    ['B-X', 'I-X', 'O', 'O']
    """
    return [tag for char, tag in zip(text, all_tags(text, spans)) if not char.isspace()]


def aligned(texts, starts, context):
    """Where an answer stands in its context: its first and last character, the end exclusive.

    The first answer that stands where it should counts; if none does, the first one that is found
    elsewhere, as near as it can be, with any white space between its words.

    >>> aligned(["Rome"], [9], "In old Rome")
    (7, 11)
    >>> aligned(["ancient  city"], [0], "an ancient city"), aligned(["Paris"], [0], "In old Rome")
    ((3, 15), None)
    """
    trimmed = []
    for text, start in zip(texts, starts):
        start += len(text) - len(text.lstrip())
        text = text.strip()
        if text and start >= 0 and context.startswith(text, start):
            return start, start + len(text)
        if text:
            trimmed.append((text, start))
    for text, start in trimmed:
        pattern = r"\s+".join(map(re.escape, text.split()))
        found = [match.span() for match in re.finditer(pattern, context)]
        if found:
            return min(found, key=lambda span: abs(span[0] - start))
    return None


# === Columns ===


def _is_test(split):
    return split.startswith("test")


def _column(task, table, name):
    """A column by the name that it has in the files, or else by the task's own."""
    there = task.source.columns.get(name, name)
    if there not in table.columns and name in table.columns:
        there = name
    return table.column(there, f" of the task '{task.name}'")


def _texts(table, values):
    texts = []
    for position, value in enumerate(values):
        if isinstance(value, (list, dict)):
            raise ValueError(f"{table.place(position)}: {value!r} is no text.")
        # A table says of a text that is missing what it says of an empty one.
        texts.append(value if isinstance(value, str) else "" if value is None else str(value))
    return texts


def _ids(task, table):
    """What the examples are called; they are counted where that is not said, or not clear."""
    given, counted = task.source.id, list(range(len(table)))
    if not task.has_own_files:  # Of the papers' tasks the numbers are what is handed in.
        return table.columns.get(given) or counted
    name = given or "id"
    if name in table.columns:
        ids = table.column(name) if given else table.columns[name]
        is_clear = len(set(map(str, ids))) == len(ids) and not any(i in (None, "") for i in ids)
        # Answers go by their ids: of two with one id, one would be lost.
        if is_clear or (given and task.head != "question_answering"):
            return ids
        if not given and task.head != "question_answering":
            return counted
        lack = f"whose column '{name}' gives not each of them a name of its own"
    elif given:
        lack = f"which has no column '{name}'"
    else:
        return counted
    warnings.warn(f"The examples of {table.source}, {lack}, are counted from 0.", stacklevel=2)
    return counted


def _examples(x, y, ids=None, gold=None, sentences=None):
    rows = x[0] if isinstance(x, tuple) else x
    return Examples(x, y, list(range(len(rows))) if ids is None else ids, gold, sentences)


def written(value):
    """A label as a file writes it: 1.0, which pandas makes of 1 beside missing ones, is "1"."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "" if value is None else str(value).strip()


def _without_empty(row):
    while row and not row[-1]:
        row.pop()
    return row


def _unknown(what, value, known):
    known = list(dict.fromkeys(known))
    near = difflib.get_close_matches(str(value), known, 1)
    shown = ", ".join(map(repr, known[:12])) + (", ..." if len(known) > 12 else "")
    return f"{what} {value!r} is unknown; known are {shown}" + (
        f"; did you mean {near[0]!r}?" if near else "."
    )


def _scores(names, gold, predictions):
    result = {}
    for name in names:
        scores = METRICS[name](gold, predictions)
        result.update(scores if isinstance(scores, dict) else {name: scores})
    return result


def _index_file(task, data, values):
    lines = [f"{i}\t{value}" for i, value in zip(data.ids, values)]
    return {task.submission: "\n".join(["index\tprediction", *lines, ""])}
