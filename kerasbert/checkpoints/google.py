"""Google's original BERT checkpoints: `bert_config.json`, `vocab.txt`, `bert_model.ckpt.*`.

Source: github.com/google-research/bert, modeling.py, run_classifier.py and run_squad.py.
"""

import glob
import math
import os
import tempfile

from kerasbert.backend.tensorflow import need_tensorflow, tf
from kerasbert.base.errors import blames_file, check_fields, check_heads, first_line
from kerasbert.base.files import read_json
from kerasbert.checkpoints.checkpoint import Checkpoint, Tensors
from kerasbert.checkpoints.name_map import NameMap, check_dtype
from kerasbert.checkpoints.sizes import check_stored
from kerasbert.families.settings import SETTINGS
from kerasbert.tokenizers import tokenizer_from_files

CONFIG = {
    "vocabulary_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "hidden_dim": "hidden_size",
    "intermediate_dim": "intermediate_size",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "max_sequence_length": "max_position_embeddings",
    "num_segments": "type_vocab_size",
    "initializer_range": "initializer_range",
    "activation": "hidden_act",
}
# `gelu` in modeling.py is the tanh approximation.
ACTIVATIONS = {"gelu": "gelu_approximate", "relu": "relu", "tanh": "tanh", "linear": "linear"}

_LAYER = "bert/encoder/layer_{i}"
ENCODER = {
    "token_embedding": "bert/embeddings/word_embeddings",
    "position_embedding": "bert/embeddings/position_embeddings",
    "segment_embedding": "bert/embeddings/token_type_embeddings",
    "embeddings_layer_norm": "bert/embeddings/LayerNorm",
    "transformer_layer_{i}/attention/qkv": f"{_LAYER}/attention/self/[query|key|value]",
    "transformer_layer_{i}/attention/output": f"{_LAYER}/attention/output/dense",
    "transformer_layer_{i}/attention_layer_norm": f"{_LAYER}/attention/output/LayerNorm",
    "transformer_layer_{i}/intermediate": f"{_LAYER}/intermediate/dense",
    "transformer_layer_{i}/output": f"{_LAYER}/output/dense",
    "transformer_layer_{i}/output_layer_norm": f"{_LAYER}/output/LayerNorm",
    "pooled_dense": "bert/pooler/dense",
}
# run_classifier.py and run_squad.py store their matrices as (C, D).
TEXT_CLASSIFIER = {"logits/kernel": "output_weights.T", "logits/bias": "output_bias"}
QUESTION_ANSWERING = {
    "logits/kernel": "cls/squad/output_weights.T",
    "logits/bias": "cls/squad/output_bias",
}
NEXT_SENTENCE_PREDICTOR = {
    "logits/kernel": "cls/seq_relationship/output_weights.T",
    "logits/bias": "cls/seq_relationship/output_bias",
}
MASKED_LM = {
    "mlm_head/dense": "cls/predictions/transform/dense",
    "mlm_head/layer_norm": "cls/predictions/transform/LayerNorm",
}
MASKED_LM_BIAS = {"mlm_head/bias": "cls/predictions/output_bias"}
_SLOTS = ("/adam_m", "/adam_v", "/Adam", "/Adam_1")


def is_mine(directory):
    """Return whether a directory is in Google's format."""
    return os.path.exists(os.path.join(directory, "bert_config.json"))


