"""Find phrases that readers have to decode: `python .ci/english.py` lists each with its place.

CONTRIBUTING.md has the rules; these are the phrases that came back. A phrase in `EXCEPTIONS` is
right where it stands.
"""

import re
import subprocess
import sys

# Phrase, as a regular expression: what to write.
PHRASES = {
    r"ha(s|ve) to be\b": "must be",
    r"(?<!there )(is|are) no (number|string|text|list|file|word|tree|table|\w+Model)\b": "is not a",
    r"(is|are) not known\b": "is unknown",
    r"\bif so\.": "name the condition",
    r"\bif another one\b": "name the condition",
    r"\bby default none\b": "the signature states the default",
    r"\bhidden (word|token)s?\b": "masked",
    r"\bhidden anew\b": "masked again",
    r"\bheld out by\b": "held-out set",
    r"\bdev to choose by\b": "validation set",
    r"\bvectors of (texts|sentences)\b": "text embeddings, sentence embeddings",
    r"\btexts? that (is|are) near\b": "nearest neighbors",
    r"\b(made|taken|drawn|read|written|computed|begun|hidden|given) anew\b": "again, recreated",
    r"\bcut (into|in) pieces\b": "tokenized",
    r"\bfilled up\b": "padded",
    r"\bgoes? on with what\b": "resumes",
    r"\bso many (rows|texts|tokens|steps)\b": "the number of, at most N",
    r"\b(texts|tokens|rows|steps|examples|words) a second\b": "per second",
    r"\bms of one\b": "latency",
    r"\bway back\b": "backward pass",
    r"\bhow far apart\b": "relative position, distance",
    r"\bcan be trusted\b": "calibration",
    r"\bwhole or not at all\b": "atomically",
    r"\bof before\b": "stale, previous",
    r"\bwrites a text from another\b": "encoder-decoder",
    r"\bwhich token comes next\b": "next-token prediction",
    r"\bwithout a word\b": "silently",
    r"\bnearest that there is\b": "closest known",
    r"\bsays? of itself\b": "reports",
    r"\bnobody (knows|had|has)\b": "unknown",
    r"\bwhat is found\b": "results",
    r"\bwhat is made of\b": "pooling, result",
    r"\bwhat it is not\b": "name the type",
    r"\bno more than so\b": "at most",
    r"\bsecond texts?, if\b": "text pairs",
    r"\bby themselves the\b": "alone",
    r"\bis it so\b|\bit is so\b": "name the state",
    r"\bto be found by\b": "search",
    r"\bcomes? near\b": "is close",
}
# File and phrase.
EXCEPTIONS = {
    ("kerasbert/text/added_tokens.py", "without a word"),  # ... character next to it.
}
PATHS = ["kerasbert", "docs", "examples", "README.md", "CONTRIBUTING.md", ".ci", ".github"]


def main():
    """Print each phrase with its place; return the number of phrases."""
    listed = subprocess.run(["git", "ls-files", *PATHS], capture_output=True, text=True, check=True)
    names = [
        name
        for name in listed.stdout.split()
        if name.endswith((".py", ".md", ".js", ".mjs"))
        and not name.startswith(("docs/ko/", "docs/ja/"))
    ]
    found = 0
    for name in names:
        if name == ".ci/english.py":
            continue
        with open(name, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                for phrase, better in PHRASES.items():
                    match = re.search(phrase, line, re.IGNORECASE)
                    if match and (name, match[0].lower()) not in EXCEPTIONS:
                        found += 1
                        print(f"{name}:{number}: '{match[0]}': {better}")
    return found


if __name__ == "__main__":
    sys.exit(main() > 0)
