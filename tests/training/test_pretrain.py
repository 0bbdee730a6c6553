"""Pre-training: from text to a preset, interrupted and resumed, continued; settings and errors."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest

import kerasbert
from kerasbert import presets
from kerasbert.models import (
    BertBackbone,
    BertMaskedLM,
    BertNextSentencePredictor,
    BertPretrainer,
    BertReplacedTokenDetector,
    BertTextEmbedder,
    BertTextEmbedderPreprocessor,
)
from kerasbert.training import resuming
from kerasbert.training.pretraining_model import tokenizer_of
from kerasbert.training.recording import draw_curves, read_log
from tests.contracts import array

TINY = {
    "num_layers": 1,
    "hidden_dim": 16,
    "num_heads": 2,
    "verbose": False,
    # Most tests run faster without compilation, but not on JAX.
    "jit_compile": keras.backend.backend() == "jax",
}


def train(examples, words, output, **settings):
    """Run a short training on existing examples, with dropout and gradient accumulation."""
    arguments = {
        **({name: TINY[name] for name in ("verbose", "jit_compile")} if words is None else TINY),
        "phases": [(16, 10, 8)],
        "learning_rate": 3e-3,
        "warmup_steps": 2,
        "accumulate": 2,
        "log_every": 2,
        "checkpoint_every": 4,
        "held_out": 0,
    }
    return kerasbert.pretrain(
        examples, str(output), **{**arguments, "vocabulary": words, **settings}
    )


def values(model):
    return {weight.path: array(weight) for weight in model.weights}


def log_of(output):
    """Return the log without times."""
    rows = read_log(os.path.join(output, "log.jsonl"))
    timed = ("seconds", "tokens_per_second")
    return [{key: row[key] for key in row if key not in timed} for row in rows]


class Broken(BaseException):
    """Ends a training like a kill: nothing is saved."""


class BreakAt(keras.callbacks.Callback):
    def __init__(self, batches, action):
        super().__init__()
        self.left, self.action = batches, action

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            self.action()


def raise_broken():
    raise Broken


@pytest.fixture(scope="module")
def unbroken(examples, vocabulary, tmp_path_factory):
    output = str(tmp_path_factory.mktemp("unbroken"))
    return output, train(examples, vocabulary, output)


# --- from text to a preset ---


@pytest.mark.slow
@pytest.mark.backends("tensorflow")
def test_text_to_preset(corpus, tmp_path):
    output = str(tmp_path / "out")
    arguments = {
        **TINY,
        "vocabulary_size": 800,
        "phases": [(16, 40, 16), (24, 6, 8)],
        "learning_rate": 1e-2,
        "held_out": 0.2,
        "log_every": 10,
        "evaluate_every": 20,
        "reading": {"sentences": "lines"},
        "workers": 1,
        "card": {"license": "apache-2.0", "data": "Parts of the Brown corpus."},
        "finetuning_learning_rate": 7e-4,
    }
    epochs = []
    spy = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: epochs.append(epoch))
    done = kerasbert.pretrain(corpus, output, callbacks=[spy], **arguments)
    log = log_of(output)
    assert [row["step"] for row in log] == [10, 20, 30, 40, 46]
    assert epochs == [0, 1, 2, 3, 4]  # TensorBoard's curves continue from phase to phase.
    assert [row["phase"] for row in log] == [1, 1, 1, 1, 2]
    assert log[3]["mlm_loss"] < log[0]["mlm_loss"] - 0.2
    for row in log:
        assert row["loss"] == pytest.approx(row["mlm_loss"] + row["nsp_loss"], abs=1e-3)
        assert ("held_out_loss" in row) == (row["step"] in (20, 40))
    assert done["steps"] == 46 and done["model"].backbone.max_sequence_length == 24
    scores = done["scores"]
    assert scores["mlm_perplexity"] < 800 and 0 < scores["mlm_accuracy_of_commonest_token"] < 0.2
    assert 0.5 <= scores["nsp_accuracy_of_commonest_label"] < 1
    # The preset has both heads and records its origin.
    found = BertMaskedLM.from_preset(done["preset"]).fill_mask("He went to the [MASK].", top_k=3)
    assert len(found) == 3
    follows = BertNextSentencePredictor.from_preset(done["preset"]).follows("He ate.", "He slept.")
    assert 0 < follows < 1
    card = open(os.path.join(done["preset"], "README.md"), encoding="utf-8").read()
    assert "46 updates" in card and "Brown" in card and '"learning_rate": 0.01' in card
    assert presets.finetuning_learning_rate(done["preset"]) == 7e-4
    assert "for fine-tuning: 0.0007" in card
    # The same call finds that everything is done.
    again = kerasbert.pretrain(corpus, output, **arguments)
    assert again["scores"] == scores and log_of(output) == log


@pytest.mark.backends("torch")
def test_curves(unbroken, tmp_path):
    log = read_log(os.path.join(unbroken[0], "log.jsonl"))
    assert draw_curves(log, str(tmp_path / "curves.png"))
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert not draw_curves([], str(tmp_path / "none.png"))


@pytest.mark.backends("torch")
def test_curves_without_matplotlib(unbroken, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert not draw_curves([{"step": 1, "loss": 2.0}], str(tmp_path / "curves.png"))
    assert not os.listdir(tmp_path)


# --- interrupted and resumed ---


@pytest.mark.slow_on_tensorflow
def test_resumed_is_equal_to_the_bit(examples, vocabulary, unbroken, tmp_path):
    # The training is interrupted between the two batches of step 6, after the checkpoint of step 4.
    with pytest.raises(Broken):
        train(examples, vocabulary, tmp_path, callbacks=[BreakAt(11, raise_broken)])
    done = train(examples, vocabulary, tmp_path)
    assert done["steps"] == 10
    output, expected = unbroken
    assert log_of(tmp_path) == log_of(output)
    assert done["scores"] == expected["scores"]
    for path, value in values(expected["model"]).items():
        np.testing.assert_array_equal(value, values(done["model"])[path], err_msg=path)


RECIPE = {
    "optimizer": "muon",
    "schedule": "wsd",
    "decay_share": 0.5,
    "ema_momentum": 0.5,
    "masker": {"mask_selection_rate": (0.5, 0.4)},
}


@pytest.mark.backends("torch")
def test_the_settings_of_a_recipe_are_resumed_to_the_bit(examples, vocabulary, tmp_path):
    """Muon and its averages, the averaged weights, the masking rate."""
    expected = train(examples, vocabulary, tmp_path / "unbroken", **RECIPE)
    with pytest.raises(Broken):
        settings = {**RECIPE, "callbacks": [BreakAt(11, raise_broken)]}
        train(examples, vocabulary, tmp_path / "out", **settings)
    done = train(examples, vocabulary, tmp_path / "out", **RECIPE)
    log = log_of(tmp_path / "out")
    assert log == log_of(tmp_path / "unbroken")
    assert done["scores"] == expected["scores"]
    for path, value in values(expected["model"]).items():
        np.testing.assert_array_equal(value, values(done["model"])[path], err_msg=path)
    # After the warmup, the learning rate stays until the fifth of the ten steps.
    assert [row["learning_rate"] == pytest.approx(3e-3) for row in log[:3]] == [True, True, False]
    assert log[-1]["learning_rate"] == 0
    # The preset has the averaged weights, and the checkpoint also the current ones.
    with resuming._open(resuming.find_checkpoint(tmp_path / "out")) as file:
        for path, value in values(done["model"]).items():
            last = file.get_tensor(f"weight/{path}")
            average = f"optimizer/{path.replace('/', '_')}_average"
            np.testing.assert_array_equal(value, file.get_tensor(average), err_msg=path)
            assert (last != value).any(), path
    again = BertPretrainer.from_preset(done["preset"])
    for path, value in values(again).items():
        np.testing.assert_array_equal(value, values(done["model"])[path], err_msg=path)


@pytest.mark.slow
def test_a_signal_stops_after_a_checkpoint(examples, vocabulary, unbroken, tmp_path):
    interrupt = BreakAt(9, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt, match="after step 5, which is saved; the same call"):
        train(examples, vocabulary, tmp_path, checkpoint_every=100, callbacks=[interrupt])
    assert os.path.basename(resuming.find_checkpoint(tmp_path)) == (
        "checkpoint-000000005.safetensors"
    )
    done = train(examples, vocabulary, tmp_path, checkpoint_every=100)
    # One log interval is split in two, and everything else is the same.
    log, theirs = log_of(tmp_path), log_of(unbroken[0])
    assert [row["step"] for row in log] == [2, 4, 5, 6, 8, 10]
    assert [log[i] for i in (0, 1, 4, 5)] == [theirs[i] for i in (0, 1, 3, 4)]
    expected = values(unbroken[1]["model"])
    for path, value in values(done["model"]).items():
        np.testing.assert_array_equal(value, expected[path], err_msg=path)


CHILD = """
import json, os, signal, sys
import keras
import kerasbert

