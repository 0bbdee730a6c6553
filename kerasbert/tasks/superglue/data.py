"""SuperGLUE's files: convert official rows to model inputs, and predictions to submissions.

- BoolQ, CB, RTE and the diagnostics: the two texts of a row.
- WiC: both sentences, with the word in asterisks.
- WSC: the text with the pronoun in asterisks, and the noun phrase.
- MultiRC: one example per answer; question and answer are one text, the passage is the other.
- COPA: the premise; each choice follows a question that asks for the cause or for the effect.
- ReCoRD: query and passage are the prompt; the passage's entities are the choices.
"""

import re

from kerasbert.base.errors import is_whole
from kerasbert.base.strict_json import to_json
from kerasbert.data.tables import open_table
from kerasbert.heads.base.data import examples_of, found_answers, is_test, unknown_value
from kerasbert.heads.base.file_readers import Table
from kerasbert.heads.multiple_choice.data import MultipleChoice
from kerasbert.heads.text_classifier.data import TextClassification
from kerasbert.metrics import ANSWER_RULES, METRICS
from kerasbert.metrics.answers import squad
from kerasbert.metrics.superglue import gender_parity, multirc

_QUESTIONS = {"cause": "What was the cause of this?", "effect": "What happened as a result?"}
_SENTENCE = re.compile(r"<b>Sent .{1,2}: </b>")  # Marks in some passages of MultiRC.
_HIGHLIGHT = "\n@highlight\n"  # Separates the points of a summary in passages of ReCoRD.


class _Lines:
    """Base class of data in `.jsonl` files with one object per row."""

    def read_file(self, task, path, split):
        source = f"'{path}'"
        header, rows, _ = open_table(path, encoding=task.source.encoding, whole=True)
        if header is not None:
            raise ValueError(f"{source} is not a .jsonl file; get {task.title} from its page.")
        found, numbers, seen = [], [], set()
        for number, row in rows:
            place = f"{source}, row {number}"
            if not isinstance(row, dict):
                raise ValueError(f"{place}: {row!r:.100} is not a JSON object.")
            for one in self.rows(task, _Fields(row, place)):
                if one["idx"] in seen:
                    raise ValueError(f"{place}: the idx {one['idx']!r} occurs twice.")
                seen.add(one["idx"])
                found.append(one)
                numbers.append(number)
        if not found:
            raise ValueError(f"{source} has no examples.")
        names = dict.fromkeys(name for row in found for name in row)
        columns = {name: [row.get(name) for row in found] for name in names}
        return Table(columns, source, numbers, "row")

    def rows(self, task, fields):
        """Return the examples of a row, dicts of the task's columns, `idx` and perhaps `label`."""
        texts = {name: fields.text(name) for name in task.columns}
        return [{**texts, **fields.labeled()}]

    def files(self, task, data, predictions, threshold):
        lines = [
            to_json({"idx": idx, "label": label}, ensure_ascii=False)
            for idx, label in zip(data.ids, self.labels_of(data, predictions), strict=True)
        ]
        return {task.submission: "\n".join([*lines, ""])}

    def labels_of(self, data, predictions):
        """Return the labels of a submission."""
        return predictions


class _Fields:
    """A JSON object, whose fields are checked when they are read.

    Args:
        values: dict.
        place: its place in the file, for errors.
    """

    def __init__(self, values, place):
        self.values, self.place = values, place

    def _get(self, name, is_fit, wanted):
        if name not in self.values:
            raise ValueError(f"{self.place} has no field '{name}'.")
        value = self.values[name]
        if not is_fit(value):
            raise ValueError(
                f"{self.place}: the field '{name}' must be {wanted}, got {value!r:.100}."
            )
        return value

    def text(self, name):
        return self._get(name, lambda x: isinstance(x, str), "a string")

    def number(self, name):
        return self._get(name, lambda x: is_whole(x) and x >= 0, "a whole number from 0")

    def inner(self, name):
        """Return an object in a field, as `_Fields`."""
        inner = self._get(name, lambda x: isinstance(x, dict), "an object")
        return _Fields(inner, f"{self.place}, {name}")

    def each(self, name):
        """Return a list of objects in a field, as a list of `_Fields`."""
        rows = self._get(
            name,
            lambda x: isinstance(x, list) and all(isinstance(one, dict) for one in x),
            "a list of objects",
        )
        return [_Fields(row, f"{self.place}, {name}[{i}]") for i, row in enumerate(rows)]

    def span(self, text, start, end):
        """Return the start and the exclusive end of a span of a text, which are in two fields."""
        first, last = self.number(start), self.number(end)
        if not first < last <= len(text):
            raise ValueError(
                f"{self.place}: {start}={first} and {end}={last} are not a span of its text, which "
                f"has {len(text)} characters."
            )
        return first, last

    def labeled(self):
        """Return a dict of `idx` and, if there is one, `label`."""
        label = {"label": self.values["label"]} if "label" in self.values else {}
        return {"idx": self.number("idx"), **label}


