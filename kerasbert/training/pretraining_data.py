"""Vocabulary and examples of `pretrain`, given or made from a corpus; a share is held out."""

import os

import numpy as np

from kerasbert import backend
from kerasbert.base.files import json_in, remove, write_text
from kerasbert.base.paths import as_path
from kerasbert.base.storage import find, folders_in, join
from kerasbert.base.strict_json import to_json
from kerasbert.data.corpus import corpus_bytes, describe_files
from kerasbert.data.corpus_files import READING, as_paths
from kerasbert.data.example_batches import read_examples
from kerasbert.data.examples import one_sided, write_examples
from kerasbert.data.manifest import read_manifest
from kerasbert.data.vocabulary import vocab
from kerasbert.training.pretraining_folder import SETTINGS, as_saved
from kerasbert.training.recording import Pulse, mean_scores, short_names

EXAMPLES = "examples"
# Approximate number of shards, so that a small share can be held out.
SHARDS = 100


def train_vocabulary(corpus, examples, output, settings, line):
    """Train a vocabulary, unless the output folder has one."""
    if examples is not None:
        raise ValueError(
            "The examples were made with a vocabulary: pass it as `vocabulary` (a vocab.txt, or a "
            "preset that has it)."
        )
    names = ("text_key", "encoding", "errors")
    reading = {name: value for name, value in settings.read.items() if name in names}
    made = {"size": settings.vocabulary_size, "lowercase": settings.lowercase, **reading}
    made_of = as_saved({"corpus": corpus, **made})
    folder = os.path.join(output, "vocabulary")
    path = os.path.join(folder, SETTINGS)
    if json_in(folder, SETTINGS) == made_of:
        return
    remove(path)
    line.say(f"training a vocabulary of {settings.vocabulary_size:,} tokens")
    pulse = Pulse(line.say)
    vocab(
        corpus,
        folder,
        overwrite=True,
        workers=settings.workers,
        progress=lambda what, share: pulse.tick(lambda: f"{what}, {share:.0%}"),
        **made,
    )
    write_text(path, to_json(made_of))


def given_examples(corpus):
    """Return a dict of sequence length to examples, or `None` if `corpus` is text."""
    if isinstance(corpus, dict):
        return {int(length): files for length, files in corpus.items()}
    if not isinstance(corpus, (str, os.PathLike)):
        return None
    # A folder of examples, or of such folders.
    corpus, found = as_path(corpus), {}
    for folder in (corpus, *folders_in(corpus)):
        manifest = read_manifest(folder)
        if manifest is not None and "sequence_length" in manifest.get("settings", {}):
            found[manifest["settings"]["sequence_length"]] = folder.rstrip("/")
    return found or None


def made_examples(output, settings):
    """Return a dict of sequence length to the folder of `make_examples`."""
    return {length: join(output, EXAMPLES, str(length)) for length in settings.lengths}


