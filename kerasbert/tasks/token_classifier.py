"""Tags of words, and entities."""

import itertools
import os
import re

from kerasbert.data.tagging import (
    LETTERS,
    OUTSIDE,
    OUTSIDES,
    SCHEMES,
    SEPARATORS,
    Spelling,
    TagSet,
    spelling_of,
    tag_names,
)
from kerasbert.metrics import MACRO, METRICS, entities_by_type, scores_by_class
from kerasbert.tasks import readers
from kerasbert.tasks.tables import (
    Data,
    column_of,
    examples_of,
    first_file,
    first_table,
    is_test,
    name_in,
    scores_of,
    unknown_value,
)

# The scores of labels that make up no entities.
_PLAIN = ("accuracy", "macro_f1")


class TokenClassification(Data):
    """Tags of words, or spans of whole texts."""

    columns = ("tokens",)
    label = "tags"
    metrics = ("entities",)

    def fields_of_files(self, task, given):
        labels = given["labels"]
        fields = _scheme(_tags(task) if labels is None else labels)
        is_plain = given["metrics"] is None and fields["scheme"] is None
        return {**fields, "metrics": _PLAIN} if is_plain else fields

    def fields_of_model(self, model):
        return {"metrics": _PLAIN} if _scheme(model.label_names)["scheme"] is None else {}

    def settings(self, task):
        scheme = {} if task.scheme is None else {"scheme": task.scheme}
        return {"labels": list(task.labels), **scheme}

    def open(self, task, path, split):
        if _is_table(path):
            return super().open(task, path, split)
        source = task.source
        return readers.read_columns(path, source.comment, source.encoding), f"'{path}'"

    def examples(self, task, table, split):
        documents = (
            self._of_table(task, table)
            if isinstance(table, readers.Table)
            else self._of_lines(task, *table, split)
        )
        if task.units == "characters":
            return self._of_characters(task, documents)
        groups = (
            [[sentence] for document in documents for sentence in document]
            if task.context == "sentence"
            else documents
        )
        x = [[word for words, _, _ in group for word in words] for group in groups]
        sentences = [[cells for _, _, cells in group] for group in groups]
        tags = [[tags for _, tags, _ in group] for group in groups]
        if any(row is None for group in tags for row in group):
            return examples_of(x, None, sentences=sentences)
        y = [[tag for row in group for tag in row] for group in tags]
        return examples_of(x, y, gold=[row for group in tags for row in group], sentences=sentences)

    def _of_lines(self, task, documents, source, split):
        """Documents of `(words, tags, other cells)`, one a sentence."""
        (word,), columns = task.columns, task.source.columns
        word, label = columns.get(word, 0), columns.get(task.label, -1)
        needed = max(word, label) + 1 if label >= 0 else max(word + 1, 2)
        if is_test(split) and self._is_prose(task, documents, label):
            return [self._of_texts(document) for document in documents]
        result = []
        for document in documents:
            result.append([])
            for rows in document:
                for number, cells in rows:
                    if len(cells) < needed and not (is_test(split) and len(cells) == 1):
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
        ends = in_scheme(sorted(ends), task.labels, task.scheme)
        return any(len(cells) > 1 for cells in rows) and not any(
            end in known or tags.fullmatch(end) for end in ends
        )

    def _of_texts(self, document):
        """Each line a sentence without tags."""
        return [(cells, None, [[word] for word in cells]) for rows in document for _, cells in rows]

    def _of_table(self, task, table):
        labels = table.columns.get(name_in(task, table, task.label)) or [None] * len(table)
        result = []
        for position, (words, tags) in enumerate(
            zip(column_of(task, table, task.columns[0]), labels)
        ):
            place = table.place(position)
            if not isinstance(words, list) or (tags is not None and len(tags) != len(words)):
                raise ValueError(
                    f"{place}: there have to be a list of words and one of as many labels."
                )
            if words:
                tags = None if tags is None else self._tags(task, tags, [place] * len(words))
                result.append([(words, tags, [[word] for word in words])])
        return result

    def _tags(self, task, tags, places):
        """The tags, in the task's scheme, checked."""
        tags = in_scheme(tags, task.labels, task.scheme)
        if task.scheme == "BIO" and task.units == "words":
            tags = as_bio(tags)
        known = tag_names(task.labels, task.scheme)
        for tag, place in zip(tags, places):
            if tag not in known:
                raise ValueError(unknown_value(f"{place}: the tag", tag, known))
        return tags

    def _of_characters(self, task, documents):
        rows = [row for document in documents for row in document]
        x = ["".join(characters) for characters, _, _ in rows]
        if any(tags is None for _, tags, _ in rows):
            return examples_of(x, None)
        y = []
        for text, (characters, tags, _) in zip(x, rows):
            if len(text) != len(characters):
                raise ValueError(f"The sentence {text!r} has lines of more than one character.")
            y.append(spans_of_characters(text, tags))
        return examples_of(x, y, gold=y)

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
            result.update(scores_of([name], *rows))
        return result

    def scores_by_class(self, task, data, predictions):
        if task.units == "characters":
            return {}
        if "entities" in task.metrics:
            return entities_by_type(data.gold, predictions)
        if not set(task.metrics) & set(MACRO.values()):
            return {}
        return scores_by_class(
            *([tag for row in x for tag in row] for x in (data.gold, predictions))
        )

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