class Kill(keras.callbacks.Callback):
    left = int(sys.argv[2])
    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

settings = json.loads(sys.argv[1])
kerasbert.pretrain(**settings, callbacks=[Kill()])
"""


@pytest.mark.slow
def test_killed_in_each_phase(corpus, tmp_path):
    """With dropout, two phases, real text, and each time a new process."""

    def run(output, left):
        settings = {
            "corpus": corpus,
            "output": str(tmp_path / output),
            "num_layers": 2,
            "hidden_dim": 64,
            "vocabulary_size": 1000,
            "phases": [[32, 30, 16], [64, 10, 8]],
            "held_out": 0.2,
            "learning_rate": 1e-3,
            "log_every": 5,
            "checkpoint_every": 5,
            "reading": {"sentences": "lines"},
            "workers": 1,
            "verbose": False,
        }
        command = [sys.executable, "-c", CHILD, json.dumps(settings), str(left)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900)
        assert done.returncode == (-signal.SIGKILL if left else 0), done.stderr
        return settings["output"]

    expected = run("unbroken", 0)
    for left in (12, 22):
        run("killed", left)
    found = run("killed", 0)
    assert log_of(found) == log_of(expected)
    ours, theirs = (resuming.find_checkpoint(folder) for folder in (found, expected))
    with resuming._open(ours) as a, resuming._open(theirs) as b:
        assert set(a.keys()) == set(b.keys())
        for name in a.keys():
            np.testing.assert_array_equal(a.get_tensor(name), b.get_tensor(name), err_msg=name)
    for name in ("model.weights.h5", "task.weights.h5"):
        files = [
            open(os.path.join(folder, "preset", name), "rb").read() for folder in (found, expected)
        ]
        assert len(files[0]) == len(files[1])


@pytest.mark.backends("torch")
def test_other_settings_are_refused(examples, vocabulary, unbroken, tmp_path):
    output = unbroken[0]
    with pytest.raises(ValueError, match=r"other settings: learning_rate=0.003 \(now 0.1\)"):
        train(examples, vocabulary, output, learning_rate=0.1)
    with pytest.raises(ValueError, match=r"other settings: phases=\[\[16, 10, 8\]\]"):
        train(examples, vocabulary, output, phases=[(16, 11, 8)])


@pytest.mark.backends("torch")
def test_the_file_of_settings(examples, vocabulary, tmp_path):
    """Later versions must be able to resume a run: names, values and their order stay."""
    at_once = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: raise_broken())
    with pytest.raises(Broken):  # They are written before the first step.
        train(examples, vocabulary, tmp_path, callbacks=[at_once])
    found = json.loads((tmp_path / "settings.json").read_text())
    assert list(found.items()) == [
        ("corpus", examples), ("preset", None), ("num_layers", 1), ("hidden_dim", 16),
        ("num_heads", 2), ("intermediate_dim", None), ("family", None), ("encoder", None),
        ("generator", None), ("teacher", None), ("teacher_weight", None),
        ("vocabulary", vocabulary), ("vocabulary_size", 30522),
        ("lowercase", True), ("reading", None), ("objective", "next_sentence"),
        ("languages", None), ("cut_sentences", False), ("phases", [[16, 10, 8]]),
        ("optimizer", "muon"), ("learning_rate", 0.003), ("schedule", "linear"),
        ("warmup_steps", 2), ("decay_share", None), ("weight_decay", 0.01),
        ("ema_momentum", None), ("optimizer_state", "new"), ("accumulate", 2),
        ("precision", "float32"), ("masking", "dynamic"), ("masker", None), ("copies", 1),
        ("held_out", 0), ("seed", 0), ("log_every", 2), ("backend", keras.backend.backend()),
    ]  # fmt: skip


@pytest.mark.backends("torch")
def test_a_run_of_an_earlier_version_goes_on(examples, vocabulary, unbroken, tmp_path):
    output = shutil.copytree(unbroken[0], tmp_path / "out")
    settings = json.loads((output / "settings.json").read_text())
    for name in ("cut_sentences", "schedule", "decay_share", "ema_momentum", "teacher"):
        del settings[name]
    (output / "settings.json").write_text(json.dumps(settings))
    assert train(examples, vocabulary, output)["scores"] == unbroken[1]["scores"]


@pytest.mark.slow
def test_start_over(examples, vocabulary, unbroken, tmp_path):
    output = shutil.copytree(unbroken[0], tmp_path / "out")
    settings = {"phases": [(16, 2, 8)], "warmup_steps": 1, "resume": False}
    done = train(examples, vocabulary, output, **settings)
    assert done["steps"] == 2 and [row["step"] for row in log_of(output)] == [2]
    assert resuming.find_checkpoint(output).endswith("000000002.safetensors")


# --- checkpoints ---


@pytest.mark.backends("torch")
def test_a_full_disk_leaves_the_checkpoint_before(unbroken, monkeypatch):
    output, done = unbroken
    before = sorted(os.listdir(output))

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        OSError, match="is full: 'checkpoint-000000011.safetensors' was not written"
    ):
        resuming.save_checkpoint(output, done["model"], 11)
    assert sorted(os.listdir(output)) == before


@pytest.mark.backends("torch")
def test_bad_checkpoints(examples, vocabulary, unbroken, tmp_path):
    output, done = unbroken
    newest = resuming.find_checkpoint(output)
    path = str(tmp_path / os.path.basename(newest))
    content = open(newest, "rb").read()
    with open(path, "wb") as file:
        file.write(content[:-100])
    with pytest.raises(ValueError, match=r"cannot be read .*: it is damaged"):
        resuming.load_checkpoint(path, done["model"])
    wider = BertPretrainer(
        BertBackbone(
            vocabulary_size=1000,
            num_layers=1,
            num_heads=2,
            hidden_dim=8,
            intermediate_dim=8,
            max_sequence_length=16,
        )
    )
    wider.optimizer.build(wider.trainable_variables)
    with pytest.raises(ValueError, match="from another model or optimizer: it lacks .* also has"):
        resuming.load_checkpoint(newest, wider)  # Without gradient accumulation.


# --- continued pre-training ---


@pytest.mark.backends("torch")
def test_continued(examples, vocabulary, unbroken, tmp_path):
    output, first = unbroken
    settings = {"phases": [(16, 2, 8)], "accumulate": 1, "log_every": 1, "checkpoint_every": 1}
    new = train(
        examples, None, tmp_path / "new", preset=output, **{**settings, "learning_rate": 1e-9}
    )
    for path, value in values(first["model"]).items():
        np.testing.assert_allclose(value, values(new["model"])[path], atol=1e-6)
    kept = train(
        examples, None, tmp_path / "kept", preset=output, optimizer_state="kept", **settings
    )
    # Ten steps of two batches came before, but the schedule starts over.
    optimizer = kept["model"].optimizer
    assert int(array(optimizer.iterations)) == 22
    assert [row["learning_rate"] for row in log_of(tmp_path / "kept")][-1] == 0
    with pytest.raises(ValueError, match="has no optimizer state"):
        train(
            examples, None, tmp_path / "bad", optimizer_state="kept",
            preset=_without(output, tmp_path),
        )  # fmt: skip


def _without(output, folder):
    """Return a copy of a preset that is not the output of a training."""
    return shutil.copytree(os.path.join(output, "preset"), folder / "copy" / "preset")


@pytest.mark.slow
def test_a_preset_without_heads_gets_new_ones(examples, vocabulary, unbroken, tmp_path):
    first = unbroken[1]["model"]
    masked = BertMaskedLM.from_preset(os.path.join(unbroken[0], "preset"), pooler=True)
    masked.save_to_preset(str(tmp_path / "masked"))
    with pytest.warns(UserWarning, match="the head of the sentences is new"):
        done = train(
            examples, None, tmp_path / "out", preset=str(tmp_path / "masked"),
            phases=[(16, 2, 8)], learning_rate=1e-9, log_every=1, accumulate=1,
        )  # fmt: skip
    for path, value in values(done["model"]).items():
        same = np.allclose(value, values(first)[path], atol=1e-6)
        assert same != path.startswith("logits/"), path


@pytest.mark.backends("torch")
def test_pairs_after_a_training_without_a_pooler(corpus, vocabulary, tmp_path):
    settings = {"phases": [(16, 2, 8)], "learning_rate": 1e-9, "accumulate": 1}
    first = train(corpus, vocabulary, tmp_path / "one", objective="full_sentences", **settings)
    assert not first["model"].backbone.pooler
    settings |= {"preset": first["preset"], "encoder": {"pooler": True}}
    with pytest.warns(UserWarning, match="the head of the sentences is new"):
        done = train(corpus, None, tmp_path / "two", **settings)
    found = values(done["model"])
    for path, value in values(first["model"]).items():
        np.testing.assert_allclose(found.pop(path), value, atol=1e-6, err_msg=path)
    assert {path.split("/")[0] for path in found} == {"pooled_dense", "logits"}


# --- objectives, precision, optimizers ---


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "objective", ["sentence_order", pytest.param("full_sentences", marks=pytest.mark.slow)]
)
def test_objectives(corpus, vocabulary, tmp_path, objective):
    done = kerasbert.pretrain(
        corpus,
        str(tmp_path),
        **TINY,
        vocabulary=vocabulary,
        objective=objective,
        phases=[(16, 3, 8)],
        optimizer="lamb",
        precision="mixed_bfloat16",
        masking="static",
        masker={"mask_selection_rate": 0.3},
        held_out=0,
        reading={"sentences": "lines"},
        workers=1,
    )
    row = log_of(tmp_path)[-1]
    assert np.isfinite(row["loss"])
    model = BertPretrainer.from_preset(done["preset"])
    if objective == "sentence_order":
        assert "sop_accuracy" in row
        assert model.sentence_order and model.next_sentence
        assert BertNextSentencePredictor.from_preset(done["preset"]).sentence_order
        with pytest.raises(ValueError, match="cannot hold sentence_order=True"):
            kerasbert.convert(done["preset"], str(tmp_path / "theirs"))
    else:
        assert not model.next_sentence and not model.backbone.pooler
        assert {"mlm_accuracy", "mlm_perplexity"} <= row.keys() and "nsp_loss" not in row


@pytest.mark.backends("torch")
def test_translation(vocabulary, tmp_path):
    rows = [f"ba be {x}\tda de {y}\n" for x in ("ba", "be") for y in ("da", "de")]
    path = tmp_path / "pairs.tsv"
    path.write_text("ko\ten\n" + "".join([*rows, "ba be\t\n", "\tda\n"] * 4))
    settings = {"objective": "translation", "languages": ["ko", "en"], "workers": 1}
    done = kerasbert.pretrain(
        path,
        tmp_path / "a",
        **TINY,
        **settings,
        vocabulary=vocabulary,
        phases=[(16, 3, 8)],
        family="xlm",
        held_out=0,
    )
    model = BertPretrainer.from_preset(done["preset"])
    assert model.backbone.num_segments == 2 and model.backbone.restarts_positions
    assert not model.next_sentence and model.preprocessor.tokenizer.languages == ["ko", "en"]
    again = {**settings, "languages": ["en", "ko"], "preset": done["preset"]}
    done = train(path, None, tmp_path / "b", **again)
    # The preset's numbers of the languages apply.
    assert done["model"].preprocessor.tokenizer.languages == ["ko", "en"]
    with pytest.raises(ValueError, match="a language='fr' is unknown; use one of ko, en"):
        train(path, None, tmp_path / "c", **{**again, "languages": ["en", "fr"]})
    family = {"family": "modernbert", "vocabulary": vocabulary, **TINY}
    with pytest.raises(ValueError, match="restarts_positions=True needs .*'learned'"):
        kerasbert.pretrain(path, tmp_path / "d", **settings, **family, phases=[(16, 3, 8)])


ELECTRA = {
    "objective": "replaced_tokens",
    "held_out": 0.5,
    "reading": {"sentences": "lines"},
    "workers": 1,
}


@pytest.mark.backends("torch")
def test_replaced_tokens(corpus, vocabulary, tmp_path):
    """ELECTRA's objective: bit-identical when resumed, and two presets."""
    new = {**ELECTRA, "generator": {"num_layers": 1, "hidden_dim": 8}}
    expected = train(corpus, vocabulary, tmp_path / "unbroken", **new)
    with pytest.raises(Broken):
        train(corpus, vocabulary, tmp_path / "out", callbacks=[BreakAt(11, raise_broken)], **new)
    assert not (tmp_path / "out" / "generator").exists()
    done = train(corpus, vocabulary, tmp_path / "out", **new)
    assert log_of(tmp_path / "out") == log_of(tmp_path / "unbroken")
    assert done["scores"] == expected["scores"]
    trained = values(done["model"])
    for path, value in values(expected["model"]).items():
        np.testing.assert_array_equal(value, trained[path], err_msg=path)
    row, scores = log_of(tmp_path / "out")[-1], done["scores"]
    assert row["loss"] == pytest.approx(row["mlm_loss"] + 50 * row["detection_loss"], rel=1e-3)
    share = scores["detection_replaced"]
    assert 0 < share < 0.2
    assert scores["detection_accuracy_of_commonest_label"] == pytest.approx(1 - share)
    # Each part loads alone, and both have the same embeddings.
    detector = BertReplacedTokenDetector.from_preset(done["preset"])
    assert detector.backbone.family == "electra" and not detector.backbone.pooler
    assert detector.detect("He went home.")[0]["text"] == "He"
    generator = BertMaskedLM.from_preset(str(tmp_path / "out" / "generator"))
    assert generator.backbone.hidden_dim == 8
    assert len(generator.fill_mask("He went [MASK].", top_k=3)) == 3


