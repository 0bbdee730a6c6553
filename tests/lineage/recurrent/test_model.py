"""The recurrent encoder-decoder compared with a plain NumPy form; training, generation, files."""

import keras
import numpy as np
import pytest

import kerasbert
from kerasbert.lineage import RecurrentSeq2SeqBackbone, RecurrentSeq2SeqLM
from kerasbert.lineage import RecurrentSeq2SeqLMPreprocessor as Preprocessor
from kerasbert.samplers import BeamSampler
from tests.contracts import array, assert_close, bert_tokenizer, gradients

TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] a b c d e f g h".split()
PAIRS = (["a b c", "b", "c d", "e f g h"], ["c b a", "b", "d c", "h g f e"])
CASES = [
    ("lstm", "additive", True),
    ("gru", "additive", True),
    ("lstm", "dot", False),
    ("gru", "general", True),
    ("lstm", "concat", False),
]


def make(cell="lstm", attention="additive", bidirectional=True, preprocessor=None, **settings):
    sizes = {"vocabulary_size": len(TOKENS), "num_layers": 2, "hidden_dim": 6}
    backbone = RecurrentSeq2SeqBackbone(
        **{**sizes, **settings}, cell=cell, attention=attention, bidirectional=bidirectional
    )
    model = RecurrentSeq2SeqLM(backbone, preprocessor)
    random = np.random.default_rng(5)
    for weight in model.weights:
        weight.assign(random.normal(0, 0.7, weight.shape))
    return model


def features():
    random = np.random.default_rng(3)
    found = {}
    for side, counts in (("encoder", (5, 3, 4)), ("decoder", (3, 4, 2))):
        shape = (len(counts), max(counts))
        found[f"{side}_token_ids"] = random.integers(1, len(TOKENS), shape).astype("int32")
        mask = np.arange(shape[1]) < np.array(counts)[:, None]
        found[f"{side}_padding_mask"] = mask.astype("int32")
    return found


def preprocessor():
    return Preprocessor(bert_tokenizer(TOKENS), 12)


# === The plain form ===


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def cell_step(weights, x, states):
    """One step of an LSTM (gates i, f, c, o) or a GRU (z, r, h; reset after the product)."""
    kernel, recurrent, bias = (weights[name] for name in ("kernel", "recurrent_kernel", "bias"))
    if len(states) == 2:
        i, f, c, o = np.split(x @ kernel + states[0] @ recurrent + bias, 4)
        memory = sigmoid(f) * states[1] + sigmoid(i) * np.tanh(c)
        return [sigmoid(o) * np.tanh(memory), memory]
    own, before = np.split(x @ kernel + bias[0], 3), np.split(states[0] @ recurrent + bias[1], 3)
    z, r = (sigmoid(a + b) for a, b in zip(own[:2], before[:2]))
    return [z * states[0] + (1 - z) * np.tanh(own[2] + r * before[2])]


def plain(model, source, target):
    """Compute logits (T, V) and attention weights (T, S) of one pair of token ids."""
    weights = {f"/{w.path}": array(w).astype("float64") for w in model.weights}
    backbone = model.backbone
    count = 2 if backbone.cell == "lstm" else 1

    def of(name):
        found = {k.rsplit("/", 1)[1]: v for k, v in weights.items() if f"/{name}" in k}
        assert found, name
        return found

    table = of("token_embedding/")["embeddings"]
    x, states = table[source], []
    for layer in range(backbone.num_layers):
        outputs, last = [], []
        for name in ("forward", "backward")[: 1 + backbone.bidirectional]:
            own = of(f"encoder/{name}_{layer}/")
            width = len(own["recurrent_kernel"])
            state, found = [np.zeros(width)] * count, []
            for vector in x if name == "forward" else x[::-1]:
                state = cell_step(own, vector, state)
                found.append(state[0])
            outputs.append(found if name == "forward" else found[::-1])
            last.append(state)
        x = np.concatenate(outputs, axis=-1)
        states.append([np.concatenate(parts) for parts in zip(*last)])
    kind = backbone.attention

    def attend(h):
        if kind in ("additive", "concat"):
            hidden = np.tanh(h @ of("decoder/query/")["kernel"] + x @ of("decoder/key/")["kernel"])
            scores = hidden @ weights[next(k for k in weights if k.endswith("decoder/score"))]
        else:
            scores = (x if kind == "dot" else x @ of("decoder/key/")["kernel"]) @ h
        shares = np.exp(scores - scores.max())
        return shares / shares.sum()

    fed, logits, maps = np.zeros(x.shape[1]), [], []
    for id in target:
        if kind == "additive":
            shares = attend(states[-1][0])
            fed = shares @ x
        h = np.concatenate([table[id], fed])
        for layer in range(backbone.num_layers):
            states[layer] = cell_step(of(f"decoder/cell_{layer}/"), h, states[layer])
            h = states[layer][0]
        if kind != "additive":
            shares = attend(h)
        outputs = np.tanh(np.concatenate([h, shares @ x]) @ of("decoder/output/")["kernel"])
        fed = outputs
        head = of("lm_head/")
        logits.append(outputs @ of("lm_head/decoder/")["kernel"] + head["bias"])
        maps.append(shares)
    return np.array(logits), np.array(maps)


