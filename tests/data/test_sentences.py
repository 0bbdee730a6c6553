"""Sentences: running prose in several languages, and wrapped lines."""

import pytest
import real_data

from tests.data.test_corpus import read

pytestmark = pytest.mark.backends("tensorflow")  # No backend is involved.


@pytest.mark.parametrize(
    "text, expected",
    [
        (
            "Mr. Smith paid $3.50 for it. “Why?” he asked.",
            ["Mr. Smith paid $3.50 for it.", "“Why?” he asked."],
        ),
        (
            "비가 옵니다. 기온은 3.5도예요! 갔어요?",
            ["비가 옵니다.", "기온은 3.5도예요!", "갔어요?"],
        ),
        ("雨が降る。傘は？「ない。」", ["雨が降る。", "傘は？", "「ない。」"]),
        (
            "增长２８．３％。他说：“很好！”真的吗？",
            ["增长２８．３％。", "他说：“很好！”", "真的吗？"],
        ),
        ('He said. " It is late', ["He said.", '" It is late']),
        ("他说：『好。我一定回国。 』然后", ["他说：『好。", "我一定回国。 』", "然后"]),
        ("增加１．５％和２．５％。", ["增加１．５％和２．５％。"]),
        (
            "Plan B\u00a0. It rains.\u3000So B\u3000. it",
            ["Plan B\u00a0.", "It rains.", "So B\u3000. it"],
        ),
        ("No end", ["No end"]),
    ],
)
def test_prose_is_split(write, text, expected):
    assert read(write("a.txt", text), sentences="split") == [expected]


@pytest.mark.parametrize("language", ["ko", "ja", "zh"])
def test_marks_of_east_asia_are_known_in_any_language(write, language):
    text = "雨が降る。비가 온다. 下雨了！"
    path = write("a.txt", text)
    assert read(path, sentences="split") == read(path, sentences="split", language=language)


@pytest.mark.parametrize(
    "source, end, joined",
    [
        (real_data.korean_text, "다.", " "),
        (real_data.japanese_text, "す。", ""),
        (real_data.chinese_text, "。", ""),
    ],
)
def test_real_prose_is_split_where_its_sentences_end(write, source, end, joined):
    lines = real_data.or_skip(source, required=False)
    # Keep lines of one plain sentence; the test joins them to one paragraph. A line must start with
    # a letter, because the splitter never ends a sentence before a digit.
    lines = [
        x
        for x in lines
        if x.endswith(end) and x[0].isalpha() and not set(x[:-1]) & set('.。！？?!“”"「」:；…')
    ]
    lines = lines[:2000]
    assert len(lines) > 500
    [found] = read(write("a.txt", joined.join(lines)), sentences="split")
    right = set(lines) & set(found)
    assert len(right) > 0.96 * len(set(lines))
    assert "".join("".join(found).split()) == "".join("".join(lines).split())


def test_a_long_paragraph_without_spaces_takes_linear_time(write):
    text = "今日は雨が降るでしょう。" * 20_000
    [found] = read(write("a.txt", text), sentences="split")
    assert found == ["今日は雨が降るでしょう。"] * 20_000


def test_wrapped_lines_are_joined(write):
    long = "The quick brown fox jumps over the lazy dog and runs away from Mr. Jones. "
    words = (long * 4).split()
    lines, line = [], ""
    for word in words:
        if len(line) + len(word) > 60:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    text = "A TITLE\n\n" + "\n".join([*lines, line])
    path = write("a.txt", text)
    split = {"document_end": "file"}
    assert read(path, **split) == [["A TITLE"] + [long.strip()] * 4]
    assert read(path, wrapped=False, **split)[0][1] == lines[0]
    # Lines that end at sentence ends, or have any length, are not joined.
    poem = write("b.txt", "Roses are red\nViolets are blue\n\nShort.\nA line that is longer\n")
    assert read(poem, **split)[0][:2] == ["Roses are red", "Violets are blue"]
    assert read(poem, wrapped=True, **split)[0][0] == "Roses are red Violets are blue"
    japanese = write("c.txt", "雨が\n降る。\n비가\n온다.\n")
    assert read(japanese, wrapped=True, **split) == [["雨が降る。", "비가 온다."]]
