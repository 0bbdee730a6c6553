"""`pretrain`: train an encoder from text, or from examples, and save it as a preset.

Shapes: B batch, T tokens, P predictions.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import shutil
import tempfile
import warnings
from typing import TYPE_CHECKING

import keras
import numpy as np

from kerasbert import backend
from kerasbert.base.errors import check_whole, how_to_install
from kerasbert.base.files import (
    as_path,
    is_url,
    json_in,
    new_folder,
    output_folder,
    remove,
    temporary_folder,
    write_json,
    write_text,
)
from kerasbert.base.finite import NonFiniteError, StopAtNonFinite, check_weights
from kerasbert.base.process import handled_signals
from kerasbert.base.storage import HUBS, WorkingFolder, exists, find, get, get_folder, join
from kerasbert.base.strict_json import to_json
from kerasbert.data.vocabulary import vocab
from kerasbert.distribution import together
from kerasbert.heads.electra_pretrainer.model import OWN
from kerasbert.models import (
    BertBackbone,
    BertMaskedLM,
    BertPreprocessor,
    BertPretrainer,
    BertPretrainerPreprocessor,
    BertReplacedTokenDetector,
    BertTextEmbedder,
    BertTokenizer,
    ElectraPretrainer,
    ElectraPretrainerPreprocessor,
)
from kerasbert.optimizers import (
    MUON_PARTS,
    AdamW,
    Lamb,
    LinearDecay,
    Muon,
    WarmupStableDecay,
)
from kerasbert.presets import NoHeadError
from kerasbert.tokenizers import tokenizer_from_files
from kerasbert.training.pretraining_data import (
    EXAMPLES,
    Data,
    given_examples,
    made_examples,
    make_examples,
    split,
)
from kerasbert.training.recording import (
    CURVES,
    LOG,
    Line,
    Pulse,
    Recorder,
    draw_curves,
)
from kerasbert.training.resuming import (
    checkpoint_facts,
    find_checkpoint,
    load_checkpoint,
    load_optimizer,
    remove_older,
    save_checkpoint,
)
from kerasbert.training.settings import PretrainSettings, takes_settings
from kerasbert.upload import write_card

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import AnyPath, Corpus

SETTINGS = "settings.json"
# Written when a training diverged; the next call may then change the settings `_MAY_CHANGE`.
DIVERGED = "diverged.json"
_MAY_CHANGE = ("learning_rate", "schedule", "warmup_steps", "decay_share", "weight_decay")
# The folder of the generator that is trained with an ELECTRA encoder.
GENERATOR = "generator"
# Number of examples of a periodic evaluation.
SAMPLE = 2000


@takes_settings(PretrainSettings)
def pretrain(corpus: Corpus, output: AnyPath, *, settings: PretrainSettings) -> dict[str, Any]:
    """Pre-train an encoder on masked tokens and sentence pairs, from text to a preset.

    Trains a new encoder, or continues training a preset on text of your domain. The recipe is
    BERT's (linear warmup and decay, nine tenths of the steps at length 128, the rest at 512),
    except that new encoders use Muon, which is ahead of Adam in equal time
    (benchmarks/notes/recipe.md). `optimizer="adamw"` is BERT's, with decoupled weight decay and no
    bias correction.

    `output` holds `preset`, for `from_preset`, with its model card; `log.jsonl` and `curves.png`;
    the newest checkpoint; and the `vocabulary` and `examples` made on the way. The same call
    resumes an interrupted training from its checkpoint and ends with the same weights as an
    uninterrupted one, bit-identical on the same machine and backend if the backend is
    deterministic, as on CPUs. Ctrl-C stops after writing a checkpoint.

    Processes started by a launcher (see `kerasbert.distribution.join`) train together, with the
    same batches as a single process: each reads its part, and the first one writes to `output`,
    which all must access. Any number of processes can resume a checkpoint.

    Args:
        corpus: text, as for `kerasbert.data.documents`; or examples: a folder of `write_examples`,
            or a dict of sequence length to such folders (or TFRecord files).
        output: path of a folder, or a URL such as "s3://bucket/mini". At a URL, files are
            transferred atomically after each checkpoint and at the end; of two runs that write to
            one URL, the one started last continues and the other stops.
        preset: string. An encoder to continue training, with its heads if it has them; or the
            `output` of an earlier training.
        num_layers, hidden_dim, num_heads, intermediate_dim: ints. The size of a new encoder; by
            default 12 layers, width 768, heads of width 64, and four times `hidden_dim`.
        family: string. Family of a new encoder, by default "bert"; see `kerasbert.families`.
        encoder: dict. Other arguments of `BertBackbone`, for new and loaded encoders.
        generator: dict. For "replaced_tokens": see `ElectraPretrainer`.
        teacher: string. An embedder to distill from: the mean of the token outputs also learns to
            match its text embeddings. It must have the encoder's vocabulary and width, as
            "minilm_mini_demo_en" has those of "bert_mini_demo_en_uncased". See `BertPretrainer`.
        teacher_weight: float. The weight of the distillation loss, by default 10.
        vocabulary: a tokenizer, a `vocab.txt`, or a preset or folder with one, such as the output
            of `kerasbert.vocab(..., kind="unigram")`. `None` takes the preset's, or trains a
            WordPiece vocabulary on the corpus.
        vocabulary_size: int. Size of a trained vocabulary.
        lowercase: bool. For a trained vocabulary, or a plain `vocab.txt`.
        reading: dict. Settings of `documents` for the corpus.
        objective: string. "next_sentence", "sentence_order" or "full_sentences", see
            `write_examples`; the last has no second task, and its new encoders have no pooler. Or
            "replaced_tokens", ELECTRA's, on examples of full sentences: see `ElectraPretrainer`.
            The family then defaults to "electra", with embeddings of width 128 if the encoder is
            narrower than 768; the written `preset` is the detector, and the folder `generator`
            beside it holds the generator, a `BertMaskedLM`.
        cut_sentences: bool. Fill rows of full sentences to the last token and split sentences
            there; otherwise a sentence that does not fit starts the next row.
        steps: int. Number of weight updates, for the default `phases`.
        batch_size: int. Examples per update, for the default `phases`.
        phases: list of `(sequence_length, steps, batch_size)`, trained in this order.
        optimizer: string. "adamw", "lamb" for large batches, or "muon" for the layers' matrices
            with Adam for the rest; see `kerasbert.optimizers`. `None` means Muon for a new encoder
            or a kept optimizer state, and AdamW for a preset's encoder and for replaced tokens.
        learning_rate: float. The peak; `None` means 1e-4 for AdamW, 1e-3 for LAMB, 3e-3 for Muon.
        schedule: string. After the warmup, "linear" falls steadily to 0; "wsd" (warmup, stable,
            decay) stays constant and falls to 0 in the last steps, see `WarmupStableDecay`.
        warmup_steps: int. `None` means a hundredth of all steps, as for BERT, but at least 1,000,
            or a fifth of them if fewer than 5,000: Adam's second moment averages over that many,
            and with fewer, a small encoder never learned more than word frequencies.
        decay_share: float. For "wsd": share of the steps in which the rate decays, by default 0.2.
        weight_decay: float. Not applied to biases and norms.
        ema_momentum: float. Momentum, such as 0.999, of a moving average of the weights, used for
            the preset and the final scores, but not for the training and its log. `None` uses the
            last weights.
        optimizer_state: string. "new", or "kept" to continue with that of an earlier training,
            whose `output` is the `preset`; the schedule starts again.
        finetuning_learning_rate: float. The learning rate for fine-tuning to record in the preset;
            `finetune(..., learning_rates=[...], record_rate=True)` searches for one.
        accumulate: int. Number of parts to split each batch into, to save memory.
        precision: string. "float32", "mixed_bfloat16" or "mixed_float16"; weights stay in float32.
        masking: string. "dynamic" masks again in every epoch, "static" masks once.
        masker: dict. Settings of `mask_tokens`, such as
            `{"mask_selection_rate": 0.3, "unit": "word"}`. Of two rates, such as `(0.3, 0.15)`, the
            first changes linearly to the second over all phases; held-out examples use the second.
        copies: int. Number of passes over the corpus when making examples.
        held_out: float. Share of the examples, in whole shards, held out for evaluation.
        seed: int.
        log_every: int. Steps between lines of the log; by default 1/200 of all, from 10 to 100.
        evaluate_every: int. Steps between evaluations on 2,000 held-out examples, a multiple of
            `log_every`; by default 1/20 of all. The final evaluation uses all held-out examples.
        checkpoint_every: int. Steps between checkpoints, a multiple of `log_every`; by default
            `evaluate_every`, at most 1,000.
        resume: bool. `False` starts over, and removes an earlier checkpoint, log and preset.
        jit_compile: bool or "auto", as in `keras.Model.compile`.
        devices: int. Devices of this process that share each batch, on JAX and TensorFlow; several
            processes use all of theirs.
        mesh: tuple or string. On JAX, `(2, 4)` or "2x4": numbers of devices that share each batch,
            and that each layer is sharded over.
        tensorboard: bool. Write to the folder `tensorboard` in `output`.
        callbacks: list of Keras callbacks. Their epochs are the intervals of the log.
        card: dict. Further facts for the model card; see `upload_preset`.
        workers: int. Processes that count words and make examples.
        verbose: bool.

    Returns:
        A dict: `model`, a `BertPretrainer` or `ElectraPretrainer`; `preset`, its folder; `steps`;
        and `scores` on the held-out examples.

    Raises:
        ValueError: for invalid settings, and if `output` has a training with other settings.
        ImportError: if `tensorboard` is requested but not installed.
        ConnectionError: if another process ended.
        FloatingPointError: if a loss is NaN or infinite, with the step and likely causes; the last
            finite checkpoint stays, and the same call with a lower learning rate resumes from it.
        KeyboardInterrupt: when stopped; the same call resumes.

    Source: Devlin et al. 2019, arXiv 1810.04805, appendix A.2; LAMB You et al. 2020, arXiv
    1904.00962; replaced tokens Clark et al. 2020, arXiv 2003.10555; higher masking rates Wettig et
    al. 2022, arXiv 2202.08005; a falling masking rate Yang et al. 2022, arXiv 2208.10806.
    """
    output = output_folder(output, "output", urls=True)
    with together(settings.devices, settings.mesh, share_batches=False) as group:
        settings.check_replicas(group.replicas)
        with WorkingFolder(output, "pretrain", (EXAMPLES,)) as place, temporary_folder() as copies:
            return _pretrain(corpus, place, copies, settings, group)


def _pretrain(corpus, place, copies, settings, group):
    processes, output = group.processes, place.folder

    def first(function):
        """Call a function in the first process, then share its files with the others."""
        processes.first(lambda: (function(), place.push()))
        if not processes.is_first:
            place.pull()

    # All processes work on the first one's files, in a place that all can access.
    processes.first(place.own)
    if not processes.is_first:
        place.pull()
    given = _fetched(settings.preset, copies, (EXAMPLES,))
    preset, earlier = _earlier_run(given, settings.optimizer_state)
    if not settings.resume:
        first(lambda: _start_over(output))
    line = Line(settings.verbose and processes.is_first)
    if processes.count > 1:
        line.say(f"{processes.count} processes, {group.replicas} devices share each batch")
    saved = {"corpus": corpus, **settings.compared(), "backend": backend.name()}
    saved = json.loads(to_json(saved, default=_described))
    resumed = _is_resumed(output, saved)
    keras.utils.set_random_seed(settings.seed)
    examples = given_examples(corpus)
    vocabulary = _fetched(settings.vocabulary, copies)
    if vocabulary is None and preset is None:
        vocabulary = os.path.join(output, "vocabulary")
        first(lambda: _train_vocabulary(corpus, examples, output, settings, line))
    teacher = _fetched(settings.teacher, copies)
    model = _model(preset, tokenizer_of(vocabulary, settings.lowercase), settings, teacher)
    tokenizer = model.preprocessor.tokenizer
    if examples is None:
        made = corpus, place.output, tokenizer, settings, resumed, line
        processes.first(lambda: make_examples(*made))
        examples = made_examples(place.output, settings)
    data = Data(
        split(examples, settings, line),
        tokenizer,
        group,
        masking=settings.masking,
        masker=settings.hiding,
        next_sentence=settings.has_pairs,
        num_segments=min(model.backbone.num_segments, 2),
    )
    is_kept = earlier is not None and settings.optimizer_state == "kept"
    start = checkpoint_facts(earlier)["batches"] if is_kept else 0
    optimizer = _optimizer(settings, start, model.backbone)
    model.compile(optimizer, jit_compile=settings.jit_compile)
    model.optimizer.build(model.trainable_variables)
    # Keras overwrites the weights with their averages at the end of each `fit`. There is a `fit`
    # per phase, so this is done below instead, after the last phase.
    model.optimizer.finalize_variable_values = lambda weights: None
    if is_kept:
        load_optimizer(earlier, model)
    first(lambda: _write_settings(output, saved))
    newest = find_checkpoint(output)
    step = 0
    if newest:
        step = load_checkpoint(newest, model)[0]["step"]
        line.say(f"resuming after step {step:,} of {settings.total:,}")
    backend.share_steps(model, processes.count)
    second = "sop" if settings.objective == "sentence_order" else "nsp"
    recorder = Recorder(
        output,
        step,
        settings.total,
        settings.accumulate,
        settings.checkpoint_every,
        functools.partial(_save, place, processes.is_first),
        second,
        line,
        processes,
    )

    def place_of(epoch, batches):
        return f"step {recorder.after(batches):,} of {settings.total:,}"

    # `save_checkpoint` checks the weights; a check per line of the log would be slow.
    callbacks = [StopAtNonFinite(weights=False, place=place_of), recorder, *settings.callbacks]
    if settings.tensorboard and processes.is_first:
        folder = os.path.join(output, "tensorboard")
        callbacks.append(keras.callbacks.TensorBoard(folder, write_graph=False))
    try:
        with line, handled_signals(recorder.stop):
            for number in range(len(settings.phases)):
                _train(model, number, data, recorder, callbacks, settings)
        del model.optimizer.finalize_variable_values
        model.optimizer.finalize_variable_values(model.trainable_variables)
        line.say("evaluating")
        scores = data.scores(model, settings.phases[-1], settings.accumulate, second)
        _check_scores(scores, settings.total)
        check_weights(model.weights, "The training diverged")
    except NonFiniteError as error:
        step = recorder.step + 1 if error.step is None else recorder.after(error.step)
        raise _diverged(error, step, place, processes, settings) from None
    model = backend.of_one_process(model, processes.count)
    written = model, output, recorder.log, scores, saved, settings.card, line
    processes.first(lambda: (_write_preset(*written), remove_older(output), place.push()))
    preset = join(place.output, "preset")
    return {"model": model, "preset": preset, "steps": recorder.step, "scores": scores}


# === Existing files ===


def _fetched(given, copies, left_out=()):
    """Return a local path, or copy a URL's file or folder into `copies` and return its path."""
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


