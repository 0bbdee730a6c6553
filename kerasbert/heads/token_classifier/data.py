"""Tagging data: tags of words, and entity spans."""

import itertools
import re

from kerasbert.data.tables import JSON, PARQUET, SPREADSHEETS, find_name
from kerasbert.data.text_files import ending_of, text_lines
from kerasbert.heads.base import file_readers
from kerasbert.heads.base.annotations import as_lists, spans_in
from kerasbert.heads.base.data import (
    Data,
    by_size,
    column_of,
    examples_of,
    first_file,
    is_test,
    scores_of,
    unknown_value,
    written,
)
from kerasbert.heads.token_classifier.tags import (
    all_tags,
    as_bio,
    in_scheme,
    spans_of_characters,
    tags_of_characters,
)
from kerasbert.metrics import MACRO, METRICS, entities_by_type, scores_by_class
from kerasbert.text.names import known_name, same_names
from kerasbert.text.tagging import (
    OUTSIDE,
    TagSet,
    spelling_of,
    tag_names,
)

# Metrics of labels without entities.
_PLAIN = ("accuracy", "macro_f1")
# Common columns of words, tags and sentence numbers.
_WORDS = ("tokens", "words", "token", "word", "form", "text", "sentence")
_TAGS = ("tags", "ner_tags", "tag", "ner_tag", "labels", "label", "entities", "spans")
_ROWS = ("token", "word", "form")  # The word column of one word per row.
_SENTENCES = (
    *("sentence", "sentence_id", "sent_id", "sentence #", "sentence_number", "sentence id"),
    *("문장", "문장번호", "문장 번호", "文", "文番号", "文id"),
)


