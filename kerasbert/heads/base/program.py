"""`answer.py`: a program that answers texts with an exported graph.

It only needs the graph's runtime, `tokenizers` and NumPy.
"""

import dataclasses
import os

from kerasbert.base.files import write_text
from kerasbert.heads.base.served import named_inputs

# The package, import and code of each runtime.
_RUNTIMES = {
    "onnx": (
        "onnxruntime",
        "import onnxruntime",
        """\
session = onnxruntime.InferenceSession(os.path.join(FOLDER, "model.onnx"))
names = [output.name for output in session.get_outputs()]


def run(features):
    return dict(zip(names, session.run(names, features)))
""",
    ),
    "openvino": (
        "openvino",
        "import openvino",
        """\
# Without this hint some processors compute in bfloat16.
hint = {"INFERENCE_PRECISION_HINT": "f32"}
model = openvino.Core().compile_model(os.path.join(FOLDER, "model.xml"), "CPU", hint)


def run(features):
    return {port.any_name: x for port, x in model(features).items()}
""",
    ),
    "litert": (
        "ai-edge-litert",
        "from ai_edge_litert.interpreter import Interpreter",
        """\
runner = Interpreter(os.path.join(FOLDER, "model.tflite")).get_signature_runner()


def run(features):
    return runner(**features)
""",
    ),
}
_TAKES = {
    "token_ids": "row.ids",
    "segment_ids": "row.type_ids",
    "padding_mask": "row.attention_mask",
}
_PROGRAM = '''\
"""Answers texts with the model in this folder: python answer.py {example}

Needs numpy, tokenizers and {package}. {note}
"""

import functools
import json
import os
import sys
{more}
import numpy as np
{imports}
from tokenizers import Tokenizer

FOLDER = os.path.dirname(os.path.abspath(__file__))
tokenizer = Tokenizer.from_file(os.path.join(FOLDER, "tokenizer.json"))
with open(os.path.join(FOLDER, "config.json"), encoding="utf-8") as file:
    labels = list(json.load(file).get("id2label", {{}}).values())
{runtime}

def plain(x):
    """Convert bytes, arrays and tuples to strings and lists."""
    x = x.tolist() if hasattr(x, "tolist") else x
    if isinstance(x, bytes):
        return x.decode()
    return [plain(one) for one in x] if isinstance(x, (list, tuple)) else x


def is_text(x):
    # A lone surrogate is not a character.
    return isinstance(x, str) and not any("\\ud800" <= c <= "\\udfff" for c in x)


def is_pair(x):
    return isinstance(x, list) and len(x) == 2 and all(map(is_text, x))


def is_choice(x):
    return isinstance(x, list) and len(x) == 2 and is_text(x[0]) and is_texts(x[1])


def is_texts(x):
    return isinstance(x, list) and len(x) > 0 and all(map(is_text, x))


def answers(what, *forms):
    """Decorator that checks the items of a function's list, and lets it take a single item, too.

    The list may be an array, a column or a generator. A tuple is a single item unless the first of
    `forms` is a text.
    """

    def read(given):
        if isinstance(given, (dict, set)):
            raise ValueError(f"answer takes {{what}}, got a {{type(given).__name__}}.")
        if hasattr(given, "columns"):
            given = given.to_numpy()
        one = plain(given)
        if isinstance(given, (str, bytes, tuple)) and any(form(one) for form in forms[:1]):
            return [one], True
        if isinstance(one, (str, bytes)) or not hasattr(one, "__iter__"):
            raise ValueError(f"answer takes a list of {{what}}, got {{one!r:.60}}.")
        rows = [plain(row) for row in one]
        if not rows:
            raise ValueError(f"The list is empty; pass one or more {{what}}.")
        for place, row in enumerate(rows):
            if not any(form(row) for form in forms):
                raise ValueError(f"The item at position {{place}} is {{row!r:.60}}; pass {{what}}.")
        return rows, False

    def decorate(function):
        @functools.wraps(function)
        def answer(given, *arguments, **settings):
            try:
                rows, single = read(given)
            except UnicodeDecodeError as error:
                raise ValueError(f"A text given as bytes is not UTF-8: {{error}}.") from None
            found = function(rows, *arguments, **settings)
            return found[0] if single else found

        return answer

    return decorate


def packed(rows):
    """Return encoded rows of equal length as the network's inputs."""
    return {{
{features}    }}


{body}

if __name__ == "__main__":
    print(*answer({asked}), sep="\\n")
'''
# The class of a tokenizer for `long="head_tail"`.
_HEAD_AND_TAIL = '''\
class HeadAndTail:
    """Keeps the first and the last tokens of long texts, where the tokenizer truncates them."""

    def __init__(self, tokenizer):
        self.truncating, self.whole = tokenizer, Tokenizer.from_str(tokenizer.to_str())
        self.whole.no_truncation()

    def encode_batch(self, texts):
        return list(map(
            self.shortened, self.truncating.encode_batch(texts), self.whole.encode_batch(texts)
        ))

    def shortened(self, row, whole):
        ids = list(row.ids)
        for text in (0, 1):
            places = [i for i, x in enumerate(row.sequence_ids) if x == text]
            own = [id for id, x in zip(whole.ids, whole.sequence_ids) if x == text]
            first = int(len(places) * {share} + 0.5)
            own = own[:first] + own[len(own) - len(places) + first :]
            for place, id in zip(places, own):
                ids[place] = id
        return types.SimpleNamespace(
            ids=ids, type_ids=row.type_ids, attention_mask=row.attention_mask
        )


tokenizer = HeadAndTail(tokenizer)


'''
_TEXTS = '''\
@answers({forms})
def answer(texts):
    """Return {gives} for each {item}; a single input returns a single result."""
    rows = tokenizer.encode_batch({texts})
    outputs = run(packed(rows))
{lines}'''