@pytest.mark.backends("tensorflow", "jax", "torch")
@pytest.mark.parametrize(
    "case", CASES[:2] + [pytest.param(x, marks=pytest.mark.slow) for x in CASES[2:]]
)
def test_equals_the_plain_form(case):
    model, x = make(*case), features()
    logits, maps = array(model(x)), array(model.backbone(x)["attention_weights"])
    for i in range(3):
        source, target = (
            x[f"{side}_token_ids"][i][x[f"{side}_padding_mask"][i] > 0]
            for side in ("encoder", "decoder")
        )
        wanted, weights = plain(model, source, target)
        assert_close(logits[i, : len(target)], wanted, atol=1e-5)
        assert_close(maps[i, : len(target), : len(source)], weights, atol=1e-5)
        assert not maps[i, :, len(source) :].any()


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "jax", "torch")
@pytest.mark.parametrize("case", CASES)
def test_gradients_and_compiled_graphs(case):
    model, x = make(*case), features()
    _, found = gradients(model, x)
    assert len(found) == len(model.weights)
    for path, gradient in found.items():
        assert np.isfinite(gradient).all() and np.abs(gradient).max() > 0, path
    model = make(*case)  # `gradients` has changed the weights.
    half = make(*case, dtype="mixed_bfloat16")
    assert_close(half(x), model(x), atol=0.1 * np.abs(array(model(x))).max())
    model.compile(jit_compile=keras.backend.backend() != "torch")
    assert_close(model.predict(x, verbose=0), model(x), atol=1e-5)


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "jax", "torch")
@pytest.mark.parametrize("case", CASES[1:3])
def test_cached_equals_uncached(case):
    """Greedy, with prompts of one and of several tokens: each token depends on all before it.

    A beam that holds all continuations finds the most probable text.
    """
    model = make(*case)
    prompts = np.array([[2, 0, 0, 0, 0], [2, 5, 6, 0, 0], [2, 7, 0, 0, 0]], "int32")
    for given in (prompts, prompts[1:]):
        count = len(given)
        x = {name: value[-count:] for name, value in features().items()}
        mask = (given > 0).astype("int32")
        inputs = {**x, "decoder_token_ids": given, "decoder_padding_mask": mask}
        model.compile(sampler="greedy", run_eagerly=count == 2)
        found = model.generate(inputs, stop_token_ids=None)["decoder_token_ids"]
        now = {**x, "decoder_token_ids": found, "decoder_padding_mask": np.ones_like(mask)}
        best = array(model(now))[:, :-1].argmax(-1)
        assert (found[:, 1:] == np.where(mask[:, 1:] > 0, given[:, 1:], best)).all()
    short = {**inputs, "decoder_token_ids": given[:, :3], "decoder_padding_mask": mask[:, :3]}
    short["decoder_padding_mask"][:, 1:] = 0
    model.compile(sampler=BeamSampler(6), run_eagerly=True)
    found = model.generate(short, stop_token_ids=None)["decoder_token_ids"]
    pairs = np.stack(np.meshgrid(*[np.arange(13)] * 2), axis=-1).reshape(-1, 2)
    for row in range(count):
        every = {name: np.repeat(value[row : row + 1], 169, 0) for name, value in x.items()}
        every["decoder_token_ids"] = np.concatenate([np.full((169, 1), 2), pairs], axis=1)
        every["decoder_padding_mask"] = np.ones((169, 3), "int32")
        odds = array(keras.ops.log_softmax(model(every)))
        rows = np.arange(169)
        sums = odds[rows, 0, pairs[:, 0]] + odds[rows, 1, pairs[:, 1]]
        assert found[row, 1:].tolist() == pairs[sums.argmax()].tolist()


