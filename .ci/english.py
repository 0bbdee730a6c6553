"""Find phrases that are hard to understand: `python .ci/english.py` lists each with its place.

`PHRASES` has phrases that were replaced before and were then used again. A phrase in `EXCEPTIONS`
is correct in that file.
"""

import re
import subprocess
import sys

# Phrase, as a regular expression for lowercase text: what to write.
PHRASES = {
    r"ha(s|ve) to be\b": "must be",
    r"(?<!there )\b(is|are) no (number|string|text|list|file|word|tree|table|\w+model)\b": (
        "is not a"
    ),
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
    r"\banew\b": "again, recreated",
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
    r"\bas it comes\b": "unchanged, in order",
    r"\btold right\b": "predicted correctly, accuracy",
    r"\bfor ever\b": "hangs, without end",
    r"\bcommonest\b": "most common, most frequent",
    r"\b(seconds|ms|bytes|tokens|pieces|texts) an? (text|row|token|step|batch|second)\b": "per",
    r"\bone (token|piece|vector|id) an? \w+": "one per",
    # British spelling.
    r"\b(learnt|spelt|towards|grey|centred|modelling)\b": "American spelling",
    r"neighbour|labelled|labelling|licence|artefact|catalogue|colour|behaviour|favour": (
        "American spelling"
    ),
    r"\b(normal|serial|initial|optim|recogn|general|summar|token|vector)is(e|ed|es|ing|ation)\b": (
        "American spelling"
    ),
}
# File and phrase.
EXCEPTIONS = {
    ("kerasbert/text/added_tokens.py", "without a word"),  # ... character next to it.
    ("CHANGELOG.md", "without a word"),
    ("kerasbert/training/advice_files.py", "labelled"),  # A field of stored results.
    ("kerasbert/training/report.py", "labelled"),
    ("tests/test_upload.py", "licence"),  # A misspelled field.
    ("tests/data/test_corpus.py", "grey"),  # A quoted text.
    ("benchmarks/one_text.py", "nobody knows"),  # An answer to choose.
    ("docs/lessons/04_embeddings.ipynb", "colour"),  # A word of the messages.
    ("kerasbert/play/page/play.js", "labelled"),  # An attribute of ARIA.
    # A deprecated argument.
    ("CHANGELOG.md", "anew"),
    ("kerasbert/text/preprocessor.py", "anew"),
    ("tests/heads/masked_lm/test_preprocessor.py", "anew"),
}
PATHS = ["*.py", "*.md", "*.js", "*.mjs", "*.ipynb", "presets/*.json"]


def main():
    """Print each phrase with its place; return the number of phrases."""
    listed = subprocess.run(["git", "ls-files", *PATHS], capture_output=True, text=True, check=True)
    names = [
        name
        for name in listed.stdout.split()
        if name != ".ci/english.py"
        and not name.startswith(("docs/ko/", "docs/ja/"))
        and not name.endswith((".ko.md", ".ja.md", "tokenizer.json"))
    ]
    found = 0
    for name in names:
        with open(name, encoding="utf-8") as file:
            text = re.sub(r'"image/png": "[^"]*"', "", file.read()).lower()
        for phrase, better in PHRASES.items():
            for match in re.finditer(phrase, text):
                if (name, match[0]) not in EXCEPTIONS:
                    found += 1
                    number = text.count("\n", 0, match.start()) + 1
                    print(f"{name}:{number}: '{match[0]}': {better}")
    return found


if __name__ == "__main__":
    sys.exit(main() > 0)
