"""Tiny models of every family in `transformers`, as references for ours."""

import dataclasses
import gc
import json
import os
import shutil
import signal
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Tiny tensors are computed by one thread, also in child processes. More threads would busy-wait
# while other tests need the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import kerasbert.models  # noqa: E402, F401  Before Keras imports TensorFlow: see kerasbert/base/host.py.

# isort: split
import keras  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

# A shell starts background jobs with SIGINT ignored, but many tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

if keras.backend.backend() == "jax":
    import jax

    # Code compiled in tests runs only once.
    jax.config.update("jax_disable_most_optimizations", True)
    jax.config.update("jax_enable_compilation_cache", False)

VOCABULARY_SIZE = 99
_SIZES = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 36,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 32,
}
_GPT = {
    "vocab_size": VOCABULARY_SIZE,
    "n_embd": 36,
    "n_layer": 2,
    "n_head": 3,
    "n_positions": 32,
}
# Arguments of each family's transformers configuration.
_XLM = {
    "vocab_size": VOCABULARY_SIZE,
    "emb_dim": 36,
    "n_layers": 2,
    "n_heads": 3,
    "max_position_embeddings": 32,
    "n_langs": 3,
}
TINY = {
    "bert": _SIZES,
    # RoBERTa's position table has two rows before the first position.
    "roberta": {**_SIZES, "max_position_embeddings": 34, "type_vocab_size": 1},
    "xlm_roberta": {**_SIZES, "max_position_embeddings": 34, "type_vocab_size": 1},
    "camembert": {**_SIZES, "max_position_embeddings": 34, "type_vocab_size": 1},
    "data2vec_text": {**_SIZES, "max_position_embeddings": 34, "type_vocab_size": 1},
    "xlm_roberta_xl": {**_SIZES, "max_position_embeddings": 34},
    "roberta_prelayernorm": {**_SIZES, "max_position_embeddings": 34, "type_vocab_size": 1},
    "longformer": {
        **_SIZES,
        "max_position_embeddings": 34,
        "type_vocab_size": 1,
        "attention_window": 4,
    },
    "ernie": _SIZES,
    "roformer": {**_SIZES, "embedding_size": 20},
    "eurobert": {
        **_SIZES,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "mask_token_id": 3,
    },
    "megatron_bert": _SIZES,
    "rembert": {**_SIZES, "input_embedding_size": 20, "output_embedding_size": 28},
    "luke": {**_SIZES, "max_position_embeddings": 34, "entity_vocab_size": 9, "entity_emb_size": 8},
    "big_bird": {**_SIZES, "attention_type": "original_full"},
    "xlm": _XLM,
    "flaubert": _XLM,
    "bert_generation": _SIZES,
    "distilbert": {
        "vocab_size": VOCABULARY_SIZE,
        "dim": 36,
        "n_layers": 2,
        "n_heads": 3,
        "hidden_dim": 40,
        "max_position_embeddings": 32,
    },
    "electra": {**_SIZES, "embedding_size": 20},
    "albert": {**_SIZES, "embedding_size": 20},
    "modernbert": {
        **_SIZES,
        "num_hidden_layers": 4,
        "local_attention": 6,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "cls_token_id": 1,
        "sep_token_id": 2,
    },
    "modernbert_decoder": {
        **_SIZES,
        "num_hidden_layers": 4,
        "local_attention": 6,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "cls_token_id": 1,
        "sep_token_id": 2,
    },
    "deberta": {
        **_SIZES,
        "relative_attention": True,
        "position_biased_input": False,
        "pos_att_type": ["c2p", "p2c"],
    },
    "deberta_v3": {
        **_SIZES,
        "type_vocab_size": 0,
        "relative_attention": True,
        "position_biased_input": False,
        "pos_att_type": ["p2c", "c2p"],
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "position_buckets": 8,
    },
    # This position table has two rows before the first position, as in RoBERTa.
    "mpnet": {**_SIZES, "max_position_embeddings": 34},
    "nomic_bert": _SIZES,
    "gte": {**_SIZES, "type_vocab_size": 1},
    "gpt2": {**_GPT, "n_inner": 40, "eos_token_id": 2, "bos_token_id": 2, "pad_token_id": 0},
    "gpt": {**_GPT, "pad_token_id": 0},
}
_CLASSES = {
    "bert": "Bert",
    "roberta": "Roberta",
    "xlm_roberta": "XLMRoberta",
    "camembert": "Camembert",
    "data2vec_text": "Data2VecText",
    "xlm_roberta_xl": "XLMRobertaXL",
    "roberta_prelayernorm": "RobertaPreLayerNorm",
    "longformer": "Longformer",
    "ernie": "Ernie",
    "roformer": "RoFormer",
    "eurobert": "EuroBert",
    "megatron_bert": "MegatronBert",
    "rembert": "RemBert",
    "luke": "Luke",
    "big_bird": "BigBird",
    "xlm": "XLM",
    "flaubert": "Flaubert",
    "bert_generation": "BertGeneration",
    "distilbert": "DistilBert",
    "electra": "Electra",
    "albert": "Albert",
    "modernbert": "ModernBert",
    "deberta": "Deberta",
    "deberta_v3": "DebertaV2",
    "mpnet": "MPNet",
    "nomic_bert": "NomicBert",
    "gte": "Gte",
    "gpt2": "GPT2",
    "gpt": "OpenAIGPT",
    "modernbert_decoder": "ModernBertDecoder",
}
# Families whose `transformers` models take segments.
SEGMENTS = (
    *("bert", "roberta", "xlm_roberta", "camembert", "data2vec_text", "xlm_roberta_xl"),
    *(
        "roberta_prelayernorm",
        "longformer",
        "ernie",
        "megatron_bert",
        "roformer",
        "rembert",
        "luke",
        "big_bird",
    ),
    *("electra", "albert", "nomic_bert", "gte"),
)


