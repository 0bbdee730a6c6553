"""Indexes of documents: their files, passages, and hits per document."""

import gzip
import json
import warnings

import pytest

from kerasbert import SearchIndex
from kerasbert.search import PassageSplitter
from tests.search.test_index import Letters, Shortest, make_embedder

SMALL = PassageSplitter(max_tokens=8, overlap=0)
RAIN = "It rains. It pours all day long.\nBirds sing. The sun shines again today."


def made(files=None, texts=None, **settings):
    embedder = settings.pop("embedder", None) or Letters()
    return SearchIndex.from_documents(embedder, files, texts, **{"splitter": SMALL, **settings})


def places(index):
    return [(one["metadata"]["document"], one["text"]) for one in index.get()]


def test_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "文書"
    (folder / ".hidden").mkdir(parents=True)
    (folder / ".hidden" / "x.txt").write_text("No.")
    (folder / "a 雨.txt").write_bytes(b"\xef\xbb\xbf" + RAIN.replace("\n", "\r\n").encode())
    (folder / "b.md").write_text(
        "Intro.\n\n#  비 소식 \n\n오늘은 비가 옵니다. 그는 갔다.", encoding="utf-8"
    )
    (folder / "c.txt.gz").write_bytes(gzip.compress("京都へ行った。".encode("cp932")))
    rows = [{"Text": "one", "_id": "x", "year": 2020, "author": {"name": 1}}, {"Text": None}, "two"]
    (folder / "d.jsonl").write_text("\n".join(map(json.dumps, rows[:2])))
    (folder / "e.csv").write_text("title;text;lang\nTwo;two;en\n;three;\n")
    (folder / "empty.txt").write_text("\r\n \n")
    with pytest.warns(UserWarning) as caught:
        index = made("文書", encoding="cp932")
    messages = " ".join(str(one.message) for one in caught)
    assert "2 of 8 documents have no text, such as '文書/d.jsonl:2'" in messages
    assert "Some values of 'author' cannot be metadata" in messages
    assert all(one.filename == __file__ for one in caught)
    documents = {one["metadata"]["document"]: one for one in index.get()}
    assert [*documents] == [
        "文書/a 雨.txt",
        "文書/b.md",
        "文書/c.txt.gz",
        "x",
        "文書/e.csv:1",
        "文書/e.csv:2",
    ]
    for name, text in (
        ("文書/a 雨.txt", RAIN),
        ("文書/b.md", (folder / "b.md").read_text("utf-8")),
    ):
        for one in index.get(where={"document": name}):
            assert text[one["metadata"]["start"] : one["metadata"]["end"]] == one["text"]
    titles = [one["metadata"].get("title") for one in documents.values()]
    assert titles == ["a 雨", "비 소식", "c", None, "Two", ""]
    assert documents["x"]["metadata"] == {"document": "x", "year": 2020, "start": 0, "end": 3}
    assert documents["文書/e.csv:1"]["metadata"]["lang"] == "en"
    assert documents["文書/c.txt.gz"]["text"] == "京都へ行った。"
    # The same file twice is one document, and a generator of paths is read once.
    twice = made(path for path in [folder / "a 雨.txt", folder / "a 雨.txt"])
    assert len({one["metadata"]["document"] for one in twice.get()}) == 1


def test_texts_replacing_and_saving(tmp_path):
    index = made(
        texts=({"id": 7, "text": RAIN, "tags": ["wet"]}, "Rome is old.", {"text": "A boat."})
    )
    assert {name for name, _ in places(index)} == {"7", "0", "1"}
    assert index.get("7#0")["metadata"]["tags"] == ["wet"]
    with pytest.raises(ValueError, match="The document '7' is already in the index; pass replace"):
        index.add_documents(texts=["new", {"id": "7", "text": "So."}])
    assert len(index) == len(index.get()) and "2#0" not in index
    index.add_documents(texts=["new", {"id": "7", "text": "So."}], replace=True)
    assert places(index) == [("0", "Rome is old."), ("1", "A boat."), ("2", "new"), ("7", "So.")]
    index.add(["another"], ["7#1"])
    with pytest.raises(ValueError, match="text with the id '7#1' of a passage, which is not of"):
        index.add_documents(texts=[{"id": "7", "text": RAIN}], replace=True)
    index.remove("7#1")
    numbers = SearchIndex(Letters(), ["a"])
    with pytest.raises(ValueError, match="whole numbers"):
        numbers.add_documents(texts=["b"])
    assert "7#1" not in index
    index.save(tmp_path / "index")
    loaded = SearchIndex.load(tmp_path / "index", Letters())
    assert loaded.splitter == SMALL
    with pytest.warns(UserWarning, match="no text, such as '7'"):
        loaded.add_documents(texts=[{"id": "7", "text": " "}], replace=True)
    assert places(loaded) == places(index)[:3]
    assert len(made(texts=[])) == 0 and made(texts=[]).search("a") == []


