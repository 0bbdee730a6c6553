"""Training of WordPiece and unigram vocabularies.

Words are counted in one pass with bounded memory, and normalized as in `BertTokenizer` or
`AlbertTokenizer`. The packages `tokenizers` (WordPiece) and `sentencepiece` (unigram) train the
pieces.
"""

from __future__ import annotations

import collections
import functools
import io
import re
import unicodedata
import warnings
from typing import TYPE_CHECKING

from kerasbert.base.errors import check_choice, check_value, check_whole, first_line
from kerasbert.base.files import fills_output, new_files, output_folder, write_files
from kerasbert.base.paths import is_url
from kerasbert.base.storage import check_writable, exists, join, new_file
from kerasbert.base.strict_json import to_json
from kerasbert.data.beam import count_words
from kerasbert.data.corpus import blocks
from kerasbert.data.processes import map_blocks
from kerasbert.text.bert_characters import CJK, DELETED, PUNCTUATION, SPACE
from kerasbert.text.sentence_piece_models import WORD_BEGIN
from kerasbert.text.vocabulary_files import as_lines
from kerasbert.text.wordpiece import MAX_WORD_CHARACTERS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from kerasbert.base.aliases import AnyPath, Corpus

SPECIAL_TOKENS = ("[UNK]", "[CLS]", "[SEP]", "[MASK]")
UNUSED = 99  # entries between [PAD] and [UNK] in BERT's vocabularies; the id of [UNK] is 100
# Maximum number of distinct words in memory, about 200 MB; the rarest others are dropped.
MOST_KINDS = 1_000_000
# Distinct words for the trainer, by frequency; more than 1 KB each.
MOST_KINDS_MERGED = 300_000
MOST_WORDS_MERGED = 50_000_000  # maximum number of words for the trainer, counting repetitions
BLOCK = 1 << 22
FILES = {"wordpiece": "vocab.txt", "unigram": "spiece.model"}
# Defaults of WordPiece's own settings.
_WORDPIECE = (True, UNUSED, None, 2)
NO_WORDS = "The corpus has no words, only spaces and control characters; pass text."