class TokenClassification(Data):
    """Data of words with tags, or of whole texts with labeled spans."""

    columns = ("tokens",)
    label = "tags"
    metrics = ("entities",)

    def fields_of_files(self, task, given):
        labels = None if given["labels"] is None else tuple(map(str, given["labels"]))
        found, is_spans = _tags(task, labels)
        if is_spans:
            if given["metrics"] not in (None, ["klue_entities"], ("klue_entities",)):
                raise ValueError(
                    f"metrics={list(given['metrics'])!r} are for tags of words; spans are scored "
                    "by 'klue_entities'."
                )
            names = tuple(labels or sorted(found - {OUTSIDE}))
            return {"labels": names, "scheme": "BIO", "metrics": ("klue_entities",), **_SPANS}
        fields = _scheme(_sorted_tags(task, found) if labels is None else labels)
        is_plain = given["metrics"] is None and fields["scheme"] is None
        return {**fields, "metrics": _PLAIN} if is_plain else fields

    def fields_of_model(self, model):
        return {"metrics": _PLAIN} if _scheme(model.label_names)["scheme"] is None else {}

    def settings(self, task):
        scheme = {} if task.scheme is None else {"scheme": task.scheme}
        return {"labels": list(task.labels), **scheme}

    def read_file(self, task, path, split):
        source = task.source
        if _is_table(path, task):
            names = [_named(task, name) for name in (*task.columns, task.label)]
            return file_readers.read_table(path, (), names, source.quotes, encoding=source.encoding)
        if is_test(split) and task.units == "characters" and ending_of(path) == ".txt":
            return file_readers.read_lines(path, ["text"], source.encoding)
        return file_readers.read_columns(path, source.comment, source.encoding)

    def examples(self, task, table, split):
        if isinstance(table, file_readers.Columns):
            documents = self._of_lines(task, table, split)
        elif (form := _form(task, table))[0] == "spans":
            return self._of_spans(task, table, *form[1:])
        else:
            documents = self._of_table(task, table, form, split)
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

    def _of_lines(self, task, columns, split):
        """Return documents: lists of sentences, each `(words, tags, other cells)`."""
        word, label = _places(task, columns)
        source, documents = columns.source, columns.documents
        needed = max(word, label) + 1 if label >= 0 else max(word + 1, 2)
        if is_test(split) and self._is_prose(task, documents, label):
            return [self._of_texts(document) for document in documents]
        documents = columns.checked(label).documents
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
        """Return whether lines are plain texts: some have several words, and none ends in a tag."""
        if task.units == "characters":
            return False
        known = set(tag_names(task.labels, task.scheme))
        rows = [cells for document in documents for rows in document for _, cells in rows]
        ends = {cells[label] for cells in rows if -len(cells) <= label < len(cells)}
        # Tags of all schemes, so that none is mistaken for a word.
        tags = re.compile(r"[BIOESLU](-.+)?|-DOCSTART-")
        ends = in_scheme(sorted(ends), task.labels, task.scheme)
        return any(len(cells) > 1 for cells in rows) and not any(
            end in known or tags.fullmatch(end) for end in ends
        )

    def _of_texts(self, document):
        """Return each line as a sentence without tags."""
        return [(cells, None, [[word] for word in cells]) for rows in document for _, cells in rows]

    def _of_table(self, task, table, form, split):
        """Return documents like `_of_lines`, with one sentence each."""
        form, words, labels = form
        result = []
        for row, tags, positions in _sentences(table, form, words, labels):
            place = table.place(positions[0])
            if not isinstance(row, list) or not (tags is None or isinstance(tags, list)):
                raise ValueError(f"{place}: expected a list of words and a list of as many labels.")
            if tags is not None and len(tags) != len(row):
                raise ValueError(
                    f"{place}: there are {len(row)} words but {len(tags)} labels; give one label "
                    "per word."
                )
            row = [written(word) for word in row]
            if "" in row:
                raise ValueError(f"{place}: a word is empty; remove it and its label.")
            if row:
                places = [table.place(x) for x in positions] * (len(row) // len(positions))
                tags = None if tags is None else self._tags(task, tags, places)
                result.append([(row, tags, [[word] for word in row])])
        if labels is None and not is_test(split):
            column_of(task, table, task.label)  # An error lists the columns.
        return result

    def _of_spans(self, task, table, words, labels):
        """Return `Examples` of whole texts, with their spans unless they are unlabeled."""
        if task.units != "characters":
            raise ValueError(
                f"{table.source} has texts with spans, but '{task.name}' has lists of words with "
                "tags; use files of one kind."
            )
        if labels is None or all(value is None for value in labels):
            return examples_of(words, None)
        y = []
        for position, (text, value) in enumerate(zip(words, labels)):
            place, spans = table.place(position), spans_in(value)
            if spans is None:
                raise ValueError(
                    f"{place}: the spans are {value!r}; give a list of [start, end, type], or [] "
                    "for none."
                )
            y.append([])
            for start, end, type in spans:
                if not 0 <= start < end <= len(text):
                    raise ValueError(
                        f"{place}: the span {[start, end, type]} is not within the {len(text)} "
                        "characters of its text."
                    )
                known = known_name(written(type), task.labels)
                if known is None:
                    raise ValueError(unknown_value(f"{place}: the type", type, task.labels))
                y[-1].append((start, end, known))
        return examples_of(words, y, gold=y)

    def _tags(self, task, tags, places):
        """Convert tags to the task's scheme and check them."""
        tags = in_scheme([written(tag) for tag in tags], task.labels, task.scheme)
        if task.scheme == "BIO" and task.units == "words":
            tags = as_bio(tags)
        known = tag_names(task.labels, task.scheme)
        found = {tag: known_name(tag, known) for tag in set(tags)}
        for tag, place in zip(tags, places):
            if found[tag] is None:
                raise ValueError(unknown_value(f"{place}: the tag", tag, known))
        return [found[tag] for tag in tags]

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
        if not same_names(model.label_names, names):
            raise ValueError(
                f"The model's tags are {', '.join(model.label_names)}, but those of '{task.name}' "
                f"are {', '.join(names)}; use a model that was trained on it."
            )

    def count(self, data):
        return len(data) if data.sentences is None else sum(map(len, data.sentences))

    def answers(self, task, model, data, batch_size):
        if task.units == "characters":
            types = {
                type: known_name(type, task.labels) for type in TagSet(model.label_names).types
            }
            rows = [
                [(found["start"], found["end"], types[found["label"]]) for found in row]
                for row in model.tag(data.x, batch_size)
            ]
            return rows, None
        known, predictions = tag_names(task.labels, task.scheme), []
        names = {tag: known_name(tag, known) or tag for tag in model.label_names}
        for row, document in zip(model.predict_labels(data.x, batch_size), data.sentences):
            tags = iter(names.get(tag, OUTSIDE) for tag in row)
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
                    # White space separates columns.
                    " ".join(re.sub(r"\s+", "_", cell) for cell in line)
                    for line in self._columns(cells, right, found)
                ]
                for cells, right, found in zip(sentences, gold, predictions)
            ]
        return {task.submission: "".join("\n".join([*block, "", ""]) for block in blocks)}

    def _columns(self, cells, right, found):
        for place, tag in enumerate(found):
            yield [*cells[place], *([] if right is None else [right[place]]), tag]


# Spans may start or end within a word, so all pieces have labels.
_SPANS = {"units": "characters", "model": {"label_pieces": "all"}}


def _is_table(path, task):
    """Return whether a file has named columns; a CoNLL file starts with a word."""
    ending = ending_of(path)
    if ending in (".csv", *JSON, PARQUET, *SPREADSHEETS):
        return True
    if ending not in (".tsv", ".tab", ".txt") or task.source.comment is not None:
        return False
    first = next(iter(text_lines(path, task.source.encoding)), "")
    names = [cell.strip() for cell in first.split("\t")]
    given = [str(task.source.columns.get(x, x)) for x in (*task.columns, task.label)]
    words, tags, sentences = (
        any(find_name(names, name) is not None for name in known)
        for known in ((given[0], *_WORDS[:-2]), (given[1], *_TAGS), _SENTENCES)
    )
    return words and (tags or sentences)


def _places(task, columns):
    """Return the column numbers of words and of tags."""
    (word,), named = task.columns, task.source.columns
    usual = (file_readers.CONLLU_WORD, file_readers.CONLLU_TAG) if columns.is_conllu else (0, -1)
    return named.get(word, usual[0]), named.get(task.label, usual[1])