# Folders of code that each backend computes in its own way. Other tests run on TensorFlow, README's
# backend, unless a mark names others.
EVERY_BACKEND = (
    "kerasbert/backend/",
    "kerasbert/layers/",
    "kerasbert/losses/",
    "kerasbert/optimizers/",
    "tests/backend/",
    "tests/checkpoints/test_huggingface.py",
    "tests/export/",
    "tests/layers/",
    "tests/losses/",
    "tests/test_distribution.py",
    "tests/base/test_finite.py",
    "tests/optimizers/",
    "tests/test_several_processes.py",
    "tests/test_small_presets.py",
    "tests/training/",
)


# Docstrings whose examples take several seconds on TensorFlow.
SLOW_EXAMPLES = (
    "kerasbert.export.serving.export_serving",
    "kerasbert.heads.causal_lm.model.BertCausalLM",
    "kerasbert.heads.multi_task.model.BertMultiTask",
    "kerasbert.lineage.elmo.pretrainer.ElmoPretrainer",
    "kerasbert.lineage.recurrent.model.RecurrentSeq2SeqLM",
    *("kerasbert.wrappers.SKLearnTextClassifier", "kerasbert.wrappers.SKLearnTextEmbedder"),
    *("kerasbert.wrappers.SKLearnTextRegressor", "kerasbert.wrappers.SKLearnTokenClassifier"),
)


