"""CoNLL-U files, valid and broken."""

import gzip

import pytest

from kerasbert.tasks import read_conllu


def word(number, form, head, tag="NOUN"):
    return "\t".join([str(number), form, "_", tag, "_", "_", str(head), "dep", "_", "_"])


TEXT = "\n".join(
    [
        "# sent_id = a-1",
        "# text = vámonos al mar",
        "1-2\tvámonos" + "\t_" * 8,
        word(1, "vamos", 0, "VERB"),
        word(2, "nos", 1),
        "2.1\tgone" + "\t_" * 8,
        word(3, "mar", 1),
        "",
        word(1, "日本", 0),
        "",
        "",
    ]
)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("packed", [False, True])
def test_words_and_nothing_else(tmp_path, end, packed):
    path = tmp_path / ("a.conllu.gz" if packed else "a.conllu")
    data = TEXT.replace("\n", end).encode()
    path.write_bytes(gzip.compress(data) if packed else data)
    first, second = read_conllu(str(path))
    assert first.words == ("vamos", "nos", "mar")
    assert (first.heads, first.tags[0], first.relations[0]) == ((0, 1, 1), "VERB", "dep")
    assert (first.id, second.id, second.words) == ("a-1", "", ("日本",))


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "is empty"),
        ("# text = nothing\n", "has no words"),
        ("1\ta\t0\n", "Line 1 of .* has 3 columns"),
        (word(1, "a", 0) + "\n" + word("x", "b", 1), "Line 2 of .* has 'x' for the number"),
        (word(1, "a", "_"), "'_' for the head"),
        (word(1, "a", 0) + "\n" + word(3, "b", 1), r"line 1 of .* numbers its words \[1, 3\]"),
        ("\n".join(word(i, "a", 1) for i in (1, 2, 3, 4, 6, 7)), r"its words \[3, 4, 6\]; they"),
        (word("1-", "a", 0), "Line 1 of .* '1-' for the number"),
        ("\n\n" + word(1, "a", 2) + "\n" + word(2, "b", 1), "sentence on line 3 .* is not a tree"),
        (word(1, "a", 9), "head of word 1, 'a', is 9"),
    ],
)
def test_broken_files(tmp_path, text, message):
    path = tmp_path / "a.conllu"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_conllu(str(path))


def test_half_a_gzip_file(tmp_path):
    path = tmp_path / "a.conllu.gz"
    path.write_bytes(gzip.compress(TEXT.encode())[:-12])
    with pytest.raises(ValueError, match="truncated or damaged"):
        read_conllu(str(path))
