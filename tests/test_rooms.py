"""What import-linter cannot see: imports by a name in a string, and walks through the house."""

import ast
import importlib
import pathlib
import re
import sys

import pytest

import kerasbert
from kerasbert.models import (
    BertBackbone,
    BertTextClassifier,
    BertTextClassifierPreprocessor,
    BertTokenizer,
)

PACKAGE = pathlib.Path(kerasbert.__file__).parent
HERE = pathlib.Path(__file__).parent
CONTRIBUTING = PACKAGE.parent / "CONTRIBUTING.md"
# Not on the way of a text: checks, settings, the optimizer's step, and what makes a model once.
BESIDE = re.compile(
    r"_\w+\.py|families\.py|kinds\.py|parts\.py|from_preset\.py|private_names\.py|optimizers\.py"
    r"|metrics/.*|models/(building|compiling|feature_model|functional|keras_export)\.py"
)
# Public names that are found when they are used, kinds, the backend, and other packages.
MAY_IMPORT_BY_NAME = {
    "__init__.py",
    "_lazy.py",
    "_process.py",
    "backend/__init__.py",
    "backend/tensorflow.py",
    "data/corpus.py",
    "kinds.py",
}


# Sources whose tests stand in a file of another name.
TESTED_IN = {
    "tokenizers/test_subword.py": "tokenizers/alignment",
    "backend/test_kernels.py": "backend/jax backend/onnx backend/tensorflow backend/torch",
    "cli/test_commands.py": "__main__ cli/app cli/checkpoints",
    "cli/test_pretraining_commands.py": "cli/pretraining",
    "cli/test_task_commands.py": "cli/tasks",
    "conversion/test_damaged.py": "conversion/checkpoint",
    "conversion/test_huggingface.py": "conversion/huggingface_tables families",
    "data/test_corpus.py": "data/encodings",
    "data/test_examples.py": "data/block_examples data/example_batches data/manifest",
    "export/test_decoding.py": "data/characters preprocessors/elmo preprocessors/pieces",
    "models/test_replaced_token_detector.py": "preprocessors/replaced_token_detector",
    "models/test_electra_pretrainer.py": "layers/replacement preprocessors/electra_pretrainer",
    "models/test_causal_lm.py": "preprocessors/causal_lm samplers",
    "export/test_serving.py": (
        "export/by_length export/serving_ops export/text_classifier export/write_saved_model"
    ),
    "export/test_tasks.py": (
        "export/causal_lm export/encoder export/masked_lm export/multi_task export/multiple_choice"
        " export/next_sentence_predictor export/pretrainer export/question_answering"
        " export/replaced_token_detector export/reranker export/sparse_embedder"
        " export/structural_probe export/text_embedder export/text_regressor"
        " export/token_classifier"
    ),
    "export/test_token_graphs.py": "export/litert export/onnx export/write_graph",
    "export/test_program.py": "runtimes",
    "layers/test_layers.py": "layers/norm",
    "play/test_answers.py": "play/examples",
    "play/test_server.py": "cli/play play/share",
    "search/test_embed_corpus.py": "cli/search",
    "search/test_evaluation.py": "search/mteb",
    "lineage/test_elmo.py": "conversion/bilm layers/elmo",
    "lineage/test_elmo_pretrainer.py": "export/elmo_embedder",
    "lineage/test_transformer_xl.py": "layers/adaptive lineage/memory",
    "lineage/test_xlnet_tasks.py": "preprocessors/xlnet",
    "lineage/test_xlnet.py": "conversion/lineage layers/relative_attention",
    "lineage/test_seq2seq.py": "layers/decoder_block models/writing_task preprocessors/seq2seq",
    "tokenizers/test_marian.py": "export/seq2seq_lm",
    "loading/test_presets.py": "from_preset loading/checkpoints loading/names presets",
    "measuring/test_bench.py": "measuring/contestant",
    "models/test_backbone.py": "models/feature_model models/preset_backbone",
    "models/test_building.py": "kinds",
    "models/test_fork.py": "_process",
    "models/test_functional.py": "backend/jax_loops",
    "models/test_multi_task.py": "models/sampling",
    "models/test_multiple_choice.py": "preprocessors/multiple_choice",
    "models/test_next_sentence_predictor.py": "preprocessors/next_sentence_predictor",
    "models/test_pretrainer.py": "preprocessors/pretrainer",
    "models/test_reading.py": "models/class_weights",
    "models/test_reranker.py": "preprocessors/reranker",
    "models/test_shared_parts.py": "parts",
    "models/test_structural_probe.py": "layers/probe preprocessors/structural_probe",
    "models/test_text_classifier.py": "models/headed_task",
    "models/test_text_embedder.py": "models/comparing_task preprocessors/text_embedder",
    "models/test_sparse_embedder.py": "preprocessors/sparse_embedder",
    "models/test_text_regressor.py": "preprocessors/text_regressor",
    "tasks/test_readers.py": (
        "tasks/multiple_choice tasks/own tasks/question_answering tasks/reranker tasks/tables"
        " tasks/text_classifier tasks/text_regressor tasks/token_classifier"
    ),
    "tasks/test_tasks.py": (
        "tasks/conll tasks/examples tasks/glue tasks/japanese tasks/korean tasks/squad tasks/swag"
        " tasks/task"
    ),
    "test_converter.py": (
        "conversion/to_google conversion/to_huggingface conversion/to_keras_hub conversion/writing"
    ),
    "test_import.py": "_lazy",
    "tokenizers/test_files.py": "tokenizers/choose",
    "training/test_advise.py": "cli/advising training/arms",
    "training/test_finetune.py": "training/search",
    "training/test_pretrain.py": "training/pretraining_data",
}