def _form(task, table):
    """Return the layout of a table: `(form, words, tags or None)`.

    The form is "lists" (a sentence per row), "rows" (a word per row), or "spans" (texts with lists
    of spans).
    """
    (name,), own = task.columns, TokenClassification
    known = _WORDS if name == own.columns[0] else ()
    words = next((x for x in (_named(task, name), name, *known) if table.find(x)), None)
    if words is None:
        column_of(task, table, name)  # An error lists the columns.
    known = _TAGS if task.label == own.label else ()
    tags = (_named(task, task.label), task.label, *known)
    tags = next((x for x in tags if table.find(x) and table.find(x) != table.find(words)), None)
    is_word = table.find(words) in map(table.find, _ROWS) or _sentence_column(table, words)
    words = as_lists(table.column(words))
    labels = None if tags is None else as_lists(table.column(tags))
    if all(isinstance(row, list) for row in words):
        return "lists", words, labels
    words = ["" if row is None else str(row) for row in words]
    if labels is None and task.units == "characters":
        return "spans", words, None
    if labels is None:
        return ("rows", words, None) if is_word else ("lists", [x.split() for x in words], None)
    if any(isinstance(row, list) and spans_in(row) is not None for row in labels):
        return "spans", words, labels
    # Words separated by white space, with tags likewise or in a list.
    tags = [row if isinstance(row, list) else written(row).split() for row in labels]
    rows = [text.split() for text in words]
    if max(map(len, rows)) > 1 and all(len(a) == len(b) for a, b in zip(rows, tags)):
        return "lists", rows, tags
    return "rows", words, labels


def _named(task, name):
    """Return a column's name in the files, as a string; CoNLL columns have numbers."""
    return str(task.source.columns.get(name, name))


def _sentence_column(table, words):
    """Return the name of the column of sentence numbers, or `None`."""
    found = (table.find(name) for name in _SENTENCES)
    return next((name for name in found if name not in (None, table.find(words))), None)


def _sentences(table, form, words, labels):
    """Yield `(words, tags, positions)` for each sentence."""
    if form == "lists":
        for position, row in enumerate(words):
            yield row, None if labels is None else labels[position], [position]
        return
    name = _sentence_column(table, _WORDS[3])
    starts, numbers = [0], table.numbers
    current, *names = map(written, table.columns[name] if name else [""] * len(table))
    for position, sentence in enumerate(names, start=1):
        # Only a sentence's first word may have its number. An empty line also ends it.
        is_new = sentence not in ("", current)
        if is_new or numbers[position] > numbers[position - 1] + 1:
            starts.append(position)
        current = sentence or current
    if len(starts) == 1 and name is None and len(table) > 1:
        raise ValueError(
            f"{table.source} has one word per row, but nothing says where a sentence ends: add a "
            "column 'sentence' with its number, or an empty line after each sentence."
        )
    for start, end in itertools.pairwise([*starts, len(table)]):
        tags = None if labels is None else labels[start:end]
        yield words[start:end], tags, list(range(start, end))


def _tags(task, given):
    """Return the training file's tags or span types, and which of the two."""
    table = TokenClassification().open(task, first_file(task), "train")
    if isinstance(table, file_readers.Columns) and given is not None:
        return set(given), False
    if isinstance(table, file_readers.Columns):
        label = _places(task, table)[1]
        return {
            written(cells[label])
            for _, cells in table.checked(label).rows()
            if len(cells) > max(label, 1)
        }, False
    form, words, labels = _form(task, table)
    if labels is None and given is not None:  # A test set without labels.
        return set(given), False
    if labels is None:
        column_of(task, table, task.label)  # An error lists the columns.
    if form == "spans":
        spans = [spans_in(value) or () for value in labels]
        return {written(label) for row in spans for _, _, label in row}, True
    return {
        written(tag)
        for _, tags, _ in _sentences(table, form, words, labels)
        for tag in (tags if isinstance(tags, list) else ())
    }, False


def _sorted_tags(task, found):
    if not found - {""}:
        first = first_file(task)
        raise ValueError(
            f"{getattr(first, 'source', repr(first))} has words but no tags: write a word and its "
            "tag per line, separated by a tab or a space, and an empty line after each sentence; "
            "or name the column of the tags (label)."
        )
    return sorted(found - {""}, key=by_size)


def _scheme(tags):
    """Return the fields `labels` and `scheme` for tags: entity types and their scheme.

    Labels that are not entity tags are returned unchanged, with the scheme `None`.
    """
    spelling = spelling_of(tags)
    if spelling is None:
        return {"labels": tuple(tags), "scheme": None}
    read = [spelling.read(tag) for tag in tags if tag not in spelling.outside]
    letters = {letter for letter, _ in read}
    scheme = "BIO" if letters <= {"B", "I"} else "BILOU" if letters & {"L", "U"} else "BIOES"
    return {"labels": tuple(sorted({type for _, type in read})), "scheme": scheme}