@pytest.mark.slow
def test_replaced_tokens_of_a_preset(corpus, vocabulary, tmp_path):
    """Continued with detector, generator and optimizer state; and from another encoder."""
    short = {**ELECTRA, "phases": [(16, 2, 8)], "warmup_steps": 1, "learning_rate": 1e-9}
    first = train(corpus, vocabulary, tmp_path / "out", **{**short, "learning_rate": 1e-3})
    trained = values(first["model"])
    kept = {"preset": str(tmp_path / "out"), "optimizer_state": "kept"}
    more = train(corpus, None, tmp_path / "more", **short, **kept)
    for path, value in values(more["model"]).items():
        np.testing.assert_allclose(value, trained[path], atol=1e-6, err_msg=path)
    with pytest.raises(ValueError, match="generator=.*cannot be set, because .* has its own"):
        train(corpus, None, tmp_path / "no", **{**short, "generator": {"num_layers": 2}}, **kept)
    with pytest.warns(UserWarning, match="for the generator and the head of the detector, which"):
        train(corpus, None, tmp_path / "other", preset="bert_tiny_demo_en_uncased", **short)


@pytest.mark.backends("torch")
def test_dropout_of_a_presets_encoder(examples, vocabulary, unbroken, tmp_path):
    """The setting applies to the encoder, as for a new one, not to the next-sentence head."""
    preset, still = unbroken[1]["preset"], {"learning_rate": 1e-12, "warmup_steps": 0}
    assert unbroken[1]["model"].backbone.dropout == 0.1
    for rate in (0.0, 0.3):
        encoder = {"dropout": rate, "attention_dropout": 0.0}
        output = tmp_path / str(rate)
        model = train(examples, None, output, preset=preset, encoder=encoder, **still)["model"]
        assert (model.backbone.dropout, model.backbone.attention_dropout) == (rate, 0.0)
        assert model.dropout == unbroken[1]["model"].dropout
        for path, value in values(unbroken[1]["model"]).items():
            np.testing.assert_allclose(values(model)[path], value, atol=1e-6, err_msg=path)