@fills_output
def vocab(
    corpus: Corpus,
    output: AnyPath,
    *,
    size: int = 30522,
    kind: str = "wordpiece",
    lowercase: bool = True,
    strip_accents: bool | None = None,
    split_on_cjk: bool = True,
    unused: int = UNUSED,
    max_characters: int | None = None,
    min_frequency: int = 2,
    text_key: str | Sequence[str] | None = None,
    encoding: str = "utf-8",
    errors: str = "strict",
    overwrite: bool = False,
    workers: int | None = None,
    options: Any = None,
    progress: Callable[..., Any] | None = None,
) -> dict[str, Any]:
    """Train a vocabulary on a corpus: WordPiece for `BertTokenizer`, unigram for `AlbertTokenizer`.

    WordPiece vocabularies have BERT's order: `[PAD]`, 99 unused entries, `[UNK]`, `[CLS]`, `[SEP]`
    and `[MASK]` (ids 100 to 103), other unused entries, characters (word-initial, then
    word-internal), and pieces by frequency. Unigram models are SentencePiece's: `<pad>`, `<unk>`,
    `[CLS]`, `[SEP]` and `[MASK]` (ids 0 to 4), then pieces by likelihood. The same text and
    settings give the same file.

    Args:
        corpus: path of a file, folder or pattern, or a list; see `kerasbert.data.documents`.
        output: folder or URL, such as "s3://bucket/vocab", for `vocab.txt` (or `spiece.model`) and
            `tokenizer_config.json`, which the tokenizer's `from_files` reads.
        size: number of tokens, special and unused ones included; a small corpus may give fewer.
        kind: "wordpiece" or "unigram"; `split_on_cjk`, `unused`, `max_characters` and
            `min_frequency` apply to "wordpiece" only.
        lowercase: bool. `True` for an "uncased" vocabulary.
        strip_accents: whether to remove accents; `None` means the value of `lowercase`. Use `False`
            for Korean and Japanese: `True` decomposes Hangul and removes marks of kana.
        split_on_cjk: whether each Chinese character is a word.
        unused: number of entries `[unused0]`, `[unused1]`, ..., for later words.
        max_characters: number of distinct characters to keep, by frequency; words with others
            become `[UNK]`. `None` means half of the vocabulary, plus entries that pieces leave
            free.
        min_frequency: minimum count of a character and of a pair of pieces.
        text_key, encoding, errors: see `kerasbert.data.documents`.
        overwrite: whether to replace an existing vocabulary.
        workers: worker processes for counting; `None` means one per core, or none below 64 MB.
            Scripts must call this below `if __name__ == "__main__":`.
        options: `apache_beam.options.pipeline_options.PipelineOptions` of the runner that counts
            words, with `corpus` as Beam names files, and access of all workers to `output`. `None`
            counts locally.
        progress: function of the step (string) and its progress (0 to 1).

    Returns:
        A dict: `file`, `size` (tokens), `characters` (distinct ones kept), `words` (in the
        corpus), `kinds` (distinct words), and `unknown` (share of words with a dropped character).

    Raises:
        ImportError: for `options` without Beam installed.
        ValueError: for unreadable text, no text, or too small a `size`.

    Source: Kudo 2018, arXiv 1804.10959, for unigram models.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "text.txt")
    ...     _ = path.write_text("low lower lowest\\n" * 9)
    ...     done = vocab(path, folder, size=38, min_frequency=9, unused=12)
    ...     print(pathlib.Path(folder, "vocab.txt").read_text().split()[17:])
    ['e', 'l', 'o', 'r', ...]
    """
    check_choice("kind", kind, FILES)
    check_whole("size", size)
    check_whole("unused", unused, 0)
    check_whole("min_frequency", min_frequency)
    check_value("max_characters", max_characters, "count?")
    check_value("workers", workers, "count?")
    is_unigram = kind == "unigram"
    room = size - len(SPECIAL_TOKENS) - 1 - unused
    if is_unigram and (split_on_cjk, unused, max_characters, min_frequency) != _WORDPIECE:
        raise ValueError(
            "split_on_cjk, unused, max_characters and min_frequency apply only to "
            "kind='wordpiece'; leave them out."
        )
    if not is_unigram and room < 2:
        raise ValueError(
            f"size={size} leaves no room for words after {len(SPECIAL_TOKENS) + 1} special and "
            f"{unused} unused tokens; increase it, or pass unused=0."
        )
    output = output_folder(output, "output", urls=True)
    _check_output(output, kind, overwrite)
    check_writable(output)
    if strip_accents is None:
        strip_accents = lowercase
    report = progress or (lambda *_: None)
    reading = {"text_key": text_key, "encoding": encoding, "errors": errors}
    count = _counter(split_on_cjk and not is_unigram)
    if options is None:
        counts = _count(corpus, count, report, reading, workers)
    else:
        report("counting words", 0)
        counts = count_words(corpus, output, count, MOST_KINDS, options, reading)
    if strip_accents:
        _warn_of_accents(counts)
    else:
        _warn_of_parts(counts)
    if is_unigram:
        done = _unigram(counts, output, size, lowercase, strip_accents, report)
        if done["size"] < size:
            _warn_of_size(done["size"], size)
        return done
    split = functools.partial(
        split_words, lowercase=lowercase, strip_accents=strip_accents, split_on_cjk=split_on_cjk
    )
    report("cleaning words", 0)
    words = collections.Counter()
    for raw, count in counts.items():
        for word in split(raw):
            words[word] += count
    total, kinds = words.total(), len(words)
    if not words:
        raise ValueError(NO_WORDS)
    limits = (min_frequency, max_characters, split_on_cjk)
    first, inside = _characters(words, room // 2, *limits)
    report("merging pieces", 0)
    pieces = _pieces(_written_in(first, words), first, inside, room, min_frequency)
    # If pieces leave entries free, as in Chinese, characters fill them.
    first, inside = _characters(words, room - len(pieces), *limits)
    before = min(unused, UNUSED)
    tokens = ["[PAD]", *(f"[unused{i}]" for i in range(before)), *SPECIAL_TOKENS]
    tokens += [f"[unused{i}]" for i in range(before, unused)]
    tokens += first + inside + pieces
    if len(tokens) < size - 1:  # One entry may stay free, because some characters need two.
        _warn_of_size(len(tokens), size)
    config = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": lowercase,
        "strip_accents": strip_accents,
        "tokenize_chinese_chars": split_on_cjk,
    }
    _write(output, {"vocab.txt": as_lines(tokens)}, config)
    return {
        "file": join(output, "vocab.txt"),
        "size": len(tokens),
        "characters": len(first),
        "words": total,
        "kinds": kinds,
        "unknown": 1 - sum(_written_in(first, words).values()) / total,
    }


