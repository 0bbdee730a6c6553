"""Korean and Japanese texts with the English originals, from the sources of `preset_text.py`.

    python benchmarks/preset_pairs.py OUT --treebanks ud

Message catalogs of programs and JSON files have the English original of each text; pages of
LibreOffice's help in two languages have equal paragraph names. The sources and license checks are
those of `preset_text.py`, and so is the overlap check: a translation is dropped if it shares 16
letters with a text of a benchmark, or equals a shorter one.

`OUT/ko.tsv` and `OUT/ja.tsv` have one pair per line: the translation, a tab, the English. Lines are
shuffled. `OUT/pairs.json` has the counts. Two runs write the same bytes.
"""

import html
import json
import random
import re
from pathlib import Path
from typing import Annotated

import preset_text
import real_data
import typer

from kerasbert.base.files import write_text

LONGEST = 400  # maximum number of characters; a model trained on pairs reads 64 tokens


def paragraphs(content):
    """Return the text of a page of LibreOffice's help by paragraph name."""
    page = content.decode("utf-8").split("<footer")[0]
    return dict(re.findall(r'<(?:p|h\d) id="([^"]+)"[^>]*>(.*?)</(?:p|h\d)>', page, re.S))


def beside(names, language):
    """Pair JSON files whose names differ only in the language: `(name, English name)`.

    A checksum that follows the language may differ, too.

    >>> beside(["a/en.json", "a/ko.json", "b/ko.json", "c/en-1234abcd.json"], "ko")
    [('a/ko.json', 'a/en.json')]
    """
    folders = {}
    for name in sorted(names):
        if part := re.search(rf"(?<=/)(en|{language})(-\w{{8,}})?\.json$", name):
            folders.setdefault(name[: part.start()], {})[part[1]] = name
    return [(one[language], one["en"]) for one in folders.values() if len(one) == 2]


def read(source):
    """Return `(translation, English)` of a source, raw."""
    files = dict(preset_text.archive_files(real_data.archive(preset_text.ARCHIVES[source.package])))
    language = source.language
    compiled = rf"(/|-){language}(_[A-Z]+)?(/(LC_MESSAGES/)?[^/]*)?\.mo$"
    for name in sorted(files):
        if re.search(compiled, name):
            yield from preset_text.translations(files[name])
    for name, other in beside(files, language):
        english = dict(preset_text.placed_strings(json.loads(files[other])))
        for key, text in preset_text.placed_strings(json.loads(files[name])):
            if key in english:
                yield text, english[key]
    if source.name == "LibreOffice help":
        archive = preset_text.ARCHIVES["libreoffice-help-en-us"]
        english = {
            name.replace("/help/en-US/", f"/help/{language}/"): content
            for name, content in preset_text.archive_files(real_data.archive(archive))
        }
        for name in sorted(files):
            tested = real_data.is_test_page(name)
            if name.endswith(".html") and "/text/" in name and name in english and not tested:
                other = paragraphs(english[name])
                for key, text in paragraphs(files[name]).items():
                    if key in other:
                        yield text, other[key]


def plain(text):
    """Return a text as one line without tags, access keys and wiki markup."""
    text = html.unescape(re.sub(r"<[^>]*>", "", text))
    text = re.sub(r"\([_&]\w\)|[_&](?=\w)|'''?|\[\[(?:[^\]|]*\|)?|\]\]", "", text)
    return preset_text.tidy(text)


def is_pair(text, english, language):
    """Return whether the first text is mostly in the language, and the second is another text."""
    letters = len(preset_text.LETTERS[language].findall(text))
    written = sum(character.isalnum() for character in text)
    words = len(re.findall(r"[A-Za-z]{2,}", english))
    near = len(text) <= LONGEST and len(english) <= 3 * LONGEST
    return near and letters >= 2 and 2 * letters >= written and words > 0 and text != english


def made(language, overlap, treebanks=None, only=None):
    """Return the pairs of a language, and the report on them."""
    _, sources, missing = preset_text.read_sources(language, only, read)
    pairs, counts = {}, {}
    for name, found in sources:
        before = len(pairs)
        for text, english in found:
            text, english = plain(text), plain(english)
            if is_pair(text, english, language):
                pairs.setdefault(text, english)
        if found:
            counts[name] = [len(found), len(pairs) - before]
            print(language, name, *counts[name], flush=True)
    report = {"sources": counts, "missing": missing, "pairs": len(pairs)}
    if overlap:
        pairs = without_overlap(pairs, language, treebanks)
        report["without overlap"] = len(pairs)
    kept = list(pairs.items())
    random.Random(0).shuffle(kept)
    return kept, report


def without_overlap(pairs, language, treebanks):
    """Return pairs whose translation neither is in a benchmark nor shares 16 letters with it."""
    tested = [text for _, texts in preset_text.benchmarks(language, treebanks) for text in texts]
    # The benchmark treats the names of an emoji as one text.
    short = {one for text in tested for one in (text, *text.split(", "))}
    size = preset_text.OVERLAP[language]
    grams = {gram for text in tested for gram in preset_text.ngrams(text, language, size)}
    return {
        text: english
        for text, english in pairs.items()
        if text not in short and grams.isdisjoint(preset_text.ngrams(text, language, size))
    }


def main(
    out: Path,
    languages: Annotated[str, typer.Option(help="ko,ja or one of them")] = "ko,ja",
    treebanks: Annotated[Path, typer.Option(help="a folder of UD's *.conllu.gz")] = None,
):
    """Fetch, read, filter and write the pairs."""
    out.mkdir(parents=True, exist_ok=True)
    report = {}
    for language in languages.split(","):
        pairs, report[language] = made(language, True, treebanks)
        write_text(str(out / f"{language}.tsv"), "".join(f"{a}\t{b}\n" for a, b in pairs))
        print(language, {x: y for x, y in report[language].items() if x != "sources"})
    write_text(str(out / "pairs.json"), json.dumps(report, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
