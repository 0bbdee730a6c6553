"""`PretrainSettings`: the arguments of `pretrain`, with their defaults and checks."""

import os
from dataclasses import KW_ONLY, dataclass

from kerasbert.base.aliases import AnyPath, Corpus
from kerasbert.base.errors import PRECISIONS, check_choice, check_value, check_whole, need_packages
from kerasbert.training.phases import checked_phases, warmup_of
from kerasbert.training.settings import Settings, setting, two_numbers

# Peak learning rates: BERT's AdamW, LAMB with several hundred rows, Muon for new encoders
# (`benchmarks/recipe.py`).
RATES = {"adamw": 1e-4, "lamb": 1e-3, "muon": 3e-3}


@dataclass(frozen=True)
class PretrainSettings(Settings):
    """The checked arguments of `pretrain`.

    Equal objects can resume each other's training.

    >>> settings = PretrainSettings("books", "out", steps=1000, optimizer="lamb")
    >>> settings.phases[0], settings.learning_rate, settings.warmup_steps, settings.log_every
    (Phase(sequence_length=128, steps=900, batch_size=256), 0.001, 200, 10)
    >>> settings == PretrainSettings("books", "out", steps=1000, optimizer="lamb", workers=2)
    True
    """

    corpus: Corpus | dict[int, Corpus]
    output: AnyPath
    _: KW_ONLY
    preset: str | os.PathLike | None = setting(
        None,
        "Preset, or output of another pretrain, to continue with. Its heads are kept.",
        "Encoder",
    )
    num_layers: int | None = setting(
        None, "Layers of a new encoder; defaults to 12.", "Encoder", name="layers"
    )
    hidden_dim: int | None = setting(
        None, "Width of a new encoder; defaults to 768.", "Encoder", name="hidden"
    )
    num_heads: int | None = setting(
        None,
        "Attention heads of a new encoder; by default each is 64 wide.",
        "Encoder",
        name="heads",
    )
    intermediate_dim: int | None = setting(
        None, "Width of the feed-forward layers; defaults to 4 times `hidden_dim`.", option=False
    )
    family: str | None = setting(
        None,
        "Family of a new encoder: bert, roberta, ...; defaults to bert. See `kerasbert.families`.",
        "Encoder",
    )
    encoder: dict | None = setting(
        None,
        "Further encoder setting, such as dropout=0.0. A dict of arguments of `BertBackbone`, for "
        "new and loaded encoders.",
        "Encoder",
    )
    generator: dict | None = setting(
        None,
        "Generator setting for replaced_tokens, such as hidden_dim=64. See `ElectraPretrainer`.",
        "Encoder",
    )
    teacher: str | os.PathLike | None = setting(
        None,
        "Embedder to distill from; needs the same vocabulary and width. The mean of the encoder's "
        "token outputs is also trained to match this embedder's text embedding. "
        "See `BertPretrainer`.",
        "Encoder",
    )
    teacher_weight: float | None = setting(
        None, "Weight of the distillation loss; defaults to 10.", "Encoder"
    )
    vocabulary: object = setting(
        None,
        "Output of vocab, a vocab.txt or a preset; defaults to the preset's, or to one trained on "
        "CORPUS. May also be a tokenizer. The trained vocabulary has WordPiece tokens; "
        "`kerasbert.vocab` trains other kinds.",
        "Encoder",
    )
    vocabulary_size: int = setting(30522, "Size of a trained vocabulary.", "Encoder")
    lowercase: bool = setting(
        True,
        "Whether a trained vocabulary, or a plain `vocab.txt`, is for lowercased text.",
        "Encoder",
        name="cased",
        help="Keep capitals and accents in a trained vocabulary.",
    )
    reading: dict | None = setting(
        None,
        "How to read the text, such as sentences=lines or text_key=body. A dict of settings of "
        "`kerasbert.data.documents`.",
        "Examples",
    )
    objective: str = setting(
        "next_sentence",
        "next_sentence, sentence_order, full_sentences, translation or replaced_tokens. For the "
        'first four see `write_examples`. "full_sentences" and "translation" have no second task, '
        'and their new encoders have no pooler. With "translation", positions restart at the '
        'translation, and segments are `languages`. "replaced_tokens" is ELECTRA\'s objective, on '
        "examples of full sentences: see "
        '`ElectraPretrainer`. The family then defaults to "electra", with embeddings of width 128 '
        "if the encoder is narrower than 768. The folder `preset` has the detector, and the folder "
        "`generator` beside it has the generator, a `BertMaskedLM`.",
        "Examples",
    )
    languages: list | None = setting(
        None,
        "Column with the text in one language, for translation; repeatable. In Python a list of at "
        "least two columns of tables, or keys of JSON lines, named like the languages. "
        "A row with text in one language only is masked without a translation.",
        "Examples",
        name="language",
        metavar="COLUMN",
    )
    cut_sentences: bool = setting(
        False,
        "Fill rows of full sentences to the last token. `True` splits the last sentence of a row. "
        "With `False`, a sentence that does not fit starts the next row.",
        "Examples",
    )
    steps: int = setting(
        1_000_000,
        "Steps: nine tenths at 128 tokens, the rest at 512. A step is one update of the weights. "
        "Used for the default `phases`.",
        "Training",
        free=True,
    )
    batch_size: int = setting(
        256, "Examples per step. Used for the default `phases`.", "Training", free=True
    )
    phases: list | None = setting(
        None,
        "Phase instead of `steps` and `batch_size`, such as 128:9000:256; repeatable. In Python a "
        "list of `(sequence_length, steps, batch_size)`, trained in this order.",
        "Training",
        name="phase",
        metavar="LENGTH:STEPS:BATCH",
    )
    optimizer: str | None = setting(
        None,
        "adamw, lamb for large batches, or muon for the layers' matrices; defaults to muon for a "
        "new encoder, to adamw for a preset and for replaced_tokens. With muon, Adam trains the "
        'other weights. With optimizer_state="kept", the default is muon, too. See '
        "`kerasbert.optimizers`.",
        "Training",
    )
    learning_rate: float | None = setting(
        None,
        "Peak learning rate; defaults to 1e-4 for adamw, 1e-3 for lamb, 3e-3 for muon.",
        "Training",
    )
    schedule: str = setting(
        "linear",
        "After warmup: linear decay to 0, or wsd, constant before a decay. See `LinearDecay` and "
        "`WarmupStableDecay`.",
        "Training",
    )
    warmup_steps: int | None = setting(
        None,
        "Defaults to 1% of all steps, at least 1,000 but at most 20%. BERT used 1%. Adam's second "
        "moment averages over 1,000 steps, and with fewer warmup steps, a small encoder never "
        "learned more than word frequencies.",
        "Training",
    )
    decay_share: float | None = setting(
        None, "Share of steps in which wsd decays; defaults to 0.2.", "Training"
    )
    weight_decay: float = setting(
        0.01, "Weight decay, which is not applied to biases and norms.", "Training"
    )
    ema_momentum: float | None = setting(
        None,
        "Momentum of a moving average of the weights to save, such as 0.999. The average is used "
        "for the preset and the final scores, but not for the training and its log. `None` uses "
        "the last weights.",
        "Training",
    )
    optimizer_state: str = setting(
        "new",
        "new, or kept: continue with that of the pretrain output in `preset`. The schedule "
        "starts again.",
        "Training",
    )
    finetuning_learning_rate: float | None = setting(
        None,
        "Learning rate for fine-tuning to record in the preset. "
        "`finetune(..., learning_rates=[...], record_rate=True)` searches for one.",
        "Training",
        free=True,
    )
    accumulate: int = setting(
        1, "Number of parts to split each batch into, to save memory.", "Training"
    )
    precision: str = setting(
        "float32",
        "Precision of computations; weights stay in float32.",
        choices=PRECISIONS,
    )
    masking: str = setting(
        "dynamic", "dynamic masks again in every epoch; static masks once.", "Examples"
    )
    masker: dict | None = setting(
        None,
        "Masking setting, such as unit=word or mask_selection_rate=0.3; [0.3,0.15] is a linear "
        "change. A dict of settings of `mask_tokens`. A rate that changes linearly, such as "
        "`(0.3, 0.15)`, reaches its second value at the end of all phases. Held-out examples are "
        "masked at the second rate.",
        "Examples",
        name="mask",
    )
    copies: int = setting(1, "Passes over the text to make examples.", "Examples")
    held_out: float = setting(
        0.01, "Share of examples, in whole shards, held out for evaluation.", "Examples"
    )
    seed: int = setting(0, "Random seed of weights, examples and their order.", "Training")
    log_every: int | None = setting(
        None,
        "Steps per log line; defaults to 1/200 of all, from 10 to 100.",
        "Logs and checkpoints",
    )
    evaluate_every: int | None = setting(
        None,
        "Steps between evaluations; defaults to 1/20 of all. A multiple of `log_every`. These "
        "evaluations use 2,000 held-out examples; the final one uses all.",
        "Logs and checkpoints",
        free=True,
    )
    checkpoint_every: int | None = setting(
        None,
        "Steps between checkpoints; defaults to `evaluate_every`, at most 1,000. A multiple of "
        "`log_every`.",
        "Logs and checkpoints",
        free=True,
    )
    resume: bool = setting(
        True,
        "`False` starts over, and removes an earlier checkpoint, log and preset.",
        free=True,
        name="restart",
        help="Start over and remove previous results in OUTPUT.",
    )
    jit_compile: bool | str = setting(
        "auto",
        "XLA compilation; Keras decides by default. As in `keras.Model.compile`.",
        "Training",
        free=True,
        name="xla/--no-xla",
        type=bool | None,
    )
    devices: int | None = setting(
        None,
        "Devices of this machine that share each batch (jax, tensorflow). If there are several "
        "processes, each uses all its devices.",
        "Training",
        free=True,
    )
    mesh: tuple | str | None = setting(
        None,
        "On jax, such as 2x4: batches are split over 2 devices, each layer over 4.",
        "Training",
        free=True,
        type=str | None,
        metavar="BATCHxMODEL",
    )
    tensorboard: bool = setting(
        False, "Write TensorBoard logs to OUTPUT/tensorboard.", "Logs and checkpoints", free=True
    )
    callbacks: tuple | list = setting(
        (),
        "Keras callbacks. Their epochs are the intervals between lines of the log.",
        free=True,
        option=False,
    )
    card: dict | None = setting(
        None, "Further facts for the model card; see `upload_preset`.", free=True, option=False
    )
    workers: int | None = setting(
        None, "Processes that count words and make examples.", "Examples", free=True
    )
    verbose: bool = setting(True, "Whether to show progress.", free=True, option=False)

    def __post_init__(self):
        from kerasbert.data.sentence_pairs import OBJECTIVES
        from kerasbert.text.languages import check_parallel

        if self.optimizer is None:
            # Muon was measured only for new encoders that predict masked words.
            is_new = self.preset is None or self.optimizer_state == "kept"
            self.choose(optimizer="muon" if is_new and not self.replaces else "adamw")
        for name, known in (
            ("objective", (*OBJECTIVES, "replaced_tokens")),
            ("optimizer", RATES),
            ("schedule", ("linear", "wsd")),
            ("optimizer_state", ("new", "kept")),
            ("masking", ("dynamic", "static")),
            ("precision", PRECISIONS),
        ):
            check_choice(name, getattr(self, name), known)
        if isinstance(self.held_out, bool) or not 0 <= self.held_out < 1:
            raise ValueError(f"held_out={self.held_out!r} must be a share from 0 to below 1.")
        for name in ("decay_share", "ema_momentum"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not 0 < value <= 1):
                raise ValueError(f"{name}={value!r} must be a share above 0, up to 1.")
        unless, rates = f"leave it out for {self.objective!r}.", self.changing_rate or ()
        are_rates = all(type(rate) in (int, float) and 0 < rate <= 1 for rate in rates)
        for is_wrong, message in (
            (
                self.schedule != "wsd" and self.decay_share is not None,
                f"decay_share={self.decay_share!r} needs schedule='wsd'; leave it out for "
                f"{self.schedule!r}.",
            ),
            (
                self.mesh is not None and self.devices is not None,
                f"devices={self.devices} and mesh={self.mesh} both set the number of devices; "
                "leave one out.",
            ),
            (
                self.ema_momentum == 1,
                "ema_momentum=1 would keep the first weights for good; use 0.999.",
            ),
            (
                self.optimizer_state == "kept" and self.preset is None,
                "optimizer_state='kept' continues an earlier training: pass its output as "
                "`preset`.",
            ),
            (
                self.generator and not self.replaces,
                f"generator={self.generator!r} needs objective='replaced_tokens'; {unless}",
            ),
            (
                self.teacher is not None and self.replaces,
                f"teacher={self.teacher!r} cannot be used with objective='replaced_tokens'; leave "
                "it out, or use another objective.",
            ),
            (
                self.teacher_weight is not None and self.teacher is None,
                f"teacher_weight={self.teacher_weight!r} needs a `teacher`; pass one, or omit "
                "teacher_weight.",
            ),
            (
                self.translates != (self.languages is not None),
                f"languages={self.languages!r} with objective={self.objective!r}: "
                "objective='translation' needs languages=[...], the columns with the text in each "
                "language, and other objectives do not support it.",
            ),
            (
                self.translates and "text_key" in (self.reading or {}),
                f"text_key={(self.reading or {}).get('text_key')!r} cannot be set with "
                "objective='translation', which reads the columns of `languages`; leave it out.",
            ),
            (
                self.cut_sentences and self.rows != "full_sentences",
                "cut_sentences=True needs rows without pairs: use objective='full_sentences' or "
                f"'replaced_tokens', or {unless}",
            ),
            (
                self.changing_rate is not None and not (len(rates) == 2 and are_rates),
                f"mask_selection_rate={rates!r} must be one share of the tokens, or two, for the "
                "start and the end of the training, such as (0.3, 0.15).",
            ),
            (
                rates and self.masking == "static",
                f"mask_selection_rate={rates!r} changes during the training, but masking='static' "
                "masks tokens only once; use 'dynamic', or one rate.",
            ),
        ):
            if is_wrong:
                raise ValueError(message)
        if self.translates:
            check_parallel(self.languages)
        if self.schedule == "wsd":
            self.choose(decay_share=self.decay_share or 0.2)
        self.choose(phases=self._phases())
        if self.learning_rate is None:
            self.choose(learning_rate=RATES[self.optimizer])
        if self.warmup_steps is None:
            self.choose(warmup_steps=warmup_of(self.total))
        self.choose(log_every=self.log_every or min(max(self.total // 200, 10), 100))
        unit = self.log_every
        check_whole("log_every", unit)
        every = self.evaluate_every or unit * max(1, self.total // 20 // unit)
        saved = self.checkpoint_every or unit * max(1, min(1000, every) // unit)
        for name, value in (("evaluate_every", every), ("checkpoint_every", saved)):
            check_whole(name, value)
            if value % unit:
                raise ValueError(f"{name}={value} must be a multiple of log_every={unit}.")
        self.choose(evaluate_every=every, checkpoint_every=saved)
        for name in ("encoder", "generator", "reading", "masker"):
            self.choose(**{name: getattr(self, name) or None})
        check_value("devices", self.devices, "count?")
        if self.mesh is not None:
            mesh = two_numbers(self.mesh, "x")
            if mesh is None:
                raise ValueError(
                    f"mesh={self.mesh!r} must be two numbers, such as (2, 4) or '2x4': the devices "
                    "that share the rows of a batch, and those that each layer is sharded over."
                )
            self.choose(mesh=mesh)
        if self.tensorboard:
            need_packages("tensorboard=True", "tensorboard", "tensorboard")

    def _phases(self):
        if self.phases is None:
            check_whole("steps", self.steps)
            last = self.steps // 10
            phases = [(128, self.steps - last, self.batch_size), (512, last, self.batch_size)]
            phases = [phase for phase in phases if phase[1]]
        else:
            phases = list(self.phases)
        check_whole("accumulate", self.accumulate)
        return checked_phases(phases, self.accumulate)

    def check_replicas(self, replicas):
        """Raise a `ValueError` if devices cannot divide a batch equally."""
        for number, phase in enumerate(self.phases):
            rows = phase.batch_size // self.accumulate
            if rows % replicas:
                raise ValueError(
                    f"The {replicas} devices do not divide the {rows} rows of a batch of "
                    f"phases[{number}]; pass a batch_size that is a multiple of "
                    f"{replicas * self.accumulate}."
                )

    @property
    def replaces(self):
        """Whether the encoder learns to detect replaced tokens."""
        return self.objective == "replaced_tokens"

    @property
    def rows(self):
        """The objective for which the examples are made."""
        return "full_sentences" if self.replaces else self.objective

    @property
    def translates(self):
        """Whether the examples are translations."""
        return self.objective == "translation"

    @property
    def has_pairs(self):
        """Whether the examples are text pairs for a second task."""
        return self.rows not in ("full_sentences", "translation")

    @property
    def read(self):
        """Settings of `kerasbert.data.documents`."""
        columns = {"text_key": list(self.languages)} if self.translates else {}
        return {**(self.reading or {}), **columns}

    @property
    def changing_rate(self):
        """The first and the last masking rate, or `None` if the rate is constant."""
        rate = (self.masker or {}).get("mask_selection_rate")
        return rate if isinstance(rate, (list, tuple)) else None

    @property
    def hiding(self):
        """Settings of `mask_tokens` (`None`: its defaults). A changing rate has its last value."""
        from kerasbert.heads.electra_pretrainer.preprocessor import MASKING

        masker = {**MASKING, **(self.masker or {})} if self.replaces else self.masker
        rates = self.changing_rate
        return masker if rates is None else {**masker, "mask_selection_rate": rates[1]}

    def hiding_in(self, number):
        """Return a phase's masking settings, for `read_examples`.

        A changing `mask_selection_rate` is a tuple of first rate, last rate and number of batches.
        """
        rates = self.changing_rate
        if rates is None:
            return self.hiding
        first = sum(phase.steps for phase in self.phases[:number])
        steps = self.phases[number].steps
        ends = [
            rates[0] + (rates[1] - rates[0]) * step / self.total for step in (first, first + steps)
        ]
        return {**self.hiding, "mask_selection_rate": (*ends, steps * self.accumulate)}

    @property
    def total(self):
        """Number of steps of all phases."""
        return sum(phase.steps for phase in self.phases)

    @property
    def lengths(self):
        """The phases' distinct sequence lengths."""
        return list(dict.fromkeys(phase.sequence_length for phase in self.phases))