class Classes(_Lines, TextClassification):
    """Pairs of texts with a class: BoolQ, CB, RTE, AX-b and AX-g."""

    def scores(self, task, data, predictions):
        if "gender_parity" not in task.metrics:
            return super().scores(task, data, predictions)
        # In AX-g, the sentences with idx 2n and 2n + 1 are a pair that differs in a pronoun.
        pairs = [idx // 2 for idx in data.ids]
        right = METRICS["accuracy"](data.gold, predictions)
        return {"accuracy": right, "gender_parity": gender_parity(pairs, predictions)}


class WordsInContext(_Lines, TextClassification):
    """WiC: whether a word has the same meaning in two sentences."""

    def rows(self, task, fields):
        sentences = {}
        for number in "12":
            text = fields.text(f"sentence{number}")
            start, end = fields.span(text, f"start{number}", f"end{number}")
            marked = f"{text[:start]}*{text[start:end]}*{text[end:]}"
            sentences[f"sentence{number}"] = marked
        return [{**sentences, **fields.labeled()}]


class Winograd(_Lines, TextClassification):
    """WSC: whether a pronoun refers to a noun phrase."""

    def rows(self, task, fields):
        words, target = fields.text("text").split(), fields.inner("target")
        pronoun, first = target.text("span2_text"), target.number("span2_index")
        last = first + len(pronoun.split())
        if not pronoun.strip() or last > len(words):
            raise ValueError(
                f"{target.place}: span2_index={first} is not the index of {pronoun!r}; the text "
                f"has {len(words)} words."
            )
        found = " ".join(words[first:last])
        shown = pronoun if pronoun in found else found  # The word may end in punctuation.
        words[first:last] = [found.replace(shown, f"*{shown}*", 1)]
        texts = {"text": " ".join(words), "span": target.text("span1_text")}
        return [{**texts, **fields.labeled()}]


class MultiRC(_Lines, TextClassification):
    """MultiRC: whether each answer to a question about a passage is right.

    The idx of an example joins those of the passage, the question and the answer: "0-3-12".
    """

    def rows(self, task, fields):
        passage = fields.inner("passage")
        text = _SENTENCE.sub("", passage.text("text").replace("<br>", " "))
        found = []
        for question in passage.each("questions"):
            for answer in question.each("answers"):
                own = answer.labeled()
                places = (fields.number("idx"), question.number("idx"), own["idx"])
                own["idx"] = "-".join(map(str, places))
                texts = f"{question.text('question')} {answer.text('text')}"
                found.append({"question": texts, "passage": text, **own})
        return found

    def scores(self, task, data, predictions):
        for name in predictions:
            if name not in task.labels:
                raise ValueError(unknown_value("The prediction", name, task.labels))
        questions = [idx.rpartition("-")[0] for idx in data.ids]
        gold, found = ([task.labels.index(x) for x in names] for names in (data.gold, predictions))
        return multirc(list(zip(questions, gold)), found)

    def files(self, task, data, predictions, threshold):
        passages = {}
        for idx, label in zip(data.ids, predictions, strict=True):
            passage, question, answer = map(int, idx.split("-"))
            answers = passages.setdefault(passage, {}).setdefault(question, [])
            answers.append({"idx": answer, "label": task.labels.index(label)})
        lines = []
        for passage, questions in passages.items():
            found = [{"idx": idx, "answers": answers} for idx, answers in questions.items()]
            lines.append(to_json({"idx": passage, "passage": {"questions": found}}))
        return {task.submission: "\n".join([*lines, ""])}


class CauseOrEffect(_Lines, MultipleChoice):
    """COPA: which choice is the cause or the effect of a premise."""

    def rows(self, task, fields):
        question = fields.text("question")
        if question not in _QUESTIONS:
            raise ValueError(unknown_value(f"{fields.place}: the question", question, _QUESTIONS))
        texts = {name: fields.text(name) for name in (*task.columns, *task.choices)}
        return [{**texts, "question": _QUESTIONS[question], **fields.labeled()}]


class Entities(_Lines, MultipleChoice):
    """ReCoRD: which entity of a passage fills the gap in a query."""

    def rows(self, task, fields):
        passage = fields.inner("passage")
        text = passage.text("text")
        names = []
        for entity in passage.each("entities"):
            # Ends are inclusive in these files.
            inclusive = _Fields(
                {"start": entity.number("start"), "end": entity.number("end") + 1}, entity.place
            )
            start, end = inclusive.span(text, "start", "end")
            names.append(text[start:end])
        text, names = text.replace(_HIGHLIGHT, " "), list(dict.fromkeys(names))
        found = []
        for query in fields.each("qas"):
            row = {"passage": f"{query.text('query')} {text}", "entities": names}
            row["idx"] = query.number("idx")
            if "answers" in query.values:
                row["label"] = [answer.text("text") for answer in query.each("answers")]
            found.append(row)
        return found

    def examples(self, task, table, split):
        x, ids = (table.columns["passage"], table.columns["entities"]), table.columns["idx"]
        for position, names in enumerate(x[1]):
            if not names:
                raise ValueError(f"{table.place(position)} has no entities.")
        if is_test(split) and table.find("label") is None:
            return examples_of(x, None, ids)
        gold = table.column("label", f" for the answers of '{task.name}'")
        for position, answers in enumerate(gold):
            if not answers:
                raise ValueError(f"{table.place(position)} has no answers.")
        found = [_place(names, answers) for names, answers in zip(x[1], gold)]
        data = examples_of(x, [place or 0 for place in found], ids, gold)
        lost = [i for i, place in enumerate(found) if place is None]
        where = "among the entities of their passages"
        return found_answers(data, lost, split, table.source, where, "idx")

    def scores(self, task, data, predictions):
        return squad(data.gold, self.labels_of(data, predictions))

    def labels_of(self, data, predictions):
        return [names[i] for names, i in zip(data.x[1], predictions, strict=True)]


def _place(names, answers):
    """Return the index of the first entity that is an answer, or `None`."""
    normalize = ANSWER_RULES["squad"].normalize
    wanted = {normalize(answer) for answer in answers}
    return next((i for i, name in enumerate(names) if normalize(name) in wanted), None)