def _runs_on(item, backend):
    mark = item.get_closest_marker("backends")
    if mark:
        return backend in mark.args
    everywhere = item.nodeid.startswith(EVERY_BACKEND)
    return backend == "tensorflow" or everywhere or item.get_closest_marker("slow_on_tensorflow")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Deselect tests that other backends run, and mark those that are slow on this one."""
    here = keras.backend.backend()
    others = []
    for item in items:
        is_slow = item.get_closest_marker("slow_on_tensorflow") or item.name in SLOW_EXAMPLES
        if here == "tensorflow" and is_slow:
            item.add_marker(pytest.mark.slow)
        if not _runs_on(item, here):
            others.append(item)
    if others:
        config.hook.pytest_deselected(items=others)
        left_out = set(others)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(autouse=True, scope="module")
def _look_for_garbage_of_this_file_only():
    """Exclude objects of earlier test files from garbage collection, which took a tenth of the
    time.

    The garbage of the previous file is collected first; otherwise the process would keep it.
    """
    gc.collect()
    gc.freeze()


@dataclasses.dataclass
class Reference:
    """A model of `transformers`, and the directory it is saved in."""

    family: str
    model: object
    directory: str

    def inputs(self, length, seed=0):
        """Return random inputs: a dict of (3, `length`) arrays, the second row padded from the
        middle on.
        """
        config = self.model.config
        rng = np.random.default_rng(seed)
        token_ids = rng.integers(3, VOCABULARY_SIZE, (3, length))
        padding_mask = np.ones((3, length), "int32")
        padding_mask[1, length // 2 + 1 :] = 0
        token_ids[padding_mask == 0] = config.pad_token_id
        inputs = {"token_ids": token_ids.astype("int32"), "padding_mask": padding_mask}
        if self.family in SEGMENTS and config.type_vocab_size:
            segments = rng.integers(0, config.type_vocab_size, (3, length))
            inputs["segment_ids"] = segments.astype("int32")
        if getattr(config, "n_langs", 1) > 1:
            inputs["segment_ids"] = rng.integers(0, config.n_langs, (3, length)).astype("int32")
        return inputs

    def __call__(self, inputs, gradients=False, base=False):
        """Return the model's outputs for our inputs; the last hidden state is called
        `sequence_output`.
        """
        import torch

        model = self.model.base_model if base else self.model
        with torch.set_grad_enabled(gradients):
            outputs = self._run(model, inputs)
        result = {"sequence_output": outputs.hidden_states[-1]}
        for ours, theirs in (("logits", "logits"), ("pooled_output", "pooler_output")):
            if outputs.get(theirs) is not None:
                result[ours] = outputs[theirs]
        return result if gradients else {name: value.numpy() for name, value in result.items()}

    def _run(self, model, inputs, **arguments):
        from tests.contracts import their_inputs

        return model(**arguments, **their_inputs(model, inputs), output_hidden_states=True)

    def loss(self, inputs, labels):
        """Return the reference's own loss for our inputs and its labels."""
        import torch

        with torch.no_grad():
            return self._run(self.model, inputs, labels=labels).loss.item()

    def compare(self, model, lengths=(1, 32)):
        """Return the largest difference between the outputs of our model and of this reference.

        `model` is an encoder or a classifier. By default, rows have one token, and as many tokens
        as there are positions; they have padding where possible.
        """
        encoder = getattr(model, "backbone", model)
        worst = 0.0
        for length in lengths:
            inputs = self.inputs(length, seed=length)
            expected = self(inputs, base=model is encoder)
            inputs = {name: value for name, value in inputs.items() if name in encoder.input}
            ours = dict(encoder(inputs))
            if model is not encoder:
                ours["logits"] = model(inputs)
                # Outputs must differ enough to reveal errors.
                assert np.abs(expected["logits"]).max() > 0.1
            for name in expected.keys() & ours.keys():
                gap = np.abs(keras.ops.convert_to_numpy(ours[name]) - expected[name])
                if gap.shape[:2] == inputs["padding_mask"].shape:
                    gap = gap[inputs["padding_mask"] == 1]
                worst = max(worst, gap.max())
        return worst

    def copy(self, target, **settings):
        """Copy the directory with other settings in its configuration; `None` removes one."""
        shutil.copytree(self.directory, target, dirs_exist_ok=True)
        path = os.path.join(target, "config.json")
        with open(path, encoding="utf-8") as file:
            config = {**json.load(file), **settings}
        with open(path, "w", encoding="utf-8") as file:
            json.dump({key: value for key, value in config.items() if value is not None}, file)
        return str(target)

    def tensors(self):
        """Return the tensors of the checkpoint by name."""
        from safetensors.torch import load_file

        return load_file(os.path.join(self.directory, "model.safetensors"))

    def copy_with(self, target, tensors, bin=False):
        """Copy the directory with these tensors instead of its own."""
        import torch
        from safetensors.torch import save_file

        directory = self.copy(target)
        os.remove(os.path.join(directory, "model.safetensors"))
        if bin:
            torch.save(tensors, os.path.join(directory, "pytorch_model.bin"))
        else:
            save_file(tensors, os.path.join(directory, "model.safetensors"))
        return directory


