"""Licenses of the presets' text: names, restrictions and archives, with invented ones."""

import io
import json
import re
import tarfile
import zipfile

import preset_licenses
import preset_text
import pytest
import real_data
from preset_licenses import Refused, Statement

# No backend is involved.
pytestmark = pytest.mark.backends("tensorflow")
DEP5 = """Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/

Files: *
Copyright: 2020 Somebody
License: GPL-2.0-or-later or Expat, and BSD-3-clause

Files: doc/*
Copyright: 2020 Somebody
License: GFDL-NIV-1.2+
 Permission is granted to copy this document under the GNU Free Documentation License, Version
 1.2 or any later version; with no Invariant Sections, no Front-Cover Texts.
 .
 It is here.
"""


@pytest.mark.parametrize(
    "text",
    [
        DEP5,
        "You may copy it in any medium, either commercially or noncommercially.",
        "for any purpose, commercial or non-commercial, and by any means",
        "(This alternative is allowed only for\n * noncommercial distribution and only if",
        "This alternative is allowed only occasionally and noncommercially, and",
        "A program that contains no derivative of any portion of the Library, but is designed",
        "This License may not be modified without the mutual written agreement of the Licensor",
        "It is wise never to modify a component of the Work, even for your own personal use,",
        "The name of the authors may not be used to endorse products derived from this software.",
        "The Invariant Sections are certain Secondary Sections whose titles are designated",
        "without Invariant Sections. with the Invariant Sections being LIST THEIR TITLES",
        "They do not contain any unmodifiable parts (invariant sections).",
        "The Font Software may be sold as part of a larger package but not be sold by itself.",
        "The NOTICE file is for informational purposes only and does not modify the License.",
        "If you cannot distribute, you may not distribute the Program at all.",
    ],
)
def test_boilerplate_restricts_nothing(text):
    assert preset_licenses.restrictions(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "License: CC-BY-NC-3.0",
        "License: CC-BY-SA-ND-4.0",
        "Free for non-commercial\n .\n use.",
        "Use for commercial purposes is prohibited.",
        "You may copy it, but not for commercial use.",
        "Attribution-NoDerivs 3.0 Unported",
        "No derivative works are allowed.",
        "This text may not be modified.",
        "You may not modify the Documentation.",
        "Copies may not be sold.",
        "It is not for sale.",
        "It may be used only for research.",
        "For educational purposes only.",
        "This copy is for personal use only.",
        "under the GFDL, with the Invariant Sections being “Preface” and “Thanks”",
        "The Invariant Sections are the manifesto.",
    ],
)
def test_restrictions_are_found(text):
    assert len(preset_licenses.restrictions(text)) == 1


def test_names_of_a_machine_readable_file():
    names = ["BSD-3-clause", "Expat", "GFDL-NIV-1.2+", "GPL-2.0-or-later"]
    assert preset_licenses.licenses(DEP5) == names
    assert preset_licenses.unstated("GPL-2+ or MIT, BSD-3-Clause, GFDL-NIV-1.2+", names) == []
    assert preset_licenses.unstated("GPL-2, GPL-3+", names) == ["GPL-2", "GPL-3+"]


@pytest.mark.parametrize(
    "text, names",
    [
        (
            "redistribute it under the terms of the GNU General Public License as published by "
            "the Free Software Foundation; either version 2 of the License, or\n * (at your "
            "option) any later version. See the GNU General Public License for more details.",
            ["GPL-2+"],
        ),
        ("under the GNU Lesser General Public License, version 2.1", ["LGPL-2.1"]),
        ("GNU Free Documentation License, Version 1.3 or any later version", ["GFDL-1.3+"]),
        ("License: GPL v2+. It stands in /usr/share/common-licenses/GPL-2.", ["GPL-2+"]),
        ("Its copyright has expired: it is in the public domain.", ["public domain"]),
        ("Redistribution and use in source and binary forms are permitted", ["BSD"]),
        ("All rights reserved.", []),
    ],
)
def test_names_in_prose(text, names):
    assert preset_licenses.licenses(text) == names