def test_groups_of_equal_values():
    """As in filters, 1 equals 1.0, but not True."""
    fields = [{"a": x} for x in (1, 1.0, True, ["b"], ["b"], "1")] + [{}, {}]
    index = SearchIndex(Letters(), ["rain"] * 8, metadata=fields)
    assert [hit["id"] for hit in index.search("rain", 8, group_by="a")] == [0, 2, 3, 5, 6, 7]


def test_one_hit_per_document():
    texts = [{"id": f"d{i}", "text": f"{'rain. ' * i * 4} boat."} for i in range(1, 7)]
    for settings in ({}, {"keywords": True}, {"reranker": Shortest()}):
        index = made(texts=texts, **settings)
        hits = index.search("a rain", top_k=4, group_by="document")
        assert len({hit["metadata"]["document"] for hit in hits}) == 4
        every = index.search("a rain", top_k=len(index))
        firsts = {}
        for hit in every:
            firsts.setdefault(hit["metadata"]["document"], hit["id"])
        assert [hit["id"] for hit in hits] == list(firsts.values())[:4]
        more = index.search("a rain", top_k=9, offset=3, group_by="document", candidates=90)
        assert [hit["id"] for hit in more] == list(firsts.values())[3:]
    index.add(["rain", "rain"], ids=["x", "y"])
    vector = Letters().embed(["rain"])[0]
    assert {"x", "y"} <= {hit["id"] for hit in index.search_vectors(vector, 90, group_by="title")}


def test_passages_fit_the_embedder():
    embedder = make_embedder()  # It reads 14 tokens.
    index = made(texts=["good film. " * 30], embedder=embedder, splitter=None)
    tokens = embedder.preprocessor.tokenizer.tokenize(index.texts)
    assert max(map(len, tokens)) <= 14 and len(index) > 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # No text is truncated.
        index.add_documents(texts=["a " * 100])
    with pytest.raises(ValueError, match="max_tokens=15 is more than the 14 tokens"):
        made(texts=["a"], embedder=embedder, splitter=PassageSplitter(15, 0))
    prompted = made(texts=["a " * 30], embedder=embedder, splitter=None, text_prompt="b b b ")
    assert max(len(text.split()) for text in prompted.texts) == 11


@pytest.mark.parametrize(
    "files, texts, message",
    [
        (None, None, "Pass files or texts"),
        (
            "It rains.",
            None,
            "'It rains.' is not a file, .*; documents in memory are passed as texts=",
        ),
        (["rows.csv", {"text": "x"}], None, "files must be paths, got {'text': 'x'}; documents in"),
        (5, None, "files must be a list of paths; documents in memory"),
        ([], None, "empty list"),
        (None, "docs/", "texts must be a list"),
        (None, [3], r"texts\[0\] must be a string or a dict, got 3"),
        (None, [{"body": "x"}], r"texts\[0\] has no string at the key 'text'; its keys are 'body'"),
        (None, [{"text": "x", "start": 3}], r"texts\[0\] has the key 'start'"),
        (None, [{"text": "x", "by": {}}], r"texts\[0\]\['by'\] is {}"),
        (None, [{"text": "x", "id": 1.5}], r"The id of texts\[0\] must be a string or a whole"),
        (None, [{"text": "x", "id": 1}, {"text": "y", "id": "1"}], "'1' is given twice"),
        ("korean.txt", None, "it may be cp949, then pass"),
        ("a.pdf", None, "not a text file, but begins like PDF"),
        ("rows.csv", None, "Row 1 of 'rows.csv' has no column 'text'; its columns are 'a', 'b'"),
        ("list.jsonl", None, "Row 1 of 'list.jsonl' must be an object or a string"),
    ],
)
def test_invalid_documents(tmp_path, monkeypatch, files, texts, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "korean.txt").write_bytes(
        "이 영화는 정말로 재미있다. 그렇지만 길다.".encode("cp949")
    )
    (tmp_path / "a.pdf").write_bytes(b"%PDF-1.7\n%\xe2\xe3\xcf\xd3")
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    (tmp_path / "list.jsonl").write_text("[1]\n[2]\n")
    index = made(texts=["kept"])
    with pytest.raises(ValueError, match=message):
        index.add_documents(files, texts)
    assert index.texts == ["kept"]
    with pytest.raises(ValueError, match="splitter=256 must be a kerasbert"):
        made(texts=[], splitter=256)
    with pytest.raises(ValueError, match="from_documents takes no ids"):
        made(texts=[], ids=[1])
