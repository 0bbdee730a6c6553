"""Models of the playground, which are loaded one by one while the page is already shown."""

import json
import os
import threading
import time
import warnings

from kerasbert.base.errors import first_line, is_whole
from kerasbert.checkpoints.hub import preset_files
from kerasbert.play.errors import BusyError

# Maximum number of running and waiting requests per model; further requests get an error.
MOST_WAITING = 8
# Presets that ship with the package and need no network.
DEFAULTS = ("bert_mini_demo_en_uncased", "minilm_mini_demo_en", "bert_mini_demo_ko_ja")


def _shown(preset):
    """Return the name that is shown for a preset: only the end of an absolute path.

    >>> _shown("/home/ann/runs/spam/model"), _shown("spam/model"), _shown("hf://org/name")
    ('spam/model', 'spam/model', 'hf://org/name')
    """
    if not os.path.isabs(os.path.expanduser(preset)):
        return preset
    return "/".join(preset.rstrip("/").split("/")[-2:])


def _languages(preset):
    """Return the languages of a built-in preset, and nothing for others.

    It reads one file, because importing the list of presets starts Keras.

    >>> _languages("bert_mini_demo_ko_ja"), _languages("spam/model")
    (['ko', 'ja'], [])
    """
    for file in preset_files().iterdir():
        if file.name == f"{preset}.json":
            return json.loads(file.read_text(encoding="utf-8"))["languages"]
    return []


class Loaded:
    """Presets and their models, loaded by one thread and read by others.

    Args:
        presets: list of presets, as `from_preset` takes them.
        start: function that starts Keras; the loading thread calls it first.
    """

    def __init__(self, presets, start=lambda: None):
        self.presets = list(dict.fromkeys(map(str, presets)))
        self._start = start
        self._names = [_shown(preset) for preset in self.presets]
        self._languages = [_languages(preset) for preset in self.presets]
        self._states = [None] * len(self.presets)
        self._began = [None] * len(self.presets)
        self._models = [None] * len(self.presets)
        self._locks = [threading.Lock() for _ in self.presets]
        self._lines = [threading.BoundedSemaphore(MOST_WAITING) for _ in self.presets]
        for place in range(len(self.presets)):
            self._set(place, "waiting")

    def load(self):
        """Load all presets; errors are recorded in `states`."""
        try:
            for place in range(len(self.presets)):
                self._set(place, "starting" if place == 0 else "waiting")
            self._start()
        except Exception as error:
            for place in range(len(self.presets)):
                self._set(place, "failed", error=first_line(error))
            return
        for place, preset in enumerate(self.presets):
            try:
                self._load(place, preset)
            except Exception as error:  # A broken preset must not prevent loading the others.
                self._set(place, "failed", error=first_line(error))

    def _load(self, place, preset):
        from kerasbert import models
        from kerasbert.converter import class_in
        from kerasbert.play.answers import describe
        from kerasbert.presets import resolve
        from kerasbert.text.subword import SubwordTokenizer

        self._set(place, "fetching")
        directory = resolve(preset)
        self._set(place, "loading")
        cls = class_in(directory, "kerasbert")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = cls.from_preset(preset)
            if isinstance(model, models.BertBackbone):
                # A bare encoder gets an embedder head, for embeddings and attention.
                model = models.BertTextEmbedder(
                    model,
                    models.BertTextEmbedderPreprocessor(
                        SubwordTokenizer.from_preset(preset),
                        sequence_length=min(512, model.max_sequence_length),
                    ),
                )
        if getattr(model, "preprocessor", None) is None:
            raise ValueError(f"'{preset}' is a {cls.__name__} without a preprocessor for texts.")
        self._models[place] = model
        self._set(place, "ready", **describe(model))

    def _set(self, place, state, **more):
        now = time.monotonic()
        began = self._began[place]
        if state in ("starting", "fetching") and began is None:
            self._began[place] = now
        if began is not None:
            more["seconds"] = round(now - began, 1)
        about = {"name": self._names[place], "languages": self._languages[place]}
        self._states[place] = {**about, "state": state, **more}

    def states(self):
        """Return the state of each preset for the page: a list of dicts."""
        states, now = list(self._states), time.monotonic()
        for place, state in enumerate(states):
            if "seconds" not in state and self._began[place] is not None:
                states[place] = {**state, "seconds": round(now - self._began[place], 1)}
        return states

    def use(self, place, function):
        """Call `function` with a model, one call at a time, and return its result.

        Raises:
            ValueError: if there is no such model, or it is not loaded.
            BusyError: if too many requests wait for it.
        """
        if not is_whole(place) or not 0 <= place < len(self.presets):
            raise ValueError(f"There is no model {place!r:.60}.")
        model, state = self._models[place], self._states[place]
        if model is None:
            raise ValueError(
                f"'{state['name']}' is not loaded: {state.get('error', state['state'])}"
            )
        if not self._lines[place].acquire(blocking=False):
            raise BusyError(
                f"'{state['name']}' is busy: {MOST_WAITING} requests wait for it; try again in a "
                "moment.",
                "busy",
            )
        try:
            with self._locks[place]:
                return function(model)
        finally:
            self._lines[place].release()