def tarball(files):
    """Return the bytes of a tar of `{name: text}`; `-> other` is a link."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as members:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            if text.startswith("-> "):
                member.type, member.linkname = tarfile.SYMTYPE, text[3:]
                members.addfile(member)
            else:
                member.size = len(text.encode())
                members.addfile(member, io.BytesIO(text.encode()))
    return packed.getvalue()


def package(path, section, files):
    """Write a Debian package."""
    parts = {
        "debian-binary": b"2.0\n",
        "control.tar.xz": tarball({"./control": f"Package: a\nSection: {section}\n"}),
        "data.tar.xz": tarball({f"./usr/share/doc/{name}": text for name, text in files.items()}),
    }
    raw = b"!<arch>\n"
    for name, content in parts.items():
        raw += f"{name:16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
        raw += content + b"\n" * (len(content) % 2)
    path.write_bytes(raw)


def test_statements_of_archives(tmp_path, monkeypatch):
    package(tmp_path / "a.deb", "doc", {"a/copyright": DEP5, "a/other": "x"})
    package(tmp_path / "a-doc.deb", "non-free/doc", {"a-doc": "-> a"})
    package(tmp_path / "b.deb", "doc", {"b/changelog": ""})
    with zipfile.ZipFile(tmp_path / "c.whl", "w") as wheel:
        wheel.writestr("c-1.dist-info/METADATA", "License-Expression: (MIT)\n\nLicense: no\n")
    (tmp_path / "d.tgz").write_bytes(
        tarball({"package/package.json": json.dumps({"license": "CC-BY-NC-4.0"})})
    )
    suffixes = {"deb": ".deb", "wheel": ".whl", "npm": ".tgz"}
    monkeypatch.setattr(real_data, "archive", lambda one: tmp_path / (one[0] + suffixes[one[2]]))
    kinds = {"a": "deb", "a-doc": "deb", "b": "deb", "c": "wheel", "d": "npm"}
    archives = {name: (name, "1", kind) for name, kind in kinds.items()}

    def stated(name):
        return preset_licenses.statement(archives[name], archives)

    names = preset_licenses.licenses(DEP5)
    assert stated("a") == Statement("a", "doc", names, [])
    assert stated("a-doc") == Statement("a", "non-free/doc", names, [])
    assert stated("c") == Statement("c", "", ["MIT"], [])
    assert stated("d").restrictions == ["CC-BY-NC-4.0"]
    with pytest.raises(Refused, match="no copyright file"):
        stated("b")
    del archives["a"]
    with pytest.raises(Refused, match="not pinned"):
        stated("a-doc")


def test_check():
    free = Statement("a", "doc", ["GPL-2+"], [])
    preset_licenses.check("A", "a", "GPL-2+", free)
    for license, found, message in [
        ("GPL-2+", free._replace(section="non-free/doc"), "not of main"),
        ("GPL-2+", free._replace(restrictions=["may not be sold"]), "may not be sold"),
        ("GPL-2+", free._replace(licenses=[]), "no license"),
        ("GPL-3+", free, "does not state"),
    ]:
        with pytest.raises(Refused, match=message):
            preset_licenses.check("A", "a", license, found)
    with pytest.raises(Refused, match="in doubt"):
        preset_licenses.check("Bills", "a", "GPL-2+", free)


def test_an_exception_is_for_its_words():
    pattern, _ = preset_licenses.EXCEPTIONS["stellarium-data"]
    found = Statement("stellarium-data", "doc", ["GPL-2+"], [f"where {pattern}."])
    preset_licenses.check("Stellarium", "stellarium-data", "GPL-2+", found)
    more = found._replace(restrictions=[*found.restrictions, "may not be sold"])
    with pytest.raises(Refused, match="may not be sold"):
        preset_licenses.check("Stellarium", "stellarium-data", "GPL-2+", more)


def test_what_is_named_is_a_source():
    packages = {source.package for source in preset_text.SOURCES}
    assert {*preset_licenses.EXCEPTIONS, *preset_licenses.APART} <= packages
    assert preset_licenses.DOUBTFUL.keys() <= {source.name for source in preset_text.SOURCES}
    for pattern in [*preset_licenses.BOILERPLATE, *preset_licenses.RESTRICTIONS]:
        re.compile(pattern)
