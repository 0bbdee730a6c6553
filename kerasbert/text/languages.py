"""Languages of texts, and their numbers, which are segment ids in XLM."""

from kerasbert.base.errors import check_choice, check_value
from kerasbert.text import ops


def check_languages(languages, language):
    """Raise unless `languages` are distinct names, and `language` is one or two of them.

    Args:
        languages: list of strings, or `None`.
        language: string, pair of strings, or `None`.
    """
    languages = list(languages) if isinstance(languages, tuple) else languages
    check_value("languages", languages, "names?")
    names = language_names(language)
    check_value("language", names, "names")
    if languages is not None and len(set(languages)) < max(len(languages), 1):
        raise ValueError(f"languages={languages} must be at least one name, without repetitions.")
    if len(names) > 2:
        raise ValueError(f"language={language!r} must be a name, or two, for both texts of a pair.")
    if len(names) == 2 and languages is None:
        raise ValueError(
            f"language={language!r} names the languages of both texts of a pair, which needs "
            "languages=[...], the names of all languages in the order of their ids."
        )
    for name in names if languages is not None else ():
        check_choice("language", name, languages)


def language_names(language):
    """Return the up to two names in a tokenizer's `language`."""
    return [] if language is None else [language] if isinstance(language, str) else list(language)


def languages_of(numbers, path):
    """Return the names of languages in the order of their ids, given transformers' `lang2id`.

    >>> languages_of({"fr": 1, "en": 0}, "config.json")
    ['en', 'fr']
    """
    if sorted(map(str, numbers.values())) != sorted(map(str, range(len(numbers)))):
        raise ValueError(
            f"'{path}' has lang2id={numbers}, whose values must be the ids from 0 to "
            f"{len(numbers) - 1}; download it again."
        )
    return sorted(numbers, key=lambda name: int(numbers[name]))


def row_segments(tokenizer, num_segments):
    """Return the segment ids of the first and the second text of a row.

    With `languages`, segments are languages, by default the first.
    """
    if num_segments < 2:
        return 0, 0
    if tokenizer.languages is None:
        return 0, 1
    numbers = [tokenizer.languages.index(name) for name in language_names(tokenizer.language)]
    numbers = numbers or [0]
    return numbers[0], numbers[-1]


def check_parallel(names):
    """Raise unless `names` are the columns of parallel text, at least two."""
    if not isinstance(names, (list, tuple)) or len(names) < 2:
        raise ValueError(
            f"objective='translation' needs the columns of at least two languages, got {names!r}; "
            "pass a list of their names, such as languages=['ko', 'en'] in pretrain, or "
            "text_key=['ko', 'en'] in write_examples."
        )
    check_languages(list(names), None)


def language_numbers(tokenizer, names):
    """Return the ids of the languages of parallel text.

    Args:
        tokenizer: a tokenizer, whose `languages` may be `None`.
        names: list of strings. The columns with the languages.

    >>> from kerasbert.tokenizers import BertTokenizer
    >>> words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    >>> language_numbers(BertTokenizer(words, languages=["en", "ja", "ko"]), ["ko", "en"])
    [2, 0]
    """
    check_parallel(names)
    known = list(names) if tokenizer.languages is None else tokenizer.languages
    for name in names:
        check_choice("a language", name, known)
    return [known.index(name) for name in names]


def segment_ids(packed, first, second):
    """Return the segment ids (B, T) of packed rows, given those of the first and second text."""
    if packed["is_second"] is None or first == second:
        segments = ops.zeros_like(packed["token_ids"])
        return segments + first if first else segments
    segments = ops.cast(packed["is_second"], "int32")
    return segments if (first, second) == (0, 1) else first + (second - first) * segments