def _earlier_run(preset, optimizer_state):
    """Return `(preset, checkpoint)`; resolves a preset that is the output of a training."""
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


def _is_resumed(output, settings):
    """Return whether `output` has a training with these settings; raise if they differ."""
    before = json_in(output, SETTINGS)
    if not before:
        return False
    # Earlier versions did not have these settings.
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


def _write_settings(output, settings):
    write_text(os.path.join(output, SETTINGS), to_json(settings, indent=1))
    # From here on, all settings must stay the same again.
    remove(os.path.join(output, DIVERGED))


def _described(value):
    """Return the JSON form of a value in the settings."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return getattr(value, "__qualname__", type(value).__name__)


def _start_over(output):
    """Remove a training's files except vocabulary and examples, which are checked before reuse."""
    for name in (SETTINGS, LOG, CURVES, "preset", GENERATOR, "tensorboard", DIVERGED):
        remove(os.path.join(output, name))
    while newest := find_checkpoint(output):
        os.remove(newest)


# === Vocabulary and model ===


def _train_vocabulary(corpus, examples, output, settings, line):
    """Train a vocabulary on the corpus, unless that is already done."""
    if examples is not None:
        raise ValueError(
            "The examples were made with a vocabulary: pass it as `vocabulary` (a vocab.txt, or a "
            "preset that has it)."
        )
    names = ("text_key", "encoding", "errors")
    reading = {name: value for name, value in (settings.reading or {}).items() if name in names}
    made = {"size": settings.vocabulary_size, "lowercase": settings.lowercase, **reading}
    made_of = json.loads(to_json({"corpus": corpus, **made}, default=_described))
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


