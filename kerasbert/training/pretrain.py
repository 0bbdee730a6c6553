"""`pretrain`: train an encoder from text, or from examples, and save it as a preset."""

import functools
import math
import os
from typing import Any

import keras
import numpy as np

from kerasbert import backend
from kerasbert.base.aliases import AnyPath, Corpus
from kerasbert.base.files import output_folder, temporary_folder, write_json
from kerasbert.base.finite import NonFiniteError, StopAtNonFinite, check_weights
from kerasbert.base.process import handled_signals
from kerasbert.base.storage import join
from kerasbert.base.working_folder import WorkingFolder
from kerasbert.distribution import together
from kerasbert.training.pretrain_settings import PretrainSettings
from kerasbert.training.pretraining_data import (
    EXAMPLES,
    Data,
    given_examples,
    made_examples,
    make_examples,
    split,
    train_vocabulary,
)
from kerasbert.training.pretraining_folder import (
    DIVERGED,
    as_saved,
    earlier_run,
    fetched,
    is_resumed,
    start_over,
    write_preset,
    write_settings,
)
from kerasbert.training.pretraining_model import (
    pretraining_model,
    pretraining_optimizer,
    tokenizer_of,
)
from kerasbert.training.recording import Line, Recorder
from kerasbert.training.resuming import (
    checkpoint_facts,
    find_checkpoint,
    load_checkpoint,
    load_optimizer,
    remove_older,
    save_checkpoint,
)
from kerasbert.training.settings import takes_settings

# Examples of a periodic evaluation.
SAMPLE = 2000


@takes_settings(PretrainSettings)
def pretrain(
    corpus: Corpus | dict[int, Corpus], output: AnyPath, *, settings: PretrainSettings
) -> dict[str, Any]:
    """Pre-train an encoder from text, and save it as a preset.

    Trains a new encoder, or continues training a preset on text of your domain. The recipe is
    BERT's (linear warmup and decay, nine tenths of the steps at length 128, the rest at 512), but
    with Muon for new encoders, which is ahead of Adam in equal time (benchmarks/notes/recipe.md).
    `optimizer="adamw"` is BERT's, with decoupled weight decay and no bias correction.

    The folder `output` has `preset`, for `from_preset`, with its model card; `log.jsonl` and
    `curves.png`; the newest checkpoint; and the `vocabulary` and `examples` made for it. Repeat the
    call to resume from the checkpoint, to the same weights, bit-identical on the same deterministic
    backend and machine, as on CPUs. Ctrl-C stops after writing a checkpoint.

    Processes of a launcher (see `kerasbert.distribution.join`) each read their part of the batches.
    The first writes to `output`, which all must see. Training can resume with another number of
    processes.

    Args:
        corpus: text, as for `kerasbert.data.documents`; or examples: a folder of `write_examples`,
            or a dict of sequence length to such folders (or TFRecord files).
        output: path of a folder, or a URL such as "s3://bucket/mini". To a URL, files are
            transferred atomically after each checkpoint and at the end. Of two trainings with the
            same URL, the one started first stops.

    Returns:
        A dict: `model`, a `BertPretrainer` or `ElectraPretrainer`; `preset`, its folder; `steps`;
        and `scores` on the held-out examples.

    Raises:
        ValueError: if settings are invalid, or if `output` has a training with other settings.
        ImportError: if `tensorboard` is requested but not installed.
        ConnectionError: if another process has ended.
        FloatingPointError: if a loss is NaN or infinite, with step and likely causes. The same call
            with a lower learning rate resumes from the last finite checkpoint.
        KeyboardInterrupt: if the training is stopped; the same call resumes it.

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
        """Call a function in the first process, and share its files."""
        processes.first(lambda: (function(), place.push()))
        if not processes.is_first:
            place.pull()

    # All processes use the first one's files.
    processes.first(place.own)
    if not processes.is_first:
        place.pull()
    given = fetched(settings.preset, copies, (EXAMPLES,))
    preset, earlier = earlier_run(given, settings.optimizer_state)
    if not settings.resume:
        first(lambda: start_over(output))
    line = Line(settings.verbose and processes.is_first)
    if processes.count > 1:
        line.say(f"{processes.count} processes, {group.replicas} devices share each batch")
    saved = as_saved({"corpus": corpus, **settings.compared(), "backend": backend.name()})
    resumed = is_resumed(output, saved)
    keras.utils.set_random_seed(settings.seed)
    examples = given_examples(corpus)
    vocabulary = fetched(settings.vocabulary, copies)
    if vocabulary is None and preset is None:
        vocabulary = os.path.join(output, "vocabulary")
        first(lambda: train_vocabulary(corpus, examples, output, settings, line))
    teacher = fetched(settings.teacher, copies)
    model = pretraining_model(
        preset, tokenizer_of(vocabulary, settings.lowercase), settings, teacher
    )
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
        num_segments=model.backbone.num_segments,
    )
    is_kept = earlier is not None and settings.optimizer_state == "kept"
    start = checkpoint_facts(earlier)["batches"] if is_kept else 0
    optimizer = pretraining_optimizer(settings, start, model.backbone)
    model.compile(optimizer, jit_compile=settings.jit_compile)
    model.optimizer.build(model.trainable_variables)
    # Keras overwrites the weights with their averages after each `fit`, but several follow here; so
    # it is done after the last phase.
    model.optimizer.finalize_variable_values = lambda weights: None
    if is_kept:
        load_optimizer(earlier, model)
    first(lambda: write_settings(output, saved))
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
    # `save_checkpoint` checks the weights, because a check per line of the log is slow.
    check = StopAtNonFinite(
        weights=False,
        place=lambda epoch, batches: f"step {recorder.after(batches):,} of {settings.total:,}",
    )
    callbacks = [check, recorder, *settings.callbacks]
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
    processes.first(lambda: (write_preset(*written), remove_older(output), place.push()))
    preset = join(place.output, "preset")
    return {"model": model, "preset": preset, "steps": recorder.step, "scores": scores}


def _train(model, number, data, recorder, callbacks, settings):
    """Train the remaining steps of the phase with index `number`."""
    phase, before = settings.phases[number], settings.phases[:number]
    every, parts = settings.log_every, settings.accumulate
    start = sum(one.steps for one in before)
    end = start + phase.steps
    # Keras' epochs, here intervals, are numbered across phases.
    number_of_first = sum(-(-one.steps // every) for one in before)
    seed = int(np.random.SeedSequence((settings.seed, number)).generate_state(1)[0])
    facts = {"phase": number + 1, "sequence_length": phase.sequence_length}
    tokens = None
    while recorder.step < end:
        done, left = recorder.step - start, end - recorder.step
        # One call of `fit` trains whole intervals; a partly done or shorter one has its own call.
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
    # The schedule counts batches, not updates.
    batches = int(keras.ops.convert_to_numpy(optimizer.iterations))
    batches *= optimizer.gradient_accumulation_steps or 1
    # Keep the previous checkpoint until a loss after the new one is finite.
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
    """Keep the last checkpoint before a finite loss; return the error to raise.

    Args:
        error: the `NonFiniteError` that ended the training.
        step: int. The first step with a non-finite loss or weight.
        place: a `WorkingFolder`.
    """
    if not processes.is_first:
        return error
    newest = find_checkpoint(place.folder)
    if newest and checkpoint_facts(newest)["step"] == step - 1:
        # The loss after this checkpoint was not finite, so an earlier one is kept.
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