@pytest.mark.backends("jax", "torch")
def test_a_teacher(examples, vocabulary, tmp_path):
    """The embeddings learn, resuming is bit-identical, and the preset has nothing of the
    teacher.
    """
    keras.utils.set_random_seed(1)
    tokenizer = tokenizer_of(vocabulary, lowercase=True)
    width = {"hidden_dim": 16, "num_layers": 1, "num_heads": 2, "intermediate_dim": 32}
    encoder = BertBackbone(vocabulary_size=tokenizer.vocabulary_size(), pooler=False, **width)
    packer = BertTextEmbedderPreprocessor(tokenizer, sequence_length=16)
    teacher = str(tmp_path / "teacher")
    BertTextEmbedder(encoder, packer, normalize=True).save_to_preset(teacher)
    arguments = examples, vocabulary, tmp_path / "out"
    taught = {"teacher": teacher, "teacher_weight": 30.0, "phases": [(16, 30, 8)]}
    expected = train(*arguments[:2], tmp_path / "unbroken", **taught)
    with pytest.raises(Broken):
        train(*arguments, callbacks=[BreakAt(21, raise_broken)], **taught)
    done = train(*arguments, **taught)
    rows = log_of(tmp_path / "out")
    assert rows == log_of(tmp_path / "unbroken")
    parts = rows[-1]["mlm_loss"] + rows[-1]["nsp_loss"] + 30 * rows[-1]["vector_loss"]
    assert rows[-1]["loss"] == pytest.approx(parts, rel=1e-3)
    assert rows[-1]["vector_loss"] < 0.7 * rows[0]["vector_loss"]
    alone = train(*arguments[:2], tmp_path / "alone", phases=taught["phases"])
    ours, trained = values(alone["model"]), values(done["model"])
    assert ours.keys() == trained.keys()
    for path, value in values(expected["model"]).items():
        np.testing.assert_array_equal(value, trained[path], err_msg=path)
    loaded = BertPretrainer.from_preset(done["preset"])
    assert values(loaded).keys() == ours.keys() and "vectors" not in loaded.output
    card = (tmp_path / "out" / "preset" / "README.md").read_text()
    assert str(tmp_path) not in card and "teacher_weight" in card