def _is_table(path):
    return os.path.splitext(path)[1].lower() in (".json", ".jsonl", ".parquet")


def _tags(task):
    """The tags of the training file, sorted."""
    path, source = first_file(task), task.source
    if _is_table(path):
        rows = first_table(task).column(task.label, " for the tags")
        found = {tag for row in rows for tag in row or ()}
    else:
        place = source.columns.get(task.label, -1)
        found = {
            cells[place]
            for document in readers.read_columns(path, encoding=source.encoding)
            for sentence in document
            for _, cells in sentence
            if len(cells) > max(place, 1)
        }
    if not found:
        raise ValueError(
            f"'{path}' holds no tags beside its words: write a word and its tag a line, with a tab "
            "or a space between them, and an empty line after each sentence; or name the column "
            "of the tags (label)."
        )
    return sorted(map(str, found))


def _scheme(tags):
    """The types and the scheme of tags; other labels as they are."""
    spelling = spelling_of(tags)
    if spelling is None:
        return {"labels": tuple(tags), "scheme": None}
    read = [spelling.read(tag) for tag in tags if tag not in spelling.outside]
    letters = {letter for letter, _ in read}
    scheme = "BIO" if letters <= {"B", "I"} else "BILOU" if letters & {"L", "U"} else "BIOES"
    return {"labels": tuple(sorted({type for _, type in read})), "scheme": scheme}


def in_scheme(tags, types, scheme):
    """Tags of any spelling, see `spelling_of`, as those of a scheme; others as they are.

    >>> in_scheme(["PER-B", "PER_M", "-", "x"], ["PER"], "BIOES")
    ['B-PER', 'I-PER', 'O', 'x']
    """
    if scheme is None:
        return tags
    known = set(tag_names(types, scheme))
    read = {tag: tag if tag in known else _in_scheme(tag, types, scheme) for tag in set(tags)}
    return [read[tag] for tag in tags]


def _in_scheme(tag, types, scheme):
    if tag.lower() in OUTSIDES and tag not in types:
        return OUTSIDE
    for separator, letter_first in itertools.product(SEPARATORS, (True, False)):
        letter, type = Spelling(separator, letter_first, frozenset()).read(tag) or (None, None)
        if type in types:
            same = (one for one in SCHEMES[scheme] if LETTERS[one] == LETTERS[letter])
            letter = next(same, None)
            if letter is not None:
                return f"{letter}-{type}"
    return tag


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
