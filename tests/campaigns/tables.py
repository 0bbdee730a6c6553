"""Read tables in the formats of common programs back with `file_task`.

    python -m tests.campaigns.tables --files 500 --seed 1

Each file has random texts and labels in a random format: delimiter, quotes, line ends, encoding,
header, blank rows, compression, JSON lines or an array, labels as names or numbers. The texts and
labels that are read must equal those that were written.
"""

import argparse
import bz2
import csv
import gzip
import io
import json
import os
import random
import sys
import tempfile
import unicodedata
import warnings

from kerasbert.tasks import file_task

_WORDS = (
    *("good", "bad", "It's", "a film,", "x;y", 'say "hi"', "1,5", "|", "#hash", "-", "NaN", "null"),
    *("= 1", "true", "café", "naïve"),
)
# Words that each encoding can represent.
_ENCODINGS = {
    "utf-8": ("語", "한글", "ﾊﾝｶｸ", "😀", "①"),
    "utf-8-sig": ("語", "한글", "😀"),
    "utf-16": ("語", "한글", "😀"),
    "cp932": ("①", "髙橋", "ﾊﾝｶｸ", "映画"),
    "cp949": ("뷁", "똠방각하", "영화"),
    "cp1252": ("€5", "“quoted”", "déjà"),
}
# Names under which users know these encodings.
_NAMES = {"cp932": "shift_jis", "cp949": "euc-kr", "cp1252": "latin-1"}
_HEADERS = (("text", "label"), ("Text", "LABEL"), (" text ", "label\xa0"))


def _drawn_rows(draw, encoding):
    words = [w for w in (*_WORDS, *_ENCODINGS[encoding]) if _fits(w, encoding)]
    labels = draw.choice([["neg", "pos"], ["0", "1", "2"], ["a b", "c-d", "e"]])
    rows = []
    for _ in range(draw.randint(4, 30)):
        text = " ".join(draw.choices(words, k=draw.randint(1, 6)))
        rows.append((f"w {text}", draw.choice(labels)))
    return rows


def _fits(word, encoding):
    try:
        word.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _delimited(draw, rows, encoding):
    """Return `(name, content)` of a delimited table."""
    mark = draw.choice(",;\t|")
    # Quotes in .tsv are text unless all values are quoted.
    is_tsv = mark == "\t" and draw.random() < 0.5
    quoting = csv.QUOTE_ALL if is_tsv else draw.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
    end = draw.choice(["\n", "\r\n", "\r"])
    file = io.StringIO()
    writer = csv.writer(file, delimiter=mark, lineterminator=end, quoting=quoting)
    header = draw.choice(_HEADERS if _fits("\xa0", encoding) else _HEADERS[:2])
    extra = [""] * draw.choice([0, 0, 1, 2])  # Adds delimiters at the ends of lines.
    writer.writerow([*header, *extra])
    for text, label in rows:
        writer.writerow([text, label, *extra])
        if draw.random() < 0.1:
            file.write(end)
    content = file.getvalue()
    if draw.random() < 0.2:
        content = f"sep={mark}{end}{content}"
    return "table.tsv" if is_tsv else "table.csv", content


def _json(draw, rows):
    form = draw.choice(["lines", "array", "data"])
    dicts = [
        {"text": text, "label": label, "guid": f"t-{i}"} for i, (text, label) in enumerate(rows)
    ]
    if form == "lines":
        end = draw.choice(["\n", "\r\n", "\n\n"])
        return "table.jsonl", end.join(json.dumps(one, ensure_ascii=False) for one in dicts)
    whole = dicts if form == "array" else {"version": "1", "data": dicts}
    return "table.json", json.dumps(whole, ensure_ascii=False, indent=draw.choice([None, 2]))


def case(seed):
    """Return `(name, bytes, encoding, rows)` of a random file."""
    draw = random.Random(seed)
    encoding = draw.choice(list(_ENCODINGS))
    rows = _drawn_rows(draw, encoding)
    if draw.random() < 0.3:
        encoding = "utf-8"
        name, content = _json(draw, rows)
    else:
        name, content = _delimited(draw, rows, encoding)
    data = content.encode(encoding)
    packed = draw.choice([None, None, None, ("gz", gzip.compress), ("bz2", bz2.compress)])
    if packed:
        name, data = f"{name}.{packed[0]}", packed[1](data)
    given = None if encoding.startswith("utf") else _NAMES[encoding]
    return name, data, given, rows


def failure(seed):
    """Return a sentence about the file of a seed, or `None` if it is read as written."""
    name, data, encoding, rows = case(seed)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = os.path.join(folder, name)
        with open(path, "wb") as file:
            file.write(data)
        try:
            found = file_task(path, encoding=encoding).read("train")
        except Exception as error:
            return f"seed {seed!r}: {name} in {encoding}: {type(error).__name__}: {error}"
    wanted = [unicodedata.normalize("NFC", label) for _, label in rows]
    for what, one, other in (
        ("texts", list(found.x), [text for text, _ in rows]),
        ("labels", list(found.y), wanted),
    ):
        if one != other:
            pair = next((p for p in zip(one, other) if p[0] != p[1]), (len(one), len(other)))
            return f"seed {seed!r}: {name} in {encoding}: {what} {pair[0]!r}, written {pair[1]!r}"
    return None


def run(count, seed, say=print):
    """Read random files and return the failures."""
    failures = [found for i in range(count) if (found := failure(f"{seed} {i}"))]
    say(f"{count} files, {len(failures)} failures")
    for one in failures[:20]:
        say(f"    {one}")
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--files", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    sys.exit(bool(run(arguments.files, arguments.seed)))


if __name__ == "__main__":
    main()
