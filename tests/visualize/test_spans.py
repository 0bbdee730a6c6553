"""Highlighted text keeps the text: a browser shows each character once, in order."""

import html.parser

import pytest

from kerasbert.visualize import answers, entities

# No backend is involved.
pytestmark = pytest.mark.backends("tensorflow")


class Reader(html.parser.HTMLParser):
    """The text without names, its highlighted parts with their style, and the names."""

    def __init__(self, page):
        super().__init__()
        self.text, self.marks, self.names = "", [], []
        self.open = []
        self.feed(str(page))
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.open.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        tag, attributes = self.open[-1]
        if tag == "bdi":
            self.names.append((len(self.text), data))
            return
        if tag == "mark":
            start = len(self.text)
            self.marks.append((start, start + len(data), attributes))
        self.text += data


def color(attributes):
    return attributes["style"].split(";")[0]


@pytest.mark.parametrize(
    "text, spans",
    [
        ('Ann <b>&amp; "Lee"</b> in\n\nRome', [(0, 3, "<PER>"), (13, 18, "x\"'&")]),
        ("سافر محمد إلى القاهرة 👩‍👩‍👧 cafe\u0301", [(5, 9, "شخص"), (22, 27, "E"), (28, 33, "W")]),
        ("홍길동은 서울", [(0, 3, "PS"), (5, 7, "LC")]),
        ("no entity", []),
        ("", []),
        ("x" * 3, [(0, 3, 7)]),
    ],
)
def test_entities_stand_where_they_are(text, spans):
    page = Reader(entities(text, spans))
    assert page.text == text
    assert [(start, end) for start, end, _ in page.marks] == [span[:2] for span in spans]
    assert page.names == [(end, str(label)) for _, end, label in spans]


def test_labels_have_colors_of_their_own():
    found = [
        {"label": "A", "start": 0, "end": 1, "score": 0.5, "text": "a"},
        {"label": "B", "start": 2, "end": 3, "score": 0.25, "text": "b"},
        {"label": "A", "start": 4, "end": 5, "score": 0.125, "text": "c"},
    ]
    first, second, third = (mark for *_, mark in Reader(entities("a b c", found)).marks)
    assert color(first) == color(third) != color(second)
    assert second["title"] == "B 0.250"
    (mark, *_) = Reader(entities("a b c", found, colors={"A": '"><script>'})).marks
    assert color(mark[2]) == 'background:"><script>'  # Inside its attribute.


def test_overlapping_entities_are_all_there():
    page = Reader(entities("Bank of England", [(0, 15, "ORG"), (8, 15, "LOC"), (5, 10, "X")]))
    assert page.text == "Bank of England"
    assert [mark["title"] for *_, mark in page.marks] == [
        "ORG",
        "ORG, X",
        "ORG, LOC, X",
        "ORG, LOC",
    ]
    assert len({color(mark) for *_, mark in page.marks}) == 1
    assert page.names == [(10, "X"), (15, "ORG"), (15, "LOC")]


def test_lists_of_words():
    page = Reader(entities(["Ann", "Lee", "in", "Rome"], [(0, 2, "PER"), (3, 4, "LOC")]))
    assert page.text == "Ann Lee in Rome"
    assert [page.text[start:end] for start, end, _ in page.marks] == ["Ann Lee", "Rome"]


def test_answers():
    context = "It opened <in> 1904 & closed."
    best = {"answer": "1904", "start": 15, "end": 19, "score": 0.75, "null_score": -1.0}
    longer = {"answer": "<in> 1904", "start": 10, "end": 19, "score": 0.25, "null_score": -1.0}
    none = {"answer": "", "start": None, "end": None, "score": 0.5, "null_score": 1.0}
    page = Reader(answers(context, [best, longer], "When & where?"))
    assert page.text == "When & where?" + context
    assert [page.text[start:end] for start, end, _ in page.marks] == ["<in> ", "1904"]
    assert [name for _, name in page.names] == ["1 · 0.75", "2 · 0.25"]
    assert "No answer (1 · 0.50)" in Reader(answers(context, [none, best])).text
    for nothing in ([], [none]):
        page = Reader(answers(context, nothing))
        assert page.text.startswith("No answer") and page.text.endswith(context)
        assert not page.marks


def test_spans_of_another_text_are_told():
    for span in ((0, 9, "A"), (-1, 2, "A"), (2, 2, "A")):
        with pytest.raises(ValueError, match="outside the text of 4 characters"):
            entities("Rome", [span])
    with pytest.raises(ValueError, match="text of 1 words"):
        entities(["Rome"], [(0, 2, "A")])


def test_a_page_of_its_own(tmp_path):
    page = entities("서울 <3", [(0, 2, "LC")])
    page.save(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert str(page) in text and 'charset="utf-8"' in text
    assert page._repr_html_() == str(page) and "show it in a notebook" in repr(page)