def read_checkpoint(directory):
    """Describe a checkpoint in Google's format; returns a `Checkpoint`."""
    path = os.path.join(directory, "bert_config.json")
    config = read_json(path)
    check_fields(config, {CONFIG[name]: SETTINGS[name] for name in CONFIG}, path)
    missing = [key for key in CONFIG.values() if key not in config and key != "initializer_range"]
    if missing:
        raise ValueError(f"'{path}' lacks {', '.join(missing)}; download it again.")
    heads, width = CONFIG["num_heads"], CONFIG["hidden_dim"]
    check_heads(config[width], config[heads], heads, width, path)
    settings = {ours: config[key] for ours, key in CONFIG.items() if key in config}
    if settings["activation"] not in ACTIVATIONS:
        raise ValueError(
            f"'{path}' has hidden_act='{settings['activation']}'; it must be one of "
            f"{', '.join(ACTIVATIONS)}."
        )
    settings["activation"] = ACTIVATIONS[settings["activation"]]
    tensors = _Tensors(directory)
    return Checkpoint(
        source=directory,
        family="bert",
        encoder=settings,
        tensors=tensors,
        encoder_map=NameMap(ENCODER, "google"),
        head_maps={
            "text_classifier": NameMap({}, "google", verbatim=TEXT_CLASSIFIER),
            "question_answering": NameMap({}, "google", verbatim=QUESTION_ANSWERING),
            "next_sentence_predictor": NameMap({}, "google", verbatim=NEXT_SENTENCE_PREDICTOR),
            "masked_lm": NameMap(MASKED_LM, "google", verbatim=MASKED_LM_BIAS),
            "pretrainer": NameMap(
                MASKED_LM, "google", verbatim={**MASKED_LM_BIAS, **NEXT_SENTENCE_PREDICTOR}
            ),
        },
        # Only the weights tell the number of classes.
        classes=lambda: {"num_classes": len(tensors["output_bias"])},
        is_head=_is_head,
        tokenizer=lambda **settings: tokenizer_from_files(directory, "bert", **settings),
    )


def _is_head(name):
    return name.startswith(("cls/", "output_", "bert/pooler/"))


def _is_weight(name):
    """Return whether a name is a weight, not one of the optimizer's slots and counters."""
    counters = ("global_step", "signal_early_stopping", "beta1_power", "beta2_power")
    return not name.startswith(counters) and not name.endswith(_SLOTS)


class _Tensors(Tensors):
    """The weights of the newest `*.ckpt` in a directory."""

    def _open(self):
        found = glob.glob(os.path.join(glob.escape(self.directory), "*.index"))
        if not found:
            raise ValueError(
                f"'{self.directory}' has a bert_config.json but no bert_model.ckpt.index; "
                "unpack the whole archive, or pass load_weights=False."
            )
        # Fine-tuning writes model.ckpt-<step>, and a file `checkpoint` that names the last one.
        found.sort(key=lambda path: ("bert_model.ckpt" not in path, -os.path.getmtime(path)))
        prefix = found[0].removesuffix(".index")
        need_tensorflow("A checkpoint of Google's", "tensorflow")  # Not a damaged file.
        try:
            state = tf.train.get_checkpoint_state(self.directory)
            last = os.path.basename(state.model_checkpoint_path) if state else ""
            if os.path.exists(os.path.join(self.directory, f"{last}.index")):
                prefix = os.path.join(self.directory, last)
            reader = tf.train.load_checkpoint(self._plain_name(prefix))
            shapes = reader.get_variable_to_shape_map()
        except Exception as error:
            if not blames_file(error):
                raise
            raise ValueError(
                f"'{prefix}' is truncated or not a TensorFlow checkpoint ({first_line(error)}); "
                "download it again."
            ) from error
        dtypes = reader.get_variable_to_dtype_map()
        # TensorFlow allocates the sizes declared in the index before it reads the data.
        asked = sum(math.prod(shapes[name]) * dtypes[name].size for name in shapes)
        stored = sum(map(os.path.getsize, glob.glob(glob.escape(prefix) + ".data-*")))
        check_stored(prefix, asked, stored)
        names = filter(_is_weight, sorted(shapes))
        return {name: (reader, shapes[name], dtypes[name]) for name in names}

    def _plain_name(self, prefix):
        """Return a path without pattern characters such as "[1]", which TensorFlow would expand."""
        if not set(prefix) & set("[]*?{}"):
            return prefix
        # The links must exist as long as `self`, which reads one tensor at a time.
        self.links = tempfile.TemporaryDirectory(prefix="kerasbert-")
        for path in glob.glob(glob.escape(prefix) + ".*"):
            end = os.path.abspath(path).removeprefix(os.path.abspath(prefix))
            os.symlink(os.path.abspath(path), os.path.join(self.links.name, "model" + end))
        return os.path.join(self.links.name, "model")

    def __getitem__(self, name):
        reader, _, dtype = self.index[name]
        check_dtype(name, dtype.name, self.directory)
        try:
            return reader.get_tensor(name)
        except Exception as error:
            if not blames_file(error):
                raise
            raise ValueError(
                f"'{self.directory}' is truncated: it does not hold all of '{name}' "
                f"({first_line(error)}); download it again."
            ) from error

    def shape(self, name):
        return tuple(self.index[name][1])