def split_words(text, lowercase=True, strip_accents=None, split_on_cjk=True):
    """Split text into words as `BertTokenizer` does, without TensorFlow.

    >>> split_words("Ça va, 中国?")
    ['ca', 'va', ',', '中', '国', '?']
    """
    text = _pattern(DELETED).sub("", text)
    if lowercase:
        text = text.lower()
    if lowercase if strip_accents is None else strip_accents:
        text = unicodedata.normalize("NFD", text)
        if not text.isascii():
            text = "".join(c for c in text if unicodedata.category(c) != "Mn")
    alone = PUNCTUATION + (CJK if split_on_cjk else "")
    return _pattern(f"[{alone}]|[^{SPACE}{alone}]+").findall(text)


@functools.cache
def _pattern(pattern):
    """Compile one of the tokenizer's regular expressions, which have RE2 syntax."""
    import regex

    return regex.compile(re.sub(r"\\x\{(\w+)\}", lambda x: rf"\U{int(x[1], 16):08x}", pattern))


# Counting


def _counter(split_on_cjk):
    """Return a picklable function that counts words, split at spaces and, with `split_on_cjk`,
    Chinese characters.
    """
    alone = CJK if split_on_cjk else ""
    # Listed, because `re`, which is faster than `regex`, has no Unicode categories.
    spaces = [chr(i) for i in range(0x3001) if _pattern(f"[{SPACE}]").match(chr(i))]
    spaces = "".join(x for x in spaces if not _pattern(DELETED).match(x))
    alone = _pattern(f"[{alone}]").pattern[1:-1] if alone else ""
    pattern = f"[{alone}]|[^{spaces}{alone}]+" if alone else f"[^{spaces}]+"
    return functools.partial(_counted, re.compile(pattern))


def _counted(pattern, lines):
    counts = collections.Counter()
    for line in lines:
        # Printable ASCII has no white space but " ", so the fast `split` is correct.
        plain = line.isascii() and line.isprintable()
        counts.update(line.split() if plain else pattern.findall(line))
    return counts


def _count(corpus, count, report, reading, workers):
    """Count the words of a corpus before normalization, with any number of processes."""
    found = blocks(corpus, block_bytes=BLOCK, sentences="lines", **reading)
    tasks = ((block.progress, (block,)) for _, block in found)
    counts = collections.Counter()
    results = map_blocks(
        functools.partial(_count_block, count), tasks, workers, lambda share: 1 / max(share, 1e-9)
    )
    for progress, counted in results:
        counts.update(counted)
        least = 1
        while len(counts) > MOST_KINDS:
            counts = collections.Counter({w: n for w, n in counts.items() if n > least})
            least += 1
        report("counting words", progress)
    return counts


def _count_block(count, block):
    return count(line for lines in block for line in lines)


def _warn_of_accents(counts):
    marked = re.compile("[\u3041-\u30ff\uac00-\ud7a3]").search
    found = sum(count for word, count in counts.items() if marked(word))
    if found > 0.01 * counts.total():
        warnings.warn(
            "Removing accents decomposes Hangul and strips the marks of kana; for Korean and "
            "Japanese pass strip_accents=False (--keep-accents).",
            stacklevel=4,
        )


def _warn_of_parts(counts):
    others = {w: n for w, n in counts.items() if not unicodedata.is_normalized("NFC", w)}
    found, total = sum(others.values()), counts.total()
    if found > 0.01 * total:
        example = max(others, key=others.get)
        warnings.warn(
            f"{found:,} of {total:,} words are not in Unicode's composed form NFC, such as "
            f"{example!r}: the vocabulary gets the parts of their characters, and words in NFC "
            "will be unknown to it. Normalize the corpus first, by "
            "unicodedata.normalize('NFC', text) or `uconv -x nfc`.",
            stacklevel=4,
        )


def _characters(words, room, min_frequency, most, split_on_cjk):
    """Return the entries of the most frequent characters, word-initial and word-internal."""
    counts = collections.Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
    alone = _pattern(f"[{PUNCTUATION}{CJK if split_on_cjk else ''}]").fullmatch
    first, inside = [], []
    for character, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        entries = 1 if alone(character) else 2
        if len(first) + len(inside) + entries > room or count < min_frequency or len(first) == most:
            break
        first.append(character)
        inside += [] if alone(character) else [f"##{character}"]
    return sorted(first), sorted(inside)