@dataclasses.dataclass
class Program:
    """The parts of `answer.py` that depend on the kind of model.

    Attributes:
        body: code of the function `answer` of a list, and its helpers.
        example: string. Example arguments for `python answer.py`.
        asked: code of the argument of `answer`.
        note: a note for the program's docstring.
    """

    body: str
    example: str = '"A text." "Another one."'
    asked: str = "sys.argv[1:]"
    note: str = "Texts with more tokens than the model takes are truncated."


def of_texts(gives, lines, pairs=False, prompt=""):
    """Make the program of a model that takes a text or a pair as one row.

    Args:
        gives: string. Description of the result of `answer`.
        lines: code that returns the result, from `outputs`, the encoded `rows`, `texts` and
            `labels`.
        pairs: whether the model takes only pairs.
        prompt: prefix of each text.
    """
    texts = f"[{prompt!r} + text for text in texts]" if prompt else "texts"
    item = "tuple of two texts" if pairs else "text, or tuple of two texts, in a list"
    forms = '"texts or tuples of two texts", is_text, is_pair'
    if pairs:
        forms = '"tuples of two texts", is_pair'
    if prompt:
        item, forms = "text in a list", '"texts", is_text'
    lines = "".join(f"    {line}\n" for line in lines.splitlines())
    body = _TEXTS.format(gives=gives, item=item, forms=forms, texts=texts, lines=lines)
    if pairs:
        return Program(body, '"A text." "The next."', "[tuple(sys.argv[1:])]")
    return Program(body)


def write_program(task, runtime, folder):
    """Write `answer.py` if the kind of model has a program, which cannot divide long texts.

    Args:
        task: a `Served`.
        runtime: "onnx", "openvino" or "litert".
        folder: string.
    """
    found = task.program()
    if found is None or task.long.has_windows:
        return
    more = ""
    if task.long.mode == "head_tail":
        more = "import types\n"
        found.body = _HEAD_AND_TAIL.format(share=float(task.long.head_share)) + found.body
        found.note = "Of a longer text than the model takes, the first and last tokens are kept."
    package, imports, run = _RUNTIMES[runtime]
    features = "".join(
        f'        "{name}": np.array([{_TAKES[name]} for row in rows], "int32"),\n'
        for name in named_inputs(task.model)
        if name in _TAKES
    )
    settings = {**dataclasses.asdict(found), "features": features, "more": more}
    text = _PROGRAM.format(package=package, imports=imports, runtime=run, **settings)
    write_text(os.path.join(folder, "answer.py"), text)
