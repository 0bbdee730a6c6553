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
from kerasbert.base.system import link_or_copy
from kerasbert.checkpoints.checkpoint import Checkpoint, Tensors
from kerasbert.checkpoints.name_map import NameMap, check_dtype
from kerasbert.checkpoints.sizes import check_stored
from kerasbert.families.bert import GOOGLE_CONFIG, GOOGLE_ENCODER, GOOGLE_HEADS
from kerasbert.families.settings import SETTINGS
from kerasbert.tokenizers import tokenizer_from_files

# `gelu` in Google's modeling.py is the tanh approximation.
ACTIVATIONS = {"gelu": "gelu_approximate", "relu": "relu", "tanh": "tanh", "linear": "linear"}

_SLOTS = ("/adam_m", "/adam_v", "/Adam", "/Adam_1")


def is_mine(directory):
    """Return whether a directory is in Google's format."""
    return os.path.exists(os.path.join(directory, "bert_config.json"))


def read_checkpoint(directory):
    """Describe a checkpoint in Google's format; returns a `Checkpoint`."""
    path = os.path.join(directory, "bert_config.json")
    config = read_json(path)
    check_fields(config, {GOOGLE_CONFIG[name]: SETTINGS[name] for name in GOOGLE_CONFIG}, path)
    missing = [
        key for key in GOOGLE_CONFIG.values() if key not in config and key != "initializer_range"
    ]
    if missing:
        raise ValueError(f"'{path}' lacks {', '.join(missing)}; download it again.")
    heads, width = GOOGLE_CONFIG["num_heads"], GOOGLE_CONFIG["hidden_dim"]
    check_heads(config[width], config[heads], heads, width, path)
    settings = {ours: config[key] for ours, key in GOOGLE_CONFIG.items() if key in config}
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
        encoder_map=NameMap(GOOGLE_ENCODER, "google"),
        head_maps={
            kind: NameMap(layers, "google", verbatim=weights)
            for kind, (layers, weights) in GOOGLE_HEADS.items()
        },
        # The config lacks the number of classes, so it is read from the weights.
        classes=lambda: {"num_classes": len(tensors["output_bias"])},
        is_head=lambda name: name.startswith(("cls/", "output_", "bert/pooler/")),
        tokenizer=lambda **settings: tokenizer_from_files(directory, "bert", **settings),
    )


def _is_weight(name):
    """Return whether a name is a weight's, not an optimizer's."""
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
        # Fine-tuning writes model.ckpt-<step>; the file `checkpoint` names the last.
        found.sort(key=lambda path: ("bert_model.ckpt" not in path, -os.path.getmtime(path)))
        prefix = found[0].removesuffix(".index")
        # Not in `try`: a missing package is not a damaged file.
        need_tensorflow("A checkpoint of Google's", "tensorflow")
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
        # TensorFlow allocates the sizes that the index declares before it reads data.
        asked = sum(math.prod(shapes[name]) * dtypes[name].size for name in shapes)
        stored = sum(map(os.path.getsize, glob.glob(glob.escape(prefix) + ".data-*")))
        check_stored(prefix, asked, stored)
        names = filter(_is_weight, sorted(shapes))
        return {name: (reader, shapes[name], dtypes[name]) for name in names}

    def _plain_name(self, prefix):
        """Return a path without patterns such as "[1]", which TensorFlow would expand."""
        if not set(prefix) & set("[]*?{}"):
            return prefix
        # This object reads tensors from the links later, so they must exist as long.
        self.links = tempfile.TemporaryDirectory(prefix="kerasbert-")
        for path in glob.glob(glob.escape(prefix) + ".*"):
            end = os.path.abspath(path).removeprefix(os.path.abspath(prefix))
            link_or_copy(os.path.abspath(path), os.path.join(self.links.name, "model" + end))
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