def tokenizer_of(vocabulary, lowercase):
    """Load the tokenizer of a file, a folder or a preset; `None` stays `None`."""
    if not isinstance(vocabulary, (str, os.PathLike)):
        return vocabulary
    path = os.path.expanduser(os.fspath(vocabulary))
    if os.path.isdir(path) and os.path.exists(os.path.join(path, "vocab.txt")):
        return BertTokenizer.from_files(path)
    if os.path.isdir(path) and os.path.exists(os.path.join(path, "spiece.model")):
        return tokenizer_from_files(path, "albert")
    if not os.path.isfile(path):
        return BertPreprocessor.from_preset(path).tokenizer
    folder, name = os.path.split(path)
    if name == "vocab.txt" and os.path.exists(os.path.join(folder, "tokenizer_config.json")):
        return BertTokenizer.from_files(folder)
    return BertTokenizer(path, lowercase=lowercase)


def _model(preset, tokenizer, settings, teacher=None):
    """Make a new model, or load a preset's with new heads where it has none."""
    length = max(settings.lengths)
    names = ("num_layers", "hidden_dim", "num_heads", "intermediate_dim", "family")
    size = {name: getattr(settings, name) for name in names if getattr(settings, name) is not None}
    encoder = {"dtype": settings.precision}
    if settings.finetuning_learning_rate is not None:
        encoder["finetuning_learning_rate"] = settings.finetuning_learning_rate
    encoder |= settings.encoder or {}
    heads = {}
    if not settings.replaces:
        heads["next_sentence"] = settings.has_pairs
    if settings.has_pairs:
        heads["sentence_order"] = settings.objective == "sentence_order"
    if teacher is not None:
        heads["teacher"] = BertTextEmbedder.from_preset(teacher, dtype=settings.precision)
        if settings.teacher_weight is not None:
            heads["teacher_weight"] = settings.teacher_weight
    kind = ElectraPretrainerPreprocessor if settings.replaces else BertPretrainerPreprocessor
    if tokenizer is None and settings.replaces:
        tokenizer = BertPreprocessor.from_preset(preset).tokenizer
    if tokenizer is not None:
        heads["preprocessor"] = kind(tokenizer, sequence_length=length)
    if preset is not None:
        if size:
            raise ValueError(
                f"{', '.join(size)} cannot be set, because the encoder of '{preset}' has its own; "
                "leave them out, or leave out preset for a new encoder."
            )
        if settings.replaces:
            return _loaded_electra(preset, heads["preprocessor"], settings.generator, encoder)
        return _loaded(preset, {"sequence_length": length, **heads, **encoder})
    family = "electra" if settings.replaces else "bert"
    size = {"family": family, "num_layers": 12, "hidden_dim": 768, **size}
    for name in ("num_layers", "hidden_dim"):
        check_whole(name, size[name])
    width = size["hidden_dim"]
    if "num_heads" not in size and width % 64:
        raise ValueError(
            f"hidden_dim={width} is not a multiple of 64, the default head size; pass num_heads."
        )
    if settings.replaces and settings.family is None and 128 < width < 768:
        encoder = {"embedding_dim": 128, **encoder}  # as ELECTRA-small
    backbone = BertBackbone.from_family(
        **{
            "vocabulary_size": tokenizer.vocabulary_size(),
            "num_heads": width // 64,
            "intermediate_dim": 4 * width,
            "max_sequence_length": length,
            "pooler": settings.has_pairs,
            **size,
            **encoder,
        }
    )
    if settings.replaces:
        return ElectraPretrainer(backbone, generator=settings.generator, **heads)
    return BertPretrainer(backbone, **heads)


