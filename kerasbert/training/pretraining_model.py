"""The model and the optimizer of `pretrain`: new ones, or those of a preset."""

import contextlib
import os
import warnings

import keras

from kerasbert.base.errors import check_whole
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
from kerasbert.optimizers import MUON_PARTS, AdamW, Lamb, LinearDecay, Muon, WarmupStableDecay
from kerasbert.presets import NoHeadError
from kerasbert.text.languages import language_numbers
from kerasbert.text.subword import in_languages
from kerasbert.tokenizers import tokenizer_from_files

# The folder of ELECTRA's generator.
GENERATOR = "generator"


def tokenizer_of(vocabulary, lowercase):
    """Load the tokenizer of a file, folder or preset; return others unchanged."""
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


def pretraining_model(preset, tokenizer, settings, teacher=None):
    """Make a new model, or load a preset's, with new heads for missing ones."""
    length = max(settings.lengths)
    names = ("num_layers", "hidden_dim", "num_heads", "intermediate_dim", "family")
    size = {name: getattr(settings, name) for name in names if getattr(settings, name) is not None}
    encoder = {"dtype": settings.precision}
    if settings.finetuning_learning_rate is not None:
        encoder["finetuning_learning_rate"] = settings.finetuning_learning_rate
    if settings.translates:
        encoder["restarts_positions"] = True
        tokenizer = _with_languages(tokenizer, settings, preset)
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
        encoder = {"embedding_dim": 128, **encoder}  # The width of ELECTRA-small.
    backbone = BertBackbone.from_family(
        **{
            "vocabulary_size": tokenizer.vocabulary_size(),
            "num_heads": width // 64,
            "intermediate_dim": 4 * width,
            "max_sequence_length": length,
            "pooler": settings.has_pairs,
            **({"num_segments": len(tokenizer.languages)} if settings.translates else {}),
            **size,
            **encoder,
        }
    )
    if settings.replaces:
        return ElectraPretrainer(backbone, generator=settings.generator, **heads)
    return BertPretrainer(backbone, **heads)


def _with_languages(tokenizer, settings, preset):
    """Return the tokenizer for translations, with the languages' names."""
    if tokenizer is None:
        tokenizer = BertPreprocessor.from_preset(preset).tokenizer
    if tokenizer.languages is None:
        tokenizer = in_languages(tokenizer, settings.languages, None)
    language_numbers(tokenizer, settings.languages)  # Raises for unknown languages.
    return tokenizer


def _loaded(preset, arguments):
    """Load a preset's encoder and heads; missing heads are new."""
    if "preprocessor" in arguments:
        arguments.pop("sequence_length")
    if (rate := arguments.pop("dropout", None)) is not None:
        return _with_dropout(_loaded(preset, arguments), rate, arguments)
    try:
        return BertPretrainer.from_preset(preset, **arguments)
    except NoHeadError:
        pass
    with warnings.catch_warnings():
        # The warning also names the preset's heads.
        warnings.simplefilter("ignore")
        model = BertPretrainer.from_preset(preset, new_head=True, **arguments)
    new = "its heads are"
    with contextlib.suppress(NoHeadError):
        masked = BertMaskedLM.from_preset(preset, preprocessor=None)
        _copy(masked.mlm_head, model.mlm_head)
        new = "the head of the sentences is"
    warnings.warn(f"'{preset}' lacks heads that this training needs: {new} new.", stacklevel=3)
    return model


def _with_dropout(model, rate, arguments):
    """Return a copy of a model with another dropout rate in its encoder.

    `dropout` of `from_preset` is that of the head.
    """
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
    """Load a preset's encoder and detector, and any generator beside it."""
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
            # A masked-LM head is not used.
            warnings.simplefilter("ignore")
            detector = BertReplacedTokenDetector.from_preset(preset, new_head=True, **encoder)
        new.append("the head of the detector")
    model = ElectraPretrainer(detector.backbone, preprocessor, generator)
    _copy(detector, model.detector)
    if masked:
        _copy(masked, model.masked_lm)
    if new:
        warnings.warn(
            f"'{preset}' has no weights for {' and '.join(new)}, which will be trained from random "
            "weights.",
            stacklevel=3,
        )
    return model


def _copy(source, target):
    """Copy weights by path into a part of a pre-trainer."""
    values = {weight.path: weight for weight in source.weights}
    for weight in target.weights:
        weight.assign(values[weight.path.removeprefix("generator/")])


def pretraining_optimizer(settings, start, backbone):
    """Make the optimizer and its schedule, which counts batches from `start` on."""
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
        # Keras updates the average after each batch, `parts` times per weight update.
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
