"""Translations for a preset: the pairing, on small text in memory."""

import json
import types

import preset_pairs
import pytest
import real_data

from tests.test_preset_text import catalog_of

# No backend is involved.
pytestmark = pytest.mark.backends("tensorflow")


def deb_of(monkeypatch, files):
    """Replace every archive by these files."""
    monkeypatch.setattr(real_data, "archive", lambda archive: archive)
    monkeypatch.setattr(preset_pairs.preset_text, "ARCHIVES", {"a": "a", "b": "b"})
    monkeypatch.setattr(preset_pairs.preset_text, "archive_files", lambda path: files[path].items())


def source(name="A", package="a", language="ko"):
    return types.SimpleNamespace(name=name, package=package, language=language)


def test_catalogs_and_json(monkeypatch):
    charset = {"": "Content-Type: text/plain; charset=UTF-8\n"}
    korean = catalog_of(charset | {"menu\x04_Open": "열기(_O)"})
    japanese = catalog_of(charset | {"_Open": "開く"})
    inside = {"a": {"b": "문서 열기", "c": "다른 곳"}, "@d": "저자"}
    english = {"a": {"b": "Open a document"}, "@d": "Author"}
    files = {
        "usr/ko/LC_MESSAGES/a.mo": korean,
        "usr/ja/LC_MESSAGES/a.mo": japanese,
        "l10n/ko.json": json.dumps(inside),
        "l10n/en.json": json.dumps(english),
        "other/ko.json": json.dumps({"x": "혼자"}),
    }
    deb_of(monkeypatch, {"a": files})
    found = list(preset_pairs.read(source()))
    assert ("열기(_O)", "_Open") in found and ("문서 열기", "Open a document") in found
    assert len([pair for pair in found if pair[1]]) == 2


def test_pages_of_help(monkeypatch):
    def page(*texts):
        return "".join(f'<p id="par_{i}">{x}</p>' for i, x in enumerate(texts)).encode()

    names = [f"usr/help/ko/text/swriter/{i}.html" for i in range(20)]
    names = sorted(names, key=real_data.is_test_page)  # The characters of the test at the end.
    assert real_data.is_test_page(names[-1]) and not real_data.is_test_page(names[0])
    english = {name.replace("/ko/", "/en-US/"): page("Save", "Open") for name in names}
    korean = {name: page("저장") for name in names}
    deb_of(monkeypatch, {"a": korean, "b": english})
    preset_pairs.preset_text.ARCHIVES["libreoffice-help-en-us"] = "b"
    found = list(preset_pairs.read(source("LibreOffice help")))
    tested = sum(map(real_data.is_test_page, names))
    assert found == [("저장", "Save")] * (20 - tested)


@pytest.mark.parametrize(
    "raw, expected",
    [
        ("파일 <b>열기</b>(_O)", "파일 열기"),
        ("열기\n(&O)", "열기"),
        ("[[A|도움말]] &amp; 끝", "도움말 & 끝"),
    ],
)
def test_plain(raw, expected):
    assert preset_pairs.plain(raw) == expected


def test_is_pair():
    assert preset_pairs.is_pair("열기", "Open", "ko")
    assert preset_pairs.is_pair("開く", "Open", "ja")
    for text, english in [
        ("열", "Open"),
        ("Open 열기", "Open"),
        ("열기", "%d"),
        ("가" * 401, "Open"),
    ]:
        assert not preset_pairs.is_pair(text, english, "ko"), text


def test_overlap_with_benchmarks_goes(monkeypatch, tmp_path):
    sentence = "이 프로그램은 사용자가 처음 설치할 때 도움이 됩니다."
    messages = {"Open": "문서 열기", "Cat": "고양이", "Long": sentence, "Other": "다른 문장입니다."}
    content = catalog_of({"": "Content-Type: text/plain; charset=UTF-8\n"} | messages)
    deb_of(monkeypatch, {"a": {"usr/ko/a.mo": content}})
    tested = [("names", ["고양이, 동물"]), ("texts", [f"그런데 {sentence} 끝."])]
    monkeypatch.setattr(preset_pairs.preset_text, "SOURCES", [source(), source(language="ja")])
    monkeypatch.setattr(preset_pairs.preset_text, "described", lambda source: {})
    monkeypatch.setattr(preset_pairs.preset_text, "benchmarks", lambda *given: tested)
    preset_pairs.main(tmp_path, languages="ko")
    lines = (tmp_path / "ko.tsv").read_text(encoding="utf-8").splitlines()
    assert sorted(lines) == ["다른 문장입니다.\tOther", "문서 열기\tOpen"]
    report = json.loads((tmp_path / "pairs.json").read_text())["ko"]
    assert report["sources"] == {"A": [5, 4]} and report["without overlap"] == 2


def test_what_cannot_be_had_is_named(monkeypatch, tmp_path):
    deb_of(monkeypatch, {"a": {}})

    def archive(name):
        if name == "b":
            raise real_data.DataUnavailable("no b here")
        return name

    monkeypatch.setattr(real_data, "archive", archive)
    sources = [source(), source("B", "b")]
    monkeypatch.setattr(preset_pairs.preset_text, "SOURCES", sources)
    monkeypatch.setattr(preset_pairs.preset_text, "described", lambda source: {})
    monkeypatch.setattr(preset_pairs.preset_text, "benchmarks", lambda *given: [])
    preset_pairs.main(tmp_path, languages="ko")
    report = json.loads((tmp_path / "pairs.json").read_text())["ko"]
    assert report["missing"] == {"B": "no b here"} and report["pairs"] == 0