def _loaded(preset, arguments):
    """Load a preset's encoder and those of its heads that exist."""
    if "preprocessor" in arguments:
        arguments.pop("sequence_length")
    if (rate := arguments.pop("dropout", None)) is not None:
        return _with_dropout(_loaded(preset, arguments), rate, arguments)
    try:
        return BertPretrainer.from_preset(preset, **arguments)
    except NoHeadError:
        pass
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The warning would name all heads, even existing ones.
        model = BertPretrainer.from_preset(preset, new_head=True, **arguments)
    new = "its heads are"
    with contextlib.suppress(NoHeadError):
        masked = BertMaskedLM.from_preset(preset, preprocessor=None)
        _copy(masked.mlm_head, model.mlm_head)
        new = "the head of the sentences is"
    warnings.warn(f"'{preset}' lacks heads that this training needs: {new} new.", stacklevel=3)
    return model


def _with_dropout(model, rate, arguments):
    """Copy a model and set its encoder's dropout; the `dropout` of `from_preset` is the head's."""
    config = {**model.backbone.get_config(), "dropout": rate}
    settings = {**model.get_config(), "preprocessor": model.preprocessor}
    settings |= {
        name: arguments[name] for name in ("teacher", "teacher_weight") if name in arguments
    }
    backbone = type(model.backbone).from_config(config)
    copy = BertPretrainer.from_config({**settings, "backbone": backbone})
    for weight, new in zip(model.weights, copy.weights, strict=True):
        new.assign(keras.ops.convert_to_numpy(weight))
    return copy


