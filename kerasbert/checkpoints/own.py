"""Presets of kerasbert: detection, and checked access to files."""

import contextlib
import os
import struct
import sys
import traceback
import zlib
from dataclasses import dataclass

from kerasbert.base.errors import (
    blames_file,
    check_fields,
    check_heads,
    check_value,
    first_line,
    is_whole,
    need_fields,
)
from kerasbert.base.files import read_json
from kerasbert.base.keywords import own_class
from kerasbert.base.subclasses import as_called, own_object
from kerasbert.checkpoints.sizes import checked_index, h5_size
from kerasbert.families.settings import LINEAGE_SETTINGS, NEEDED, SETTINGS

# Types of the settings of all tasks.
_TASK_FIELDS = {
    "num_classes": "count?",
    "labels": "names?",
    "multi_label": "flag",
    "dropout": "share?",
    "head_activation": "name?",
    "head_bias": "flag?",
    "head_norm": "flag?",
    "head_norm_epsilon": "epsilon?",
    "dropout_first": "flag?",
    "output_bias": "flag?",
    "tie_weights": "flag?",
    "head_dim": "count?",
    "bilstm_units": "whole?",
    "crf": "flag",
    "next_sentence": "flag",
    "sentence_order": "flag?",
    "normalize": "flag",
    "truncate_dim": "count?",
    "characters": "name?",
    "tied_projections": "flags?",
    "backbone": "object?",
    "preprocessor": "object?",
}


# Packages that read presets.
_READERS = {"keras", "keras_hub", "h5py", "kerasbert", "numpy", *sys.stdlib_module_names}


def _frames(error):
    """Return an error's stack frames, the last of which raised it."""
    return [frame for frame, _ in traceback.walk_tb(error.__traceback__)]


def _is_of_reading(error, cls):
    """Return whether an error may mean that a preset's files are damaged."""
    rooms = {str(frame.f_globals.get("__name__")).partition(".")[0] for frame in _frames(error)}
    if not blames_file(error) or rooms - _READERS:
        return False
    if isinstance(error, RuntimeError):
        return "h5py" in rooms
    is_users = cls is not None and cls.__module__.partition(".")[0] != "kerasbert"
    return not (is_users and str(error).startswith(f"{cls.__qualname__}.__init__()"))


def _loading_failures(error):
    """Return the errors that Keras caught while it set weights."""
    return [cause for _, cause in _frames(error)[-1].f_locals.get("error_msgs", {}).values()]


def is_own(directory):
    """Return whether a directory is a preset of kerasbert."""
    # A single tokenizer or preprocessor has no config.json.
    for name in ("config.json", "preprocessor.json", "tokenizer.json"):
        path = os.path.join(directory, name)
        if os.path.exists(path):
            registered = str(read_json(path).get("registered_name"))
            return registered.startswith("kerasbert>") or own_object(registered) is not None
    return False


@dataclass(frozen=True)
class OwnPreset:
    """A directory that `save_to_preset` wrote.

    Args:
        directory: string.
    """

    directory: str
    is_own = True

    @property
    def source(self):
        """The directory, as the preset's name in error messages."""
        return self.directory

    @contextlib.contextmanager
    def whole(self, cls=None):
        """Reword errors of Keras, KerasHub and h5py about files.

        Errors of the process, machine and user's classes stay.

        Args:
            cls: class. The class that is being loaded.
        """
        try:
            yield
        except (
            *(OSError, LookupError, TypeError, AttributeError, RuntimeError, EOFError),
            *(ArithmeticError, zlib.error, struct.error),
        ) as error:
            if not _is_of_reading(error, cls):
                raise
            raise ValueError(
                f"The preset in '{self.directory}' is incomplete or damaged ({first_line(error)}); "
                "save or download it again."
            ) from error
        except ValueError as error:
            if "\n" not in str(error).strip() or not _is_of_reading(error, cls):
                raise  # Already our sentence, or not about the files.
            causes = _loading_failures(error)
            for cause in causes:
                if not _is_of_reading(cause, cls):
                    raise cause from error
            words = " ".join([first_line(error), *map(str, causes[:1])])
            raise ValueError(
                f"The files of the preset in '{self.directory}' do not fit together ({words}); "
                "save or download it again."
            ) from error

    def path(self, name):
        """Return the path of one of the files."""
        return os.path.join(self.directory, name)

    def config(self, name="config.json"):
        """Return the checked settings in a JSON file."""
        path = self.path(name)
        config = read_json(path).get("config")
        check_value("config", config, "object", path)
        encoder = SETTINGS | LINEAGE_SETTINGS
        check_fields(config, encoder if name == "config.json" else _TASK_FIELDS, path)
        if read_json(path).get("registered_name") == "kerasbert>BertBackbone":
            need_fields(config, NEEDED, path)
            check_heads(config["hidden_dim"], config["num_heads"], where=path)
        return config

    def task(self, cls=object):
        """Return class and settings of the task, to load with `cls`.

        Returns:
            `(class, settings)`. The class is `None` if unregistered; `(object, None)` without a
            task.
        """
        path = self.path("task.json")
        if not os.path.exists(path):
            return object, None
        saved = read_json(path)
        self.config("task.json")  # Checks the fields.
        if own_class(cls) is cls:
            # A class of this package loads a user's subclass's preset as its own.
            saved.pop("subclass", None)
        found, config = as_called(saved, cls)
        name = str(saved.get("registered_name"))
        return (object if found is None and name.startswith("kerasbert>") else found), config

    def encoder_size(self):
        """Return the number of values in the encoder's weight files."""
        if os.path.isdir(members := self.path("members")):
            raise ValueError(
                f"'{self.directory}' is an ensemble, which has no encoder of its own; load a "
                f"member, such as '{os.path.join(members, '0')}'."
            )
        dtype = self.config().get("dtype")
        return h5_size(self.directory, "model", isinstance(dtype, dict) and "Map" in str(dtype))

    def check_encoder(self):
        """Raise if a size in the config exceeds the weights in the files."""
        held, waiting = self.encoder_size(), list(self.config().items())
        for name, value in waiting:
            if isinstance(value, (list, tuple)):
                waiting += [(name, one) for one in value]
            elif is_whole(value) and value > held:
                raise ValueError(
                    f"{name}={value} in '{self.path('config.json')}' asks for more weights than "
                    f"the {held:,} in its files; save or download the preset again."
                )

    def encoder_weights(self):
        """Return the path of the encoder's weight file or shard index."""
        return checked_index(self.directory) or self.path("model.weights.h5")

    def check_classes(self, config):
        """Raise if a task has more classes or units than weights."""
        held = h5_size(self.directory, "task")
        for name in ("num_classes", "bilstm_units"):
            if ((config or {}).get(name) or 0) > held > 0:
                raise ValueError(
                    f"'{self.path('task.json')}' has {name}={config[name]}, but task.weights.h5 "
                    f"holds only {held} weights; save or download the preset again."
                )
