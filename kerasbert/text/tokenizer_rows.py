"""The special tokens around texts, from the post-processor of a `tokenizer.json`."""

import reprlib

from kerasbert.base.errors import is_whole
from kerasbert.text.packing import Frame, layouts
from kerasbert.text.tokenizer_files import ALSO, GENERIC
from kerasbert.text.tokenizer_json import ANY, WAY_OUT, UnsupportedError, follow


def check_rows(files, tokenizer):
    """Check that files put the tokenizer's special tokens into rows, and return the tokenizer.

    Args:
        files: `TokenizerFiles`.
        tokenizer: the tokenizer made from them.

    Raises:
        ValueError: if the rows differ.
    """
    by_itself = files.config.get("tokenizer_class") not in (None, "", *GENERIC)
    if "post_processor" not in files.json or by_itself and not files.json["post_processor"]:
        return tokenizer  # transformers' class determines the special tokens.
    found = [[token for token, _ in row] for row in _rows(files, type(tokenizer))]
    wanted = [[token for token, _ in row] for row in layouts(tokenizer)]
    _check_ids(files, tokenizer, wanted[1])
    for name, row, expected in zip(("a text", "a pair"), found, wanted):
        if row != expected:
            texts = [" ".join(token or "..." for token in one) for one in (row, expected)]
            raise UnsupportedError(
                f"The tokenizer.json in '{files.directory}' frames {name} as {texts[0]!r}, but "
                f"{type(tokenizer).__name__} as {texts[1]!r}; {WAY_OUT}"
            )
    return tokenizer


def _check_ids(files, tokenizer, row):
    """Raise if the file's ids of special tokens differ from the tokenizer's."""
    for step in files.steps("post_processor"):
        named = step.get("special_tokens") or {}
        for token, part in named.items() if isinstance(named, dict) else ():
            ids = part.get("ids") if isinstance(part, dict) else None
            if token in row and ids != [tokenizer.token_to_id(token)]:
                raise ValueError(
                    f"The tokenizer.json in '{files.directory}' frames rows with ids={ids} for "
                    f"{token!r}, whose id is {tokenizer.token_to_id(token)}; download it again."
                )


def frame_tokens(files, cls):
    """Return the special tokens around the texts of a row.

    Args:
        files: `TokenizerFiles`.
        cls: type. The tokenizer's class, for errors.

    Returns:
        A dict of lists of tokens with the fields of `Frame`; `None` if the class determines them.

    Raises:
        UnsupportedError: if rows have no layout of a `Frame`.
    """
    if "post_processor" not in files.json:
        return None
    single, pair = _rows(files, cls)
    texts = [[i for i, (token, _) in enumerate(row) if token is None] for row in (single, pair)]
    is_frame = [len(places) for places in texts] == [1, 2]
    if is_frame:
        (place,), (first, second) = texts
        before, after = single[:place], single[place + 1 :]
        middle = pair[first + 1 : second]
        between = [one for one in middle if not one[1]]
        begin = middle[len(between) :]
        segments = [segment for _, segment in pair]
        zeros = first + 1 + len(between)
        is_frame = (
            [token for token, _ in (*before, *after)]
            == [token for token, _ in (*pair[:first], *pair[second + 1 :])]
            and not any(segment for _, segment in single)
            and segments in ([0] * len(pair), [0] * zeros + [1] * (len(pair) - zeros))
        )
    if not is_frame:
        rows = [" ".join(f"{t or '...'}:{segment}" for t, segment in row) for row in (single, pair)]
        raise UnsupportedError(
            f"The tokenizer.json in '{files.directory}' frames a text as {rows[0]!r} and a pair "
            f"as {rows[1]!r}, which {cls.__name__} does not support; {WAY_OUT}"
        )
    parts = zip(Frame._fields, (before, between, begin, after))
    return {name: [token for token, _ in part] for name, part in parts}


def end_tokens(files):
    """Return `cls_token`, `sep_token` and `begins_second` from the file's rows.

    Rows may have the `bos_token` and the `eos_token`, and not the files' `cls_token` and
    `sep_token`.
    """
    steps = files.steps("post_processor")
    template = next((step for step in steps if step.get("type") == "TemplateProcessing"), {})
    single, pair = (
        [_in_template(part)[0] for part in template.get(name) or []] for name in ("single", "pair")
    )
    flags = _adds_ends(files.config)
    if any(flags) or not single:
        found = {f"{ours}_token": files.special_token(f"{t}_token") for ours, t in ALSO.items()}
        begins = all(flags)
    else:
        found = {"cls_token": single[0], "sep_token": single[-1]}
        begins = single[0] is not None and pair.count(single[0]) == 2
    return {role: token for role, token in found.items() if token} | {"begins_second": begins}


def _rows(files, cls):
    """Return the layouts of a text and a pair: lists of `(token, segment)`, `None` for a text."""
    ends = {"cls": ANY, "sep": ANY, "trim_offsets": ANY, "add_prefix_space": ANY}
    known = {
        "TemplateProcessing": [{"single": ANY, "pair": ANY, "special_tokens": ANY}],
        "BertProcessing": [ends],
        "RobertaProcessing": [ends],
        "ByteLevel": [{"trim_offsets": ANY, "add_prefix_space": ANY, "use_regex": ANY}],
    }
    steps = follow(files, "post_processor", cls, known)
    steps = [step for step in steps if step["type"] != "ByteLevel"]
    name, flags = files.config.get("tokenizer_class"), _adds_ends(files.config)
    if any(flags) and (name in (None, "", *GENERIC) or not steps):
        bos, eos = (
            [files.special_token(f"{role}_token")] if flag else []
            for role, flag in zip(("bos", "eos"), flags)
        )
        single = [*bos, None, *eos]
        return [(token, 0) for token in single], [(x, i) for i in (0, 1) for x in single]
    if not steps:
        return [(None, 0)], [(None, 0), (None, 1)]
    step = steps[-1]
    if step["type"] == "TemplateProcessing":
        return tuple(
            [_in_template(part) for part in step.get(name) or []] for name in ("single", "pair")
        )
    first, last = (_end(files, step, name) for name in ("cls", "sep"))
    single = [first, None, last]
    if step["type"] == "BertProcessing":
        return [(x, 0) for x in single], [*((x, 0) for x in single), (None, 1), (last, 1)]
    return [(x, 0) for x in single], [(x, 0) for x in (*single, last, None, last)]


def _end(files, step, name):
    """Return the token that a step puts at one end of a row."""
    end = step.get(name)
    if not isinstance(end, list) or not end or not isinstance(end[0], str):
        raise ValueError(
            f"'{files.path('tokenizer.json')}' has {name}={reprlib.repr(end)} in its "
            f"{step['type']}, expected a token and its id; download it again."
        )
    return end[0]


def _adds_ends(config):
    """Return whether a configuration adds begin and end tokens to rows."""
    return [bool(config.get(f"add_{name}_token")) for name in ("bos", "eos")]


def _in_template(part):
    """Return `(token, segment)` of a part of a template, `None` for a text."""
    part = part if isinstance(part, dict) else {}
    found = part.get("SpecialToken", part.get("Sequence"))
    found = found if isinstance(found, dict) else {}
    token = found.get("id") if "SpecialToken" in part else None
    segment = found.get("type_id")
    return token if isinstance(token, str) else None, segment if is_whole(segment) else 0