def _loaded_electra(preset, preprocessor, generator, encoder):
    """Load a preset's encoder and detector, and its training's generator if there is one."""
    new, masked, beside = [], None, os.path.join(os.path.dirname(preset), GENERATOR)
    if os.path.basename(preset) == "preset" and os.path.isdir(beside):
        if generator:
            raise ValueError(
                f"generator={generator!r} cannot be set, because '{beside}' has its own settings; "
                "leave it out, or pass a preset without a generator beside it."
            )
        masked = BertMaskedLM.from_preset(beside, preprocessor=None)
        own = masked.backbone.get_config()
        generator = {name: own[name] for name in OWN}
    else:
        new.append("the generator")
    encoder = {**encoder, "preprocessor": None}
    try:
        detector = BertReplacedTokenDetector.from_preset(preset, **encoder)
    except NoHeadError:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # A warning about the unused masked-LM head.
            detector = BertReplacedTokenDetector.from_preset(preset, new_head=True, **encoder)
        new.append("the head of the detector")
    model = ElectraPretrainer(detector.backbone, preprocessor, generator)
    _copy(detector, model.detector)
    if masked:
        _copy(masked, model.masked_lm)
    if new:
        said = " and ".join(new) + (" are" if len(new) > 1 else " is")
        warnings.warn(f"'{preset}' lacks some of what is trained here: {said} new.", stacklevel=3)
    return model