def test_each_file_has_its_tests():
    """In a file of its name in the same room, or where the table says."""
    missing = set()
    for path in PACKAGE.rglob("*.py"):
        source = path.relative_to(PACKAGE)
        same = HERE / source.with_name(f"test_{source.name.removeprefix('_')}")
        if source.name != "__init__.py" and not same.exists():
            missing.add(source.with_suffix("").as_posix())
    listed = [source for sources in TESTED_IN.values() for source in sources.split()]
    assert sorted(missing) == sorted(listed)
    assert [file for file in TESTED_IN if not (HERE / file).exists()] == []


def calls(tree):
    return {
        node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    }


def test_few_files_import_by_name():
    found = set()
    for path in PACKAGE.rglob("*.py"):
        if {"import_module", "__import__"} & calls(ast.parse(path.read_text())):
            found.add(path.relative_to(PACKAGE).as_posix())
    assert found == MAY_IMPORT_BY_NAME


def imported():
    """What our files import from our own packages: file, line, module and name."""
    for folder in ("kerasbert", "tests", "benchmarks", "examples", "docs"):
        for path in (PACKAGE.parent / folder).rglob("*.py"):
            # These are of a kind of model that a test puts into a copy of the package.
            if "trials" in path.parts:
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.ImportFrom) or not node.module:
                    continue
                if node.module.startswith("kerasbert."):
                    for name in node.names:
                        yield path, node.lineno, node.module, name.name


def test_what_is_imported_is_there():
    """Within functions too, which run in slow tests and benchmarks alone."""
    missing = []
    for path, line, module, name in imported():
        try:
            if not hasattr(importlib.import_module(module), name):
                importlib.import_module(f"{module}.{name}")
        except ModuleNotFoundError as error:
            # A package of an extra may be missing; a module of ours may not.
            if error.name.startswith("kerasbert"):
                missing.append(f"{path}:{line} {module}.{name}")
    assert missing == []


def entered(function):
    """The files of the package that a call enters, in the order of their first function."""
    found = {}

    def note(frame, event, argument):
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(f"{PACKAGE}/"):
            found[path.removeprefix(f"{PACKAGE}/")] = None

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return list(found)


@pytest.mark.backends("torch")  # Which runs its Python at each step.
def test_the_walk_of_a_text_is_as_described():
    text = CONTRIBUTING.read_text(encoding="utf-8")
    walk = text[text.index("**A text to its loss**") : text.index("**A file of text to a preset**")]
    stations = re.findall(r"^\d+\. `([^`]+)`", walk, re.M)
    tools = re.findall(r"`(\w+/\w*\.?\w*)`", walk.partition("they use tools")[2])
    assert len(stations) <= 10

    def train():
        tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad"]
        sizes = {"num_layers": 1, "num_heads": 1, "hidden_dim": 4, "intermediate_dim": 4}
        model = BertTextClassifier(
            BertBackbone(vocabulary_size=7, **sizes),
            labels=["no", "yes"],
            preprocessor=BertTextClassifierPreprocessor(BertTokenizer(tokens)),
        )
        model.fit(["good", "bad good"], ["yes", "no"], verbose=0)

    files = entered(train)
    assert set(stations) <= set(files)
    others = [file for file in files if file not in stations and not BESIDE.fullmatch(file)]
    assert [file for file in others if not file.startswith(tuple(tools))] == []