def _written_in(characters, words):
    """Return the words that consist of the given characters."""
    known = set(characters)
    return {
        word: count
        for word, count in words.items()
        if len(word) <= MAX_WORD_CHARACTERS and known.issuperset(word)
    }


# Merging


def _pieces(words, first, inside, room, min_frequency):
    """Return the pieces of several characters, the most frequent first."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.WordPiece())
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    # The trainer breaks ties by character numbers, which are random for word-internal ones unless
    # they are special tokens.
    trainer = trainers.WordPieceTrainer(
        vocab_size=room,
        min_frequency=min_frequency,
        special_tokens=first + inside,
        limit_alphabet=len(first),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_repeated(words), trainer)
    known = {*first, *inside}
    pieces = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    return [piece for piece, _ in pieces if piece not in known]


def _repeated(words):
    """Yield texts that repeat words by their scaled counts, as the trainer takes no counts."""
    frequent = sorted(words, key=lambda word: (-words[word], word))[:MOST_KINDS_MERGED]
    step = max(1, sum(map(words.get, frequent)) / MOST_WORDS_MERGED)
    seen = 0
    for word in frequent:
        # Carry the remainder over to the next word.
        times = int((seen + words[word]) / step) - int(seen / step)
        seen += words[word]
        for start in range(0, times, 1000):
            yield " ".join([word] * min(1000, times - start))


# Unigram models


def _unigram(counts, output, size, lowercase, strip_accents, report):
    """Train a unigram model on raw words and their counts; see `vocab`."""
    import sentencepiece

    report("cleaning words", 0)
    words = collections.Counter()
    for raw, count in counts.items():
        # Normalize as `AlbertTokenizer` does.
        word = unicodedata.normalize("NFKD", raw) if strip_accents else raw
        if strip_accents and not word.isascii():
            word = "".join(c for c in word if not unicodedata.category(c).startswith("M"))
        for part in (word.lower() if lowercase else word).split():
            words[part] += count
    if not words:
        raise ValueError(NO_WORDS)
    report("choosing pieces", 0)
    frequent = sorted(words, key=lambda word: (-words[word], word))[:MOST_KINDS_MERGED]
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(f"{word}\t{words[word]}" for word in frequent),
            input_format="tsv",
            model_writer=model,
            model_type="unigram",
            vocab_size=size,
            hard_vocab_limit=False,
            # Special tokens are in the order of ALBERT's vocabulary.
            pad_id=0,
            pad_piece="<pad>",
            unk_id=1,
            bos_id=2,
            bos_piece="[CLS]",
            eos_id=3,
            eos_piece="[SEP]",
            control_symbols=["[MASK]"],
            minloglevel=2,
        )
    except RuntimeError as error:
        raise ValueError(
            f"SentencePiece cannot train a model of size={size}: {first_line(error)}. Try another "
            "size, or more text."
        ) from None
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    config = {
        "tokenizer_class": "AlbertTokenizer",
        "do_lower_case": lowercase,
        "keep_accents": not strip_accents,
    }
    _write(output, {"spiece.model": model.getvalue()}, config)
    pieces = {processor.id_to_piece(id) for id in range(5, processor.vocab_size())}
    known = [word for word in words if processor.unk_id() not in processor.encode(word)]
    return {
        "file": join(output, "spiece.model"),
        "size": processor.vocab_size(),
        "characters": sum(len(piece) == 1 for piece in pieces - {WORD_BEGIN}),
        "words": words.total(),
        "kinds": len(words),
        "unknown": 1 - sum(map(words.get, known)) / words.total(),
    }


# Writing


def _warn_of_size(found, size):
    warnings.warn(
        f"The corpus has words for only {found} tokens, fewer than size={size}.", stacklevel=4
    )


def _check_output(output, kind, overwrite):
    for other, name in FILES.items():
        path = join(output, name)
        if not exists(path):
            continue
        if other != kind:
            raise ValueError(f"'{path}' is a vocabulary of another kind; choose another folder.")
        if not overwrite:
            raise ValueError(f"'{path}' exists; choose another folder, or pass overwrite=True.")


def _write(output, files, config):
    """Write all files atomically; at a URL one by one, the vocabulary last."""
    settings = (to_json(config, indent=2) + "\n").encode()
    files = {"tokenizer_config.json": settings, **files}
    if not is_url(output):
        with new_files(output) as folder:
            write_files(folder, files)
        return
    for name, data in files.items():
        with new_file(join(output, name)) as file:
            file.write(data)