def _copy(source, target):
    """Copy weights, matched by path, into a part of a pre-trainer."""
    values = {weight.path: weight for weight in source.weights}
    for weight in target.weights:
        weight.assign(values[weight.path.removeprefix("generator/")])


def _optimizer(settings, start, backbone):
    """Make the optimizer and its schedule; both count batches, the schedule from `start`."""
    parts = settings.accumulate
    steps = settings.total * parts, settings.warmup_steps * parts
    rate = float(settings.learning_rate)
    if settings.schedule == "wsd":
        decay_steps = round(settings.decay_share * settings.total) * parts
        schedule = WarmupStableDecay(rate, *steps, decay_steps, start=start)
    else:
        schedule = LinearDecay(rate, *steps, start=start)
    own = {}
    if settings.ema_momentum is not None:
        # Keras averages after each batch, not each update.
        own = {"use_ema": True, "ema_momentum": settings.ema_momentum ** (1 / parts)}
    if settings.optimizer == "adamw":
        own["bias_correction"] = False
    elif settings.optimizer == "muon" and backbone.gated_mlp:
        own["parts"] = {**MUON_PARTS, "intermediate": 2}
    return {"adamw": AdamW, "lamb": Lamb, "muon": Muon}[settings.optimizer](
        schedule,
        weight_decay=settings.weight_decay,
        gradient_accumulation_steps=parts if parts > 1 else None,
        **own,
    )


# === Training ===