@pytest.mark.backends("torch")
def test_training_on_pairs(tmp_path):
    """A model learns to reverse four raw texts, generates them, and aligns their tokens."""
    keras.utils.set_random_seed(1)
    backbone = RecurrentSeq2SeqBackbone(len(TOKENS), 1, 16, cell="gru")
    model = RecurrentSeq2SeqLM(backbone, preprocessor())
    model.compile(keras.optimizers.Adam(0.02))
    model.fit(PAIRS, epochs=40, verbose=0)
    assert model.evaluate(PAIRS, return_dict=True, verbose=0)["accuracy"] == 1.0
    assert model.translate(PAIRS[0], num_beams=2) == PAIRS[1]
    assert model.generate("e f g h", max_length=8) == "h g f e"

    found = model.align(PAIRS[0])
    assert [one.source for one in found] == [[*text.split(), "[SEP]"] for text in PAIRS[0]]
    assert [one.target for one in found] == [[*text.split(), "[SEP]"] for text in PAIRS[1]]
    _, maps = plain(model, [5, 6, 7, 3], [2, 7, 6, 5])
    assert_close(found[0].weights, maps, atol=1e-5)
    alone = model.align(PAIRS[0][0], PAIRS[1][0])
    assert_close(alone.weights, maps, atol=1e-5)
    figure = kerasbert.visualize.alignment_map(alone)
    assert len(figure.axes[0].get_xticks()) == len(figure.axes[0].get_yticks()) == 4

    model.save(tmp_path / "model.keras")
    model.save_to_preset(tmp_path / "preset")
    for again in (
        keras.models.load_model(tmp_path / "model.keras"),
        RecurrentSeq2SeqLM.from_preset(tmp_path / "preset"),
    ):
        assert_close(again(features()), model(features()), atol=0)
        assert again.translate("a b c", num_beams=2) == "c b a"
        assert type(again.preprocessor) is Preprocessor
    again = RecurrentSeq2SeqBackbone.from_preset(tmp_path / "preset")
    assert again.get_config() == model.backbone.get_config()
    wanted = model.score(*PAIRS)
    assert abs(model.score(PAIRS[0][2], PAIRS[1][2]) - wanted[2]) < 1e-5 and (wanted < 0).all()


@pytest.mark.slow
def test_fit_compiles():
    """`fit` on strings runs compiled by XLA, also with tied weights and dropout."""
    backbone = RecurrentSeq2SeqBackbone(len(TOKENS), 1, 8, attention="general", dropout=0.1)
    model = RecurrentSeq2SeqLM(backbone, preprocessor(), tie_weights=True)
    model.compile(keras.optimizers.Adam(0.02), jit_compile=True)
    losses = model.fit(PAIRS, epochs=15, verbose=0).history["loss"]
    assert losses[-1] < 0.8 * losses[0]


def test_misuse():
    model = make(num_layers=1)
    for call, words in (
        (lambda: make(cell="rnn"), "cell='rnn'.*lstm"),
        (lambda: make(attention="dott"), "attention='dott'.*additive"),
        (lambda: make(hidden_dim=5), "hidden_dim=5 must be even"),
        (lambda: model.align("a", "b"), "no preprocessor"),
        (lambda: model.quantize("int8"), "does not support LSTMs"),
        (lambda: model.backbone.enable_lora(2), "attention projections"),
        (lambda: kerasbert.convert(model, "x"), "does not write a RecurrentSeq2SeqLM"),
        (
            lambda: kerasbert.visualize.alignment_map((["a"], ["b"], np.ones((2, 1)))),
            r"shape \(1, 1\)",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            call()