def _architecture(family, head):
    import transformers

    if family == "modernbert_decoder":
        head = head.replace("LMHeadModel", "ForCausalLM")
    elif family in ("xlm", "flaubert"):
        suffixes = {"ForMaskedLM": "WithLMHeadModel"}
        head = suffixes.get(head, head.replace("Answering", "AnsweringSimple"))
    elif family == "bert_generation":
        head = head.replace("LMHeadModel", "Decoder") or "Encoder"
    return getattr(transformers, f"{_CLASSES[family]}{head or 'Model'}")


@pytest.fixture(scope="session")
def reference(tmp_path_factory):
    """A function of family, head ("ForSequenceClassification", ...) and settings: a `Reference`.

    Every weight is moved away from its initial value, so that each bias and gain matters, and so
    far that logits are of the order of 1.
    """
    import torch

    made = {}

    def make(family, head="", **settings):
        key = (family, head, repr(sorted(settings.items())))
        if key not in made:
            made[key] = new(family, head, **settings)
        return made[key]

    def new(family, head, **settings):
        architecture = _architecture(family, head)
        torch.manual_seed(0)
        config = architecture.config_class(**{**TINY[family], **settings})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = architecture(config).eval()
        with torch.no_grad():
            for weight in model.parameters():
                if weight.requires_grad:  # RoFormer's table of rotary angles is fixed.
                    weight.add_(0.15 * torch.randn_like(weight))
        directory = str(tmp_path_factory.mktemp(family))
        model.save_pretrained(directory)
        return Reference(family, model, directory)

    return make


WORDS = "good bad film a the it was is who rome ann lee old in city ? . i".split()


@pytest.fixture(scope="session")
def tiny_preset(tmp_path_factory):
    """The directory of an encoder of random weights with a tokenizer that has `WORDS`."""
    from kerasbert.models import (
        BertBackbone,
        BertTextClassifier,
        BertTextClassifierPreprocessor,
    )
    from kerasbert.tokenizers import BertTokenizer

    letters = "abcdefghijklmnopqrstuvwxyz"
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    tokens += [*(x for x in letters if x not in WORDS), *(f"##{x}" for x in letters)]
    keras.utils.set_random_seed(0)
    backbone = BertBackbone(
        vocabulary_size=len(tokens),
        num_layers=1,
        num_heads=2,
        hidden_dim=32,
        intermediate_dim=64,
        max_sequence_length=48,
        dropout=0.0,
    )
    preprocessor = BertTextClassifierPreprocessor(
        BertTokenizer(tokens, lowercase=True), sequence_length=48
    )
    directory = str(tmp_path_factory.mktemp("presets") / "tiny")
    model = BertTextClassifier(backbone, labels=["no", "yes"], preprocessor=preprocessor)
    model.save_to_preset(directory)
    return directory


@pytest.fixture(scope="module")
def browser():
    """A real browser for tests of pages: Debian's Chromium, or another installed one."""
    found = [shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")]
    path = next(filter(None, found), None)
    if path is None:
        pytest.skip("There is no browser here: apt install chromium.")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()