def _train(model, number, data, recorder, callbacks, settings):
    """Train the rest of a phase, given its index."""
    phase, before = settings.phases[number], settings.phases[:number]
    every, parts = settings.log_every, settings.accumulate
    start = sum(one.steps for one in before)
    end = start + phase.steps
    # Keras' epochs, which are intervals here, are numbered across phases.
    number_of_first = sum(-(-one.steps // every) for one in before)
    seed = int(np.random.SeedSequence((settings.seed, number)).generate_state(1)[0])
    facts = {"phase": number + 1, "sequence_length": phase.sequence_length}
    tokens = None
    while recorder.step < end:
        done, left = recorder.step - start, end - recorder.step
        # One call trains whole intervals; a partly done or shorter last one gets its own call.
        inside = done % every
        length = min(every - inside, left)
        intervals = 1 if inside else max(1, left // every)
        tokens = tokens or data.tokens_per_step(phase)
        recorder.start_phase(start, end, facts, tokens)
        first = number_of_first + done // every
        model.fit(
            data.training(phase, parts, seed, done * parts, settings.hiding_in(number)),
            steps_per_epoch=length * parts,
            initial_epoch=first,
            epochs=first + intervals,
            validation_data=data.held_out(phase, parts, SAMPLE),
            validation_freq=max(1, settings.evaluate_every // every),
            callbacks=callbacks,
            verbose=0,
        )
        if recorder.stopped:
            raise KeyboardInterrupt(
                f"Stopped after step {recorder.step:,}, which is saved; the same call resumes."
            )


def _save(place, write, model, step):
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    # The schedule's position; it counts batches, not updates.
    batches = int(keras.ops.convert_to_numpy(optimizer.iterations))
    batches *= optimizer.gradient_accumulation_steps or 1
    # The previous checkpoint is kept until a finite loss has followed this one.
    save_checkpoint(place.folder, model, step, write=write, keep_older=True, batches=batches)
    if write:
        place.push()


def _check_scores(scores, step):
    for name, value in scores.items():
        if name.endswith("loss") and not math.isfinite(value):
            raise NonFiniteError(
                f"The {name} is {value:g} after the last step, {step:,}: the training diverged, "
                "probably because the learning rate is too high."
            )


def _diverged(error, step, place, processes, settings):
    """Keep the last finite checkpoint, and return the error to raise.

    Args:
        error: the `NonFiniteError` that ended the training.
        step: int. The first step with a non-finite loss or weight.
        place: a `WorkingFolder`.
    """
    if not processes.is_first:
        return error
    newest = find_checkpoint(place.folder)
    if newest and checkpoint_facts(newest)["step"] == step - 1:
        # Its weights are finite, but the very next loss was not.
        os.remove(newest)
    remove_older(place.folder)
    facts = {"step": step, "learning_rate": settings.learning_rate, "error": str(error)}
    write_json(os.path.join(place.folder, DIVERGED), facts)
    place.push()
    newest = find_checkpoint(place.folder)
    done = checkpoint_facts(newest)["step"] if newest else 0
    return NonFiniteError(
        f"{error} No preset was written. The same call with a learning_rate below "
        f"{settings.learning_rate:g} resumes after step {done:,}, the last finite checkpoint."
        if done
        else f"{error} No preset was written, and there is no earlier finite checkpoint. The same "
        f"call with a learning_rate below {settings.learning_rate:g} starts from step 1."
    )


# === Output ===


def _write_preset(model, output, log, scores, settings, card, line):
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
    """Describe a training as Markdown."""
    # Local folder names and unset options mean nothing to other users.
    named = ["corpus", "preset", "teacher", "vocabulary"]
    if settings["vocabulary"] or settings["preset"]:
        named += ["vocabulary_size", "lowercase"]  # These describe trained vocabularies only.
    settings = {x: y for x, y in settings.items() if x not in named and y is not None}
    seconds = sum(row["seconds"] or 0 for row in log)
    lines = [f"{len(log) and log[-1]['step']:,} updates in {seconds / 3600:.2f} hours, with"]
    lines += ["", "```json", to_json(settings, indent=1), "```"]
    if curves:
        lines += ["", f"![Loss and accuracy by step]({CURVES})"]
    return "\n".join(lines)
