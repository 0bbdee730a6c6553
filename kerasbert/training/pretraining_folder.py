"""The output folder of `pretrain`."""

import json
import os
import shutil
import tempfile

from kerasbert.base.errors import how_to_install
from kerasbert.base.files import json_in, new_folder, remove, write_text
from kerasbert.base.paths import as_path, is_url
from kerasbert.base.storage import HUBS, exists, find, get, get_folder, join
from kerasbert.base.strict_json import to_json
from kerasbert.models import ElectraPretrainer
from kerasbert.training.pretraining_model import GENERATOR
from kerasbert.training.recording import CURVES, LOG, draw_curves
from kerasbert.training.resuming import find_checkpoint
from kerasbert.upload import write_card

SETTINGS = "settings.json"
# Written if a training diverges; the next call may then change `_MAY_CHANGE`.
DIVERGED = "diverged.json"
_MAY_CHANGE = ("learning_rate", "schedule", "warmup_steps", "decay_share", "weight_decay")


def fetched(given, copies, left_out=()):
    """Return a local path, or copy a URL's files into `copies`."""
    if not isinstance(given, (str, os.PathLike)):
        return given
    url = as_path(given).rstrip("/")
    if not is_url(url) or url.startswith(HUBS):
        return given
    above, _, name = url.rpartition("/")
    if name == "preset" and exists(join(above, SETTINGS)):
        url = above
    copy = os.path.join(tempfile.mkdtemp(dir=copies), os.path.basename(url))
    if find(url)[0] == "file":
        get(url, copy)
    elif not get_folder(url, copy, left_out):
        raise ValueError(f"There is no file or folder '{given}'.")
    return copy


def earlier_run(preset, optimizer_state):
    """Return `(preset, checkpoint)` of a preset or the output of a training."""
    if preset is None:
        return None, None
    given = os.path.expanduser(os.fspath(preset))
    folder = given if os.path.exists(os.path.join(given, SETTINGS)) else os.path.dirname(given)
    if os.path.exists(os.path.join(folder, SETTINGS)) and folder:
        inside = os.path.join(folder, "preset")
        if not os.path.isdir(inside):
            raise ValueError(
                f"The training in '{folder}' is not finished: it has no preset yet. Finish it with "
                "the call that started it."
            )
        return inside, find_checkpoint(folder)
    if optimizer_state == "kept":
        raise ValueError(
            f"'{preset}' has no optimizer state: a preset holds only weights. Pass the output of "
            "`pretrain`, with its checkpoint, or optimizer_state='new'."
        )
    return preset, None


def is_resumed(output, settings):
    """Return whether `output` has a training; raise if its settings differ."""
    before = json_in(output, SETTINGS)
    if not before:
        return False
    before = {"schedule": "linear", "cut_sentences": False, **before}
    names = [name for name in {**before, **settings} if before.get(name) != settings.get(name)]
    if os.path.exists(os.path.join(output, DIVERGED)):
        names = [name for name in names if name not in _MAY_CHANGE]
    if names:
        said = ", ".join(f"{x}={before.get(x)!r} (now {settings.get(x)!r})" for x in names)
        raise ValueError(
            f"'{output}' has a training with other settings: {said}. Pass the same to resume it, "
            "another output, or resume=False (--restart) to start over."
        )
    return True


def write_settings(output, settings):
    write_text(os.path.join(output, SETTINGS), to_json(settings, indent=1))
    # From now on, settings must stay the same.
    remove(os.path.join(output, DIVERGED))


def as_saved(settings):
    """Return settings as if saved and read, to compare."""

    def described(value):
        """Return a string for a value that JSON lacks."""
        if isinstance(value, os.PathLike):
            return os.fspath(value)
        return getattr(value, "__qualname__", type(value).__name__)

    return json.loads(to_json(settings, default=described))


def start_over(output):
    """Remove a training's files, except vocabulary and examples."""
    for name in (SETTINGS, LOG, CURVES, "preset", GENERATOR, "tensorboard", DIVERGED):
        remove(os.path.join(output, name))
    while newest := find_checkpoint(output):
        os.remove(newest)


def write_preset(model, output, log, scores, settings, card, line):
    """Write the preset with its model card and curves."""
    place = os.path.join(output, "preset")
    curves = draw_curves(log, os.path.join(output, CURVES))
    if not curves:
        line.say(f"no plot of the curves, which needs matplotlib: {how_to_install('plot')}")
    found = {
        "description": "An encoder trained by `kerasbert.pretrain`.",
        "recipe": _recipe(settings, log, curves),
    }
    if scores:
        found["scores"] = {name: round(value, 4) for name, value in scores.items()}
        found["scored_on"] = "the held-out examples"
    base = settings["preset"]
    is_stored = is_url(base) and not base.startswith(HUBS)
    if isinstance(base, str) and not is_stored and not os.path.isdir(base):
        found["base"] = base
    if is_electra := isinstance(model, ElectraPretrainer):
        with new_folder(os.path.join(output, GENERATOR), keep=True) as folder:
            model.masked_lm.save_to_preset(folder)
            text = "The generator that `kerasbert.pretrain` trained with an ELECTRA encoder."
            write_card(folder, f"{os.path.basename(output)}-generator", {"description": text})
    with new_folder(place, keep=True) as folder:
        (model.detector if is_electra else model).save_to_preset(folder)
        if curves:
            shutil.copyfile(os.path.join(output, CURVES), os.path.join(folder, CURVES))
        write_card(folder, os.path.basename(output), {**found, **(card or {})})


def _recipe(settings, log, curves):
    """Describe a training in Markdown, for the model card."""
    # Local folder names and unset options mean nothing to others.
    named = ["corpus", "preset", "teacher", "vocabulary"]
    if settings["vocabulary"] or settings["preset"]:
        named += ["vocabulary_size", "lowercase"]  # They describe only a trained vocabulary.
    settings = {x: y for x, y in settings.items() if x not in named and y is not None}
    seconds = sum(row["seconds"] or 0 for row in log)
    lines = [f"{len(log) and log[-1]['step']:,} updates in {seconds / 3600:.2f} hours, with"]
    lines += ["", "```json", to_json(settings, indent=1), "```"]
    if curves:
        lines += ["", f"![Loss and accuracy by step]({CURVES})"]
    return "\n".join(lines)
