"""`from_preset` and `save_to_preset`, shared by encoder, tokenizers, preprocessors and tasks."""

import importlib
import os
import shutil
import tempfile

from kerasbert._files import check_room


class FromPreset:
    """Mixin, first among the bases: loads from any source and saves without halves."""

    @classmethod
    def from_preset(cls, preset, load_weights=True, **kwargs):
        """Load from a preset.

        Args:
            preset: string. A built-in name (`kerasbert presets` lists them), a directory of
                ours, of KerasHub's, of Hugging Face's or of Google's, `hf://org/name`, or
                `kaggle://org/model/keras/name`.
            load_weights: bool. `False` builds the architecture with random weights.
            **kwargs: override settings of the class, for example `dtype="bfloat16"`. A task takes
                its own (`num_classes` or `labels` make a new head, where there are no classes
                `new_head=True`), its preprocessor's `sequence_length` and `truncate`, and those
                of its encoder that it does not have.

        Raises:
            ValueError: if the preset is unknown, or its weights do not fit, with both lists.
        """
        # A layer above, and imports point down: found at the call.
        presets = importlib.import_module("kerasbert.presets")
        return presets.load(cls, preset, load_weights, **kwargs)

    @classmethod
    def from_own_preset(cls, directory, **kwargs):
        """Load from a local directory that `save_to_preset` wrote (KerasHub's own loader)."""
        return super().from_preset(directory, **kwargs)

    def save_to_preset(self, preset_dir, **kwargs):
        """Write a preset directory; a failure leaves nothing under `preset_dir`.

        Args:
            preset_dir: string. The directory; one that exists keeps its other files.
            **kwargs: passed on, for example `max_shard_size` in GB.

        Raises:
            ValueError: if `preset_dir` is a file.
            OSError: if the disk has no room for the weights.
        """
        preset_dir = os.path.abspath(os.path.expanduser(preset_dir))
        if os.path.isfile(preset_dir):
            raise ValueError(f"Cannot save a preset to '{preset_dir}': it is a file, not a folder.")
        if os.path.basename(preset_dir).startswith(".kerasbert-"):
            # A part of a task, saved into the temporary folder of the whole.
            return super().save_to_preset(preset_dir, **kwargs)
        parent = os.path.dirname(preset_dir)
        os.makedirs(parent, exist_ok=True)
        check_room(parent, getattr(self, "weights", ()))
        temporary = tempfile.mkdtemp(prefix=".kerasbert-", dir=parent)
        try:
            super().save_to_preset(temporary, **kwargs)
            if not os.path.exists(preset_dir):
                os.chmod(temporary, 0o755)
                os.rename(temporary, preset_dir)
                return
            for folder, _, files in os.walk(temporary):
                target = os.path.join(preset_dir, os.path.relpath(folder, temporary))
                os.makedirs(target, exist_ok=True)
                for file in files:
                    os.replace(os.path.join(folder, file), os.path.join(target, file))
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
