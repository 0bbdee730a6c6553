"""`answer.py`: the few lines of a program that asks an exported graph in raw text.

It stands in the folder of the graph, and needs its runtime, `tokenizers` and NumPy alone.
"""

import os

from kerasbert.export.served import named_inputs
from kerasbert.files import write_text

# What each runtime is called in packages, and how it is asked.
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
"""Answers texts by the model in this folder: python answer.py "A text." "Another one."

It needs numpy, tokenizers and {package}. Texts of more tokens than the model takes are cut.
"""

import json
import os
import sys

import numpy as np
{imports}
from tokenizers import Tokenizer

FOLDER = os.path.dirname(os.path.abspath(__file__))
tokenizer = Tokenizer.from_file(os.path.join(FOLDER, "tokenizer.json"))
with open(os.path.join(FOLDER, "config.json"), encoding="utf-8") as file:
    labels = list(json.load(file).get("id2label", {{}}).values())
{runtime}

def answer(texts):
    """{gives}, for each text of a list, or each tuple of two texts."""
    rows = tokenizer.encode_batch(texts)
    features = {{
{features}    }}
    outputs = run(features)
{decode}

if __name__ == "__main__":
    print(*answer(sys.argv[1:]), sep="\\n")
'''


def write_program(task, runtime, folder):
    """Write `answer.py` where the model answers a text by itself, not by windows of it.

    Args:
        task: a `Served`.
        runtime: string. "onnx", "openvino" or "litert".
        folder: string.
    """
    found = task.program()
    if found is None:
        return
    gives, decode = found
    package, imports, run = _RUNTIMES[runtime]
    features = "".join(
        f'        "{name}": np.array([{_TAKES[name]} for row in rows], "int32"),\n'
        for name in named_inputs(task.model)
    )
    text = _PROGRAM.format(
        package=package,
        imports=imports,
        runtime=run,
        gives=gives,
        features=features,
        decode="".join(f"    {line}\n" for line in decode.splitlines()),
    )
    write_text(os.path.join(folder, "answer.py"), text)