# --- bad input ---


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"objective": "next"}, "objective='next' is unknown; use one of next_sentence,"),
        ({"optimizer": "sgd"}, "optimizer='sgd' is unknown; use one of adamw, lamb, muon"),
        ({"cut_sentences": True}, "needs rows without pairs: use objective='full_sentences'"),
        ({"schedule": "cosine"}, "schedule='cosine' is unknown; use one of linear, wsd"),
        ({"decay_share": 0.2}, "decay_share=0.2 needs schedule='wsd'; leave it out"),
        ({"schedule": "wsd", "decay_share": 0.9}, "exceed the 20 steps"),
        ({"ema_momentum": 1}, "ema_momentum=1 would keep the first weights for good"),
        (
            {"masker": {"mask_selection_rate": (0.3, 0)}},
            "must be one share .* or two",
        ),
        ({"masker": {"mask_selection_rate": [0.3]}}, r"mask_selection_rate=\[0.3\] must be one"),
        (
            {"masker": {"mask_selection_rate": (0.3, 0.2)}, "masking": "static"},
            "changes during the training, but masking='static'",
        ),
        ({"precision": "int8"}, "precision='int8' is unknown"),
        ({"phases": []}, "phases is empty"),
        ({"phases": [(16, 10)]}, r"phases\[0\]=\(16, 10\) must be \(sequence_length, steps"),
        ({"phases": [(16, 0, 8)]}, r"phases\[0\]: steps=0"),
        (
            {"phases": [(16, 10, 9)]},
            r"accumulate=2 does not divide the batch_size 9 of phases\[0\]",
        ),
        ({"phases": [(32, 10, 8)]}, "no examples of 32 tokens, only of 16"),
        ({"held_out": 1}, "held_out=1 must be a share"),
        (
            {"objective": "sentence_order"},
            "made with objective='next_sentence', not 'sentence_order'",
        ),
        ({"objective": "replaced_tokens"}, "not 'full_sentences', which 'replaced_tokens' reads"),
        ({"objective": "translation"}, "languages=None .* needs languages="),
        ({"languages": ["ko", "en"]}, "needs languages=.* other objectives do not support it"),
        (
            {"objective": "translation", "languages": ["ko", "en"], "reading": {"text_key": "x"}},
            "text_key='x' cannot be set with objective='translation'",
        ),
        (
            {"objective": "translation", "languages": ["ko"]},
            r"columns of at least two languages, got \['ko'\]",
        ),
        ({"generator": {"hidden_dim": 8}}, "needs objective='replaced_tokens'; leave it out"),
        ({"teacher": "minilm_mini_demo_en"}, "teacher.* shape .384,., .* hidden_dim=16"),
        ({"teacher_weight": 2.0}, "teacher_weight=2.0 needs a `teacher`; pass one"),
        (
            {"teacher": "minilm_mini_demo_en", "objective": "replaced_tokens"},
            "teacher='minilm_mini_demo_en' cannot be used with objective='replaced_tokens'",
        ),
        ({"vocabulary": None}, "examples were made with a vocabulary: pass it"),
        ({"optimizer_state": "kept"}, "pass its output as `preset`"),
        ({"hidden_dim": 20, "num_heads": None}, "hidden_dim=20 is not a multiple of 64"),
        ({"preset": "bert_base_en_uncased"}, "num_layers, hidden_dim, num_heads cannot be set"),
        ({"log_every": 1.5}, "log_every=1.5"),
        ({"checkpoint_every": 3}, "checkpoint_every=3 must be a multiple of log_every=2"),
        ({"warmup_steps": 11}, "warmup_steps=22 .* the 20 steps"),
    ],
)
def test_bad_settings(examples, vocabulary, tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        train(examples, vocabulary, tmp_path, **settings)
    # No settings are stored, so the next call may change them.
    assert not os.path.exists(tmp_path / "settings.json")


@pytest.mark.backends("torch")
def test_bad_corpora(vocabulary, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "one.txt").write_text("Only one document.\nIt has two sentences.\n")
    for name, message in (("empty", "has no text"), ("one", "only one document")):
        with pytest.raises(ValueError, match=message):
            kerasbert.pretrain(
                str(tmp_path / f"{name}.txt"), str(tmp_path / "out"), vocabulary=vocabulary,
                phases=[(16, 1, 2)], workers=1, **TINY,
            )  # fmt: skip


@pytest.mark.backends("torch")
def test_another_vocabulary(examples, vocabulary, tmp_path):
    other = tmp_path / "vocab.txt"
    tokens = open(vocabulary, encoding="utf-8").read().split("\n")
    other.write_text("\n".join([*tokens[:-3], "anotherone", ""]))
    with pytest.raises(ValueError, match="made with another vocabulary"):
        train(examples, str(other), tmp_path / "out")


# --- trainings that diverge ---


def strict_log(output):
    """Return the lines of the log, parsed as standard JSON."""
    with open(os.path.join(output, "log.jsonl"), encoding="utf-8") as file:
        return [json.loads(line, parse_constant=pytest.fail) for line in file]


class Ruin(keras.callbacks.Callback):
    """Ruins a weight after a step, like a step that is too large."""

    def __init__(self, step, value):
        super().__init__()
        self.left, self.value = step, value

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            weight = self.model.trainable_weights[0]
            weight.assign(np.full(weight.shape, self.value, "float32"))


@pytest.mark.backends("torch")
def test_a_rate_that_is_far_too_high(examples, vocabulary, tmp_path):
    """It raises an error and publishes nothing; a lower rate starts over or resumes."""
    given = {"optimizer": "adamw", "accumulate": 1, "warmup_steps": 1}
    with pytest.raises(FloatingPointError, match=r"loss is (nan|inf) at step \d of 10: ") as caught:
        train(examples, vocabulary, tmp_path, learning_rate=1e38, **given)
    assert "a learning_rate below 1e+38 " in str(caught.value)
    assert not (tmp_path / "preset").exists()
    assert all(np.isfinite(row["loss"]) for row in strict_log(tmp_path))
    assert json.loads((tmp_path / "diverged.json").read_text())["learning_rate"] == 1e38
    done = train(examples, vocabulary, tmp_path, learning_rate=1e-3, **given)
    assert done["steps"] == 10 and not (tmp_path / "diverged.json").exists()
    assert [row["step"] for row in strict_log(tmp_path)] == [2, 4, 6, 8, 10]
    assert len(list(tmp_path.glob("checkpoint-*"))) == 1
    BertPretrainer.from_preset(done["preset"])


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("ruin", "step", "kept"),
    [
        # The loss of the next step reveals the ruined weight; the checkpoint of step 4 stays,
        # because the loss after it was finite.
        (Ruin(5, np.nan), 6, 4),
        # A checkpoint is due at this step, but it is not written.
        (Ruin(6, np.nan), 7, 4),
        # The weights are finite but so large that the next loss is not, so this checkpoint is
        # removed.
        (Ruin(6, 1e38), 7, 4),
        # No checkpoint was written before this step.
        (Ruin(1, np.nan), 2, None),
    ],
)
def test_the_last_finite_checkpoint_stays(examples, vocabulary, tmp_path, ruin, step, kept):
    given = {"checkpoint_every": 2, "learning_rate": 1e-3, "accumulate": 1}
    said = f"resumes after step {kept}, the last" if kept else "starts from step 1"
    with pytest.raises(FloatingPointError, match=said):
        train(examples, vocabulary, tmp_path, callbacks=[ruin], **given)
    assert json.loads((tmp_path / "diverged.json").read_text())["step"] == step
    found = [int(path.stem.split("-")[1]) for path in tmp_path.glob("checkpoint-*")]
    assert found == ([kept] if kept else []) and not (tmp_path / "preset").exists()
    strict_log(tmp_path)
    # Only learning rates may change.
    with pytest.raises(ValueError, match="other settings: seed=0"):
        train(examples, vocabulary, tmp_path, seed=3, **given)
    done = train(examples, vocabulary, tmp_path, **{**given, "learning_rate": 1e-4})
    assert done["steps"] == 10 and np.isfinite(done["scores"]["loss"] if done["scores"] else 0)
    with pytest.raises(ValueError, match="other settings: learning_rate=0.0001"):
        train(examples, vocabulary, tmp_path, **given)
