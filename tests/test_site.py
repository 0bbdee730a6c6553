"""The site: built without warnings, each public name has a page, and links resolve."""

import html
import inspect
import json
import re
import subprocess
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import kerasbert
from tests.pages import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.backends("tensorflow")]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "docs", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


class Page(HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.ids, self.links, self.loaded, self.language = set(), set(), set(), None
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.ids |= {attributes.get("id"), attributes.get("name")}
        if tag == "a" and attributes.get("href"):
            self.links.add(attributes["href"])
        if tag == "html":
            self.language = attributes["lang"]
        source = attributes.get("src")
        if tag == "link" and attributes.get("rel") != "canonical":
            source = attributes.get("href")
        if source and not source.startswith("data:"):
            self.loaded.add(source)


@pytest.fixture(scope="module")
def pages(site):
    return {path: Page(path) for path in site.rglob("*.html") if "_static" not in path.parts}


def documented(site):
    """Return names and pages of the inventory that Sphinx writes for other sites."""
    data = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    lines = zlib.decompress(data).decode().splitlines()
    rows = [re.fullmatch(r"(\S+) (py:\w+) \S+ (\S*) .*", line) for line in lines]
    return {row[1]: row[3].split("#")[0].replace("$", row[1]) for row in rows if row}


def test_every_public_name_has_a_page(site):
    pages = documented(site)
    values = {f"kerasbert.{name}": getattr(kerasbert, name) for name in kerasbert.__all__}
    for name, value in dict(values).items():
        if inspect.ismodule(value):
            values |= {f"{name}.{last}": getattr(value, last) for last in value.__all__}
    assert len(values) > 200
    missing = []
    for name, value in values.items():
        same = [other for other in values if values[other] is value]
        if not any(other in pages and (site / pages[other]).is_file() for other in same):
            missing.append(name)
    assert not missing


def test_no_link_is_broken(site, pages):
    broken = []
    for path, page in pages.items():
        for link in page.links | page.loaded:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = path
            if parts.path:
                target = (path.parent / unquote(parts.path)).resolve()
            if target.is_dir():
                target /= "index.html"
            is_there = target.is_file()
            if is_there and parts.fragment and target in pages:
                is_there = unquote(parts.fragment) in pages[target].ids
            if not is_there:
                broken.append(f"{path.relative_to(site)}: {link}")
    assert not broken


def test_nothing_is_fetched_from_elsewhere(site, pages):
    away = {link for page in pages.values() for link in page.loaded if "//" in link}
    assert not away
    for path in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*['\"]?https?:", path.read_text(encoding="utf-8"))


def test_search_finds_korean_and_japanese(site):
    text = (site / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(re.fullmatch(r"Search\.setIndex\((.*)\)", text, re.DOTALL)[1])

    def with_term(term):
        """Return pages: the index has a number for one, a list for several."""
        rows = [index[part].get(term, []) for part in ("terms", "titleterms")]
        return {one for row in rows for one in (row if isinstance(row, list) else [row])}

    def found(*terms):
        numbers = set.intersection(*map(with_term, terms))
        return {index["docnames"][number] for number in numbers}

    assert "ko/index" in found("튜닝")  # In "미세 튜닝을" or "파인튜닝", with any particle.
    assert "ja/index" in found("学習") and "ja/index" in found("モデ", "デル")
    assert "guides/tag" in found("tagger")
    splitter = (site / "_static" / "language_data.js").read_text(encoding="utf-8")
    assert "function splitQuery" in splitter and "var EnglishStemmer=" in splitter
    assert "window.Stemmer = EnglishStemmer;" in splitter


def test_pages_say_their_language(site, pages):
    assert pages[site / "ko" / "index.html"].language == "ko"
    assert pages[site / "ja" / "index.html"].language == "ja"
    assert pages[site / "start.html"].language == "en"


def test_notebooks_have_what_they_showed(site):
    for path in (ROOT / "examples").glob("*.ipynb"):
        page = (site / "notebooks" / f"{path.stem}.html").read_text(encoding="utf-8")
        assert "cell_output" in page


def test_presets_are_all_in_the_table(site):
    page = (site / "presets.html").read_text(encoding="utf-8")
    assert all(f"<code>{name}</code>" in page for name in kerasbert.builtin_presets())


def test_the_picture_is_drawn_of_the_code(monkeypatch):
    """`python docs/pages.py` regenerates it."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    import pages as site_pages

    assert Path(ROOT, "docs", "overview.svg").read_text("utf-8") == site_pages.overview()


def test_figures_have_the_numbers_of_the_results(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    import pages as site_pages

    for title, name, part in site_pages.FIGURES:
        section = site_pages.figure(title, name, part)
        result = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text("utf-8"))
        rows = [row for row in result["rows"] if part in row["work"]]
        assert rows and result["command"] in html.unescape(section)
        bars = sum(len(row["values"]) for row in rows)
        assert section.count('<div class="bar ') == bars, title