def make_examples(corpus, output, tokenizer, settings, resumed, line):
    """Make the examples of each sequence length, unless they exist."""
    arguments = {"objective": settings.rows, "copies": settings.copies, "seed": settings.seed}
    arguments |= {"cut_sentences": settings.cut_sentences, **settings.read}
    if settings.masking == "static":
        # `unit` of `mask_tokens` is `mask_unit` of `write_examples`.
        names = {"unit": "mask_unit"}
        arguments |= {names.get(name, name): x for name, x in (settings.hiding or {}).items()}
    told = False
    for length, folder in made_examples(output, settings).items():
        manifest = read_manifest(folder)
        if resumed and manifest is not None and manifest["complete"]:
            continue  # Not compared with the corpus, to save reading it.
        if not told:
            reading = {x: arguments[x] for x in arguments.keys() & set(READING)}
            for text in describe_files(corpus, **reading):
                line.say(text)
            told = True
        line.say(f"making examples of {length} tokens")
        pulse = Pulse(line.say)
        shard_bytes = corpus_bytes(corpus) // SHARDS
        block_bytes = min(max(shard_bytes, 1 << 16), 1 << 20)
        write_examples(
            corpus,
            folder,
            tokenizer,
            sequence_length=length,
            workers=settings.workers,
            progress=lambda share, count, pulse=pulse: pulse.tick(
                lambda: f"{share:.0%} of the text, {count:,} examples"
            ),
            block_bytes=block_bytes,
            blocks_per_shard=min(max(shard_bytes // block_bytes, 1), 16),
            **arguments,
        )


def split(examples, settings, line):
    """Hold out a share of the shards, and return a dict of length to `(training, held out)`.

    Both are arguments of `read_examples`, or `None` if nothing is held out.
    """
    parts, share = {}, settings.held_out
    for length in settings.lengths:
        if length not in examples:
            raise ValueError(
                f"There are no examples of {length} tokens, only of "
                f"{', '.join(map(str, sorted(examples)))}; set phases to those, or make more."
            )
        files = examples[length]
        manifest = read_manifest(files) if isinstance(files, (str, os.PathLike)) else None
        if manifest is None:
            paths = [path for given in as_paths(files) for path in find(given)[1]]
            named = sorted(path for path in paths if ".tfrecord" in os.path.basename(path))
            train, held = _split_list(named or paths, share)
            parts[length] = {"files": train}, ({"files": held} if held else None)
        else:
            _check_manifest(manifest, files, length, settings)
            train, held = _split_list(manifest["shards"], share)
            parts[length] = (
                {"files": files, "shards": [shard["name"] for shard in train]},
                {"files": files, "shards": [shard["name"] for shard in held]} if held else None,
            )
        if share and not parts[length][1]:
            line.say(f"all examples of {length} tokens are in one file: none are held out")
    return parts


def _check_manifest(manifest, folder, length, settings):
    made, examples = manifest["settings"], f"The examples in '{folder}'"
    read = f", which {settings.objective!r} reads" if settings.replaces else ""
    for is_wrong, message in (
        (
            made["objective"] != settings.rows,
            f"were made with objective={made['objective']!r}, not {settings.rows!r}{read}; pass "
            "the objective of the examples.",
        ),
        (
            settings.cut_sentences and not made.get("cut_sentences"),
            "were made without cut_sentences=True; leave it out, or pass the text.",
        ),
        (
            made["sequence_length"] != length,
            f"have {made['sequence_length']} tokens, not {length}.",
        ),
        (not manifest["complete"], "are incomplete; run `write_examples` again to resume."),
    ):
        if is_wrong:
            raise ValueError(f"{examples} {message}")
    counts = manifest["counts"]
    if settings.rows == "next_sentence" and counts["documents"] == counts["sentences"]:
        raise ValueError(one_sided(f"The text of the examples in '{folder}'", counts["documents"]))


def _split_list(items, share):
    """Take a share of items, at least one and evenly spaced: `(rest, taken)`.

    >>> _split_list([0, 1, 2, 3, 4, 5], 0.3)
    ([0, 2, 3, 5], [1, 4])
    """
    count = max(1, round(share * len(items))) if share and len(items) > 1 else 0
    taken = {int((number + 0.5) * len(items) / count) for number in range(count)}
    return (
        [item for place, item in enumerate(items) if place not in taken],
        [item for place, item in enumerate(items) if place in taken],
    )


class Data:
    """Batches for training and evaluation.

    Args:
        parts: dict of sequence length to `(training, held out)`.
        tokenizer: the tokenizer.
        group: a `kerasbert.distribution.Together`.
        **settings: settings of `read_examples`.
    """

    def __init__(self, parts, tokenizer, group, **settings):
        self.parts, self.group = parts, group
        self.settings = {"tokenizer": tokenizer, "shard": group.shard, **settings}

    def training(self, phase, accumulate, seed, start, masker):
        """Return a phase's batches from `start` on, `accumulate` per update."""
        batches = read_examples(
            **self.parts[phase.sequence_length][0],
            batch_size=phase.batch_size // accumulate,
            seed=seed,
            start_step=start,
            **{**self.settings, "masker": masker},
        )
        return backend.of_this_process(batches)

    def held_out(self, phase, accumulate, examples=None):
        """Return the held-out batches, always with the same order and masks, or `None`."""
        batches, size = self._held_out(phase, accumulate)
        if examples is not None and batches is not None:
            batches = batches.take(max(1, examples // size))
        return backend.of_this_process(batches)

    def _held_out(self, phase, accumulate):
        part, size = self.parts[phase.sequence_length][1], phase.batch_size // accumulate
        # Larger batches are faster, and fit into memory without gradients.
        size *= -(-4096 // (phase.sequence_length * size))
        if part is None:
            return None, size
        batches = read_examples(
            **part, batch_size=size, shuffle_buffer=0, repeat=False, **self.settings
        )
        return batches, size

    def tokens_per_step(self, phase):
        """Estimate the number of tokens per update from a thousand examples."""
        part, size = self.parts[phase.sequence_length][0], 100 * self.group.shard[1]
        batches = read_examples(**part, batch_size=size, shuffle_buffer=0, **self.settings)
        lengths = [
            x["padding_mask"].sum(axis=1) for x, _, _ in batches.take(10).as_numpy_iterator()
        ]
        return float(np.concatenate(lengths).mean()) * phase.batch_size

    def scores(self, model, phase, accumulate, second):
        """Return losses and metrics on all held-out examples, and majority baselines."""
        batches = self.held_out(phase, accumulate)
        if batches is None:
            return {}
        scores = short_names(model.evaluate(batches, verbose=0, return_dict=True), second)
        processes = self.group.processes
        scores = mean_scores(scores, processes)
        tokens = np.zeros(model.preprocessor.tokenizer.vocabulary_size())
        classes = np.zeros(2)
        for _, y, weights in self._held_out(phase, accumulate)[0].as_numpy_iterator():
            np.add.at(tokens, y["mlm_logits"][weights["mlm_logits"] > 0], 1)
            if "nsp_logits" in y:
                np.add.at(classes, y["nsp_logits"][weights["nsp_logits"] > 0], 1)
        tokens, classes = (np.array(processes.sum(x.tolist())) for x in (tokens, classes))
        scores["mlm_accuracy_of_commonest_token"] = float(tokens.max() / tokens.sum())
        if (share := scores.get("detection_replaced")) is not None:
            scores["detection_accuracy_of_commonest_label"] = max(share, 1 - share)
        if classes.any():
            name = f"{second}_accuracy_of_commonest_label"
            scores[name] = float(classes.max() / classes.sum())
        return scores
