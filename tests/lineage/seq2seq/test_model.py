"""The encoder-decoder: parity with Marian of transformers, generation, training, presets."""

import json
import os

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import kerasbert
from kerasbert.lineage import (
    TransformerSeq2SeqBackbone,
    TransformerSeq2SeqLM,
    TransformerSeq2SeqLMPreprocessor,
)
from kerasbert.losses import TokenCrossEntropy
from kerasbert.models import BertBackbone
from kerasbert.optimizers import WarmupInverseSqrt
from kerasbert.samplers import BeamSampler
from tests.contracts import (
    array,
    arrays,
    assert_close,
    bert_tokenizer,
    gradients,
    perturb,
    tiny_backbone,
)
from tests.peers import torch, transformers

SIZES = {
    "vocabulary_size": 40,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 16,
    "intermediate_dim": 24,
    "num_decoder_layers": 1,
    "num_decoder_heads": 4,
    "decoder_intermediate_dim": 20,
    "max_sequence_length": 16,
}
END, PAD, ROOM = 10, 39, 9  # With this `END`, some texts end early, but not all.
TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] a b c d e f g h".split()
TOKENS += [f"w{i}" for i in range(40 - len(TOKENS))]
PAIRS = (["a b c", "b", "c d", "e f g h"], ["c b a", "b", "d c", "h g f e"])


def tiny(preprocessor=None, task=None, **settings):
    """A model in which every weight matters, with random numbers only from NumPy."""
    keras.utils.set_random_seed(1)  # The seed of dropout.
    backbone = TransformerSeq2SeqBackbone(**{**SIZES, **settings})
    model = TransformerSeq2SeqLM(backbone, preprocessor, **(task or {}))
    random = np.random.default_rng(5)
    spreads = {"gamma": 1.0, "embeddings": 0.3, "kernel": 0.5}
    for weight in model.weights:
        name = weight.path.rsplit("/", 1)[-1]
        values = spreads.get(name, 0.1) * random.normal(size=weight.shape)
        weight.assign(values + (name == "gamma"))
    return model


def marian(**settings):
    task = {"output_bias": True, "forbidden_token_ids": [PAD], "forced_end_token_id": END}
    return tiny(task=task, **{"activation": "swish", **settings})


def features(lengths=(7, 4, 5), targets=(3, 5, 4)):
    random = np.random.default_rng(3)
    found = {}
    for side, counts in (("encoder", lengths), ("decoder", targets)):
        shape = (len(counts), max(counts))
        found[f"{side}_token_ids"] = random.integers(1, 39, shape).astype("int32")
        mask = np.arange(shape[1]) < np.array(counts)[:, None]
        found[f"{side}_padding_mask"] = mask.astype("int32")
    return found


def sources(prompts=None):
    """Return sources, and targets that begin with the padding token."""
    found = features()
    prompts = [[PAD]] * 3 if prompts is None else prompts
    ids, mask = np.full((3, ROOM), PAD, "int32"), np.zeros((3, ROOM), "int32")
    for i, prompt in enumerate(prompts):
        ids[i, : len(prompt)], mask[i, : len(prompt)] = prompt, 1
    return {**found, "decoder_token_ids": ids, "decoder_padding_mask": mask}


def written(model, inputs, sampler, stop=END, run_eagerly=True):
    # Uncompiled unless a test says otherwise, to save compilation time.
    model.compile(sampler=sampler, run_eagerly=run_eagerly)
    found = model.generate(inputs, stop_token_ids=stop)
    rows = zip(found["decoder_token_ids"], found["decoder_padding_mask"])
    return [row[there].tolist() for row, there in rows]


def preprocessor(**settings):
    return TransformerSeq2SeqLMPreprocessor(bert_tokenizer(TOKENS), 12, **settings)


@pytest.mark.backends("tensorflow", "jax", "torch")
@pytest.mark.peers
@pytest.mark.parametrize("settings", [{}, {"scale_embeddings": False, "activation": "relu"}])
def test_equals_transformers(tmp_path, settings):
    """A model that we write has the same outputs in transformers, can be read again, and generates
    the same texts.
    """
    model = marian(**settings)
    kerasbert.convert(model, tmp_path)
    theirs, info = transformers.MarianMTModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    inputs = features()
    tensors = {name: torch.tensor(value).long() for name, value in inputs.items()}
    with torch.no_grad():
        wanted = theirs(
            input_ids=tensors["encoder_token_ids"],
            attention_mask=tensors["encoder_padding_mask"],
            decoder_input_ids=tensors["decoder_token_ids"],
            decoder_attention_mask=tensors["decoder_padding_mask"],
        )
    at_sources, at_targets = (inputs[f"{x}_padding_mask"] > 0 for x in ("encoder", "decoder"))
    found = array(model(inputs))[at_targets]
    assert_close(found, wanted.logits.numpy()[at_targets])
    encoded = array(model.backbone(inputs)["encoder_sequence_output"])[at_sources]
    assert_close(encoded, wanted.encoder_last_hidden_state.numpy()[at_sources])
    # transformers itself also saves the sinusoidal tables and duplicate tensors.
    theirs.save_pretrained(tmp_path / "theirs")
    again = TransformerSeq2SeqLM.from_preset(tmp_path / "theirs", preprocessor=None)
    assert_close(array(again(inputs))[at_targets], found, atol=0)
    assert (again.forbidden_token_ids, again.forced_end_token_id) == ([PAD], END)
    alone = TransformerSeq2SeqBackbone.from_preset(tmp_path / "theirs")
    assert_close(array(alone(inputs)["encoder_sequence_output"])[at_sources], encoded, atol=0)

    for beams, penalty in ((1, 1.0), (3, 1.0), (3, 0.6)):
        their_texts = theirs.generate(
            tensors["encoder_token_ids"],
            attention_mask=tensors["encoder_padding_mask"],
            generation_config=transformers.GenerationConfig(
                num_beams=beams,
                length_penalty=penalty,
                do_sample=False,
                max_length=ROOM,
                eos_token_id=END,
                pad_token_id=PAD,
                decoder_start_token_id=PAD,
                forced_eos_token_id=END,
                bad_words_ids=[[PAD]],
            ),
        ).tolist()
        texts = [text[: (text + [END]).index(END, 1) + 1] for text in their_texts]
        sampler = "greedy" if beams == 1 else BeamSampler(beams, length_penalty=penalty)
        assert written(model, sources(), sampler) == texts
        assert len(set(map(tuple, texts))) > 1


@pytest.mark.peers
@pytest.mark.backends("torch")
@pytest.mark.filterwarnings("ignore:No tokenizer is written")
def test_convert(tmp_path):
    """Conversion from transformers' folder to ours and back keeps the outputs, also without the
    bias or the head.
    """
    inputs = features()
    tensors = {name: torch.tensor(value).long() for name, value in inputs.items()}
    there = inputs["decoder_padding_mask"] > 0

    def their_outputs(cls, name):
        network = getattr(transformers, cls).from_pretrained(tmp_path / name)
        with torch.no_grad():
            return network(
                input_ids=tensors["encoder_token_ids"],
                attention_mask=tensors["encoder_padding_mask"],
                decoder_input_ids=tensors["decoder_token_ids"],
                decoder_attention_mask=tensors["decoder_padding_mask"],
            )

    for name, model in (("biased", marian()), ("plain", tiny(activation="relu"))):
        wanted = array(model(inputs))
        kerasbert.convert(model, tmp_path / name)
        done = kerasbert.convert(tmp_path / name, tmp_path / f"{name}_ours", format="kerasbert")
        assert done["model"] == "TransformerSeq2SeqLM"
        again = TransformerSeq2SeqLM.from_preset(tmp_path / f"{name}_ours")
        assert_close(again(inputs), wanted, atol=0)
        assert again.output_bias == model.output_bias
        assert again.forbidden_token_ids == model.forbidden_token_ids
        done = kerasbert.convert(tmp_path / f"{name}_ours", tmp_path / f"{name}_back")
        assert done["written"] == "MarianMTModel"
        found = their_outputs("MarianMTModel", f"{name}_back").logits.numpy()
        assert_close(found[there], wanted[there])
    done = kerasbert.convert(model.backbone, tmp_path / "alone")
    assert done["written"] == "MarianModel"
    found = their_outputs("MarianModel", "alone").last_hidden_state.numpy()
    wanted = array(model.backbone(inputs)["decoder_sequence_output"])
    assert_close(found[there], wanted[there])
    alone = TransformerSeq2SeqBackbone.from_preset(tmp_path / "alone")
    assert_close(alone(inputs)["decoder_sequence_output"], wanted, atol=0)


@pytest.mark.slow
def test_recorded_numbers():
    """transformers' outputs for the model of `test_equals_transformers`, on every backend."""
    model = marian()
    logits = array(model(features()))[[0, 1, 2], [2, 4, 3], :4]
    assert_close(logits, np.array(RECORDED, "float32"))
    assert written(model, sources(), "greedy") == GREEDY
    assert written(model, sources(), BeamSampler(3), run_eagerly=False) == BEAMS


RECORDED = [
    [-0.9241, -0.14315, -2.73157, -1.05928],
    [-1.03797, -0.21127, -2.33999, -0.26205],
    [-1.03774, 0.18541, -1.86937, -0.08514],
]
GREEDY = [[39, 35, 35, 35, 35, 35, 35, 35, 10], [39, 36, 36, 36, 36, 36, 10], [39, 36, 10]]
BEAMS = [[39, 35, 35, 36, 27, 27, 27, 27, 10], [39, 27, 27, 27, 27, 27, 27, 27, 10], [39, 36, 10]]


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "jax", "torch")
@pytest.mark.parametrize("norm_first", [False, True])
def test_cached_equals_uncached(norm_first):
    """Greedy, with prompts of several lengths: each token depends on all before it."""
    model = tiny(norm_first=norm_first)
    inputs = sources([[PAD], [PAD, 5, 6], [PAD, 7]])
    found = written(model, inputs, "greedy", stop=None)
    ids = inputs["decoder_token_ids"].copy()
    begun = inputs["decoder_padding_mask"].sum(axis=1)
    for place in range(1, ROOM):
        now = {**inputs, "decoder_token_ids": ids[:, :place]}
        now["decoder_padding_mask"] = np.ones_like(ids[:, :place])
        best = array(model(now))[:, -1].argmax(-1)
        ids[:, place] = np.where(place >= begun, best, ids[:, place])
    assert found == ids.tolist()


@pytest.mark.slow
def test_padding_and_masks():
    model, inputs = tiny(), features()
    longer = {name: np.pad(value, [(0, 0), (0, 3)]) for name, value in inputs.items()}
    for side in ("encoder", "decoder"):
        hidden = longer[f"{side}_padding_mask"] == 0
        longer[f"{side}_token_ids"] = np.where(hidden, 7, longer[f"{side}_token_ids"])
    there = inputs["decoder_padding_mask"] > 0
    assert_close(array(model(longer))[:, :5][there], array(model(inputs))[there])
    assert_close(model.predict(inputs, verbose=0), model(inputs))
    full = {name: value[:1, :3] for name, value in inputs.items()}
    ids = {name: value for name, value in full.items() if name.endswith("ids")}
    assert_close(model(ids), model(full), atol=0)


@pytest.mark.backends("tensorflow", "jax", "torch")
def test_gradients_reach_every_weight():
    model, inputs = marian(), features()
    _, found = gradients(model, inputs)
    for path, gradient in found.items():
        assert np.isfinite(gradient).all() and np.abs(gradient).max() > 0, path
    with keras.RematScope("full"):
        again = marian()
    # The recomputed block passes the decoder's gradient on to the encoder.
    _, repeated = gradients(again, inputs)
    assert_close(repeated, found, atol=2e-5)


@pytest.mark.slow
def test_bfloat16_lora_int8(tmp_path):
    inputs = features()
    model, half = tiny(), tiny(dtype="mixed_bfloat16")
    expected = array(model(inputs))
    assert_close(half(inputs), expected, atol=0.06 * np.abs(expected).max())
    assert keras.backend.standardize_dtype(half(inputs).dtype) == "float32"

    half.backbone.enable_lora(2)
    trained = half.backbone.trainable_weights
    # Query, key and value in three blocks, and two projections of the cross-attention.
    assert len(trained) == 2 * (3 + 2) and all("lora_" in w.path for w in trained)

    model.quantize("int8")
    found = array(model(inputs))
    assert np.abs(found - expected).max() < 0.25 * np.abs(expected).max()
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert_close(again(inputs), found, atol=1e-6)
    assert written(again, sources(), "greedy")


@pytest.mark.slow
def test_files_and_presets(tmp_path):
    task = {"output_bias": True, "forbidden_token_ids": [4], "forced_end_token_id": 3}
    model = tiny(preprocessor(), task)
    model.compile(sampler=BeamSampler(2), run_eagerly=True)
    short = {"num_beams": 2, "max_length": 6}
    text = model.translate("a b c", **short)
    inputs = features()
    model.save(tmp_path / "model.keras")
    model.save_to_preset(tmp_path / "preset")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.sampler.num_beams == 2
    for again in (loaded, TransformerSeq2SeqLM.from_preset(tmp_path / "preset")):
        assert_close(again(inputs), model(inputs), atol=0)
        assert again.get_config().keys() == model.get_config().keys()
        assert (again.forbidden_token_ids, again.forced_end_token_id) == ([4], 3)
        again.run_eagerly = True
        assert again.translate("a b c", **short) == text
    backbone = TransformerSeq2SeqBackbone.from_preset(tmp_path / "preset")
    assert_close(backbone(inputs), model.backbone(inputs), atol=0)


@pytest.mark.backends("torch")
def test_training_on_pairs():
    """A model learns to reverse four raw texts, and generates them."""
    keras.utils.set_random_seed(1)
    sizes = {"num_layers": 1, "hidden_dim": 32, "intermediate_dim": 32, "dropout": 0.0}
    backbone = TransformerSeq2SeqBackbone(**{**SIZES, **sizes})
    model = TransformerSeq2SeqLM(backbone, preprocessor())
    assert model.loss.label_smoothing == 0.1
    schedule = WarmupInverseSqrt(0.01, warmup_steps=10)
    adam = keras.optimizers.Adam(schedule, beta_2=0.98, epsilon=1e-9)
    model.compile(adam, jit_compile=False)  # Compilation takes longer.
    first = model.evaluate(PAIRS, return_dict=True, verbose=0)
    model.fit(PAIRS, epochs=50, verbose=0)
    last = model.evaluate(PAIRS, return_dict=True, verbose=0)
    assert last["accuracy"] == 1.0 and last["loss"] < first["loss"]
    model.run_eagerly = True
    assert model.translate(PAIRS[0], num_beams=2) == PAIRS[1]
    assert model.generate("e f g h", max_length=8) == "h g f e"


def test_score(monkeypatch):
    """Scores are computed from the logits of the targets. They do not depend on the batches, even
    if the number of logits limits the size of these.
    """
    model = tiny(preprocessor(), {"output_bias": True})
    x, y, weights = (arrays(part) for part in model.preprocessor(PAIRS))
    odds = array(keras.ops.log_softmax(model(x)))
    wanted = (np.take_along_axis(odds, y[..., None], -1)[..., 0] * weights).sum(-1)
    model.compile(run_eagerly=True)
    assert_close(model.score(*PAIRS), wanted)
    monkeypatch.setattr("kerasbert.lineage.seq2seq.task.MOST_LOGITS", 1)
    assert_close(model.score(*PAIRS, batch_size=3), wanted)
    assert abs(model.score(PAIRS[0][3], PAIRS[1][3]) - wanted[3]) < 1e-5
    assert len(set(wanted.tolist())) == 4


def test_packing():
    pack = preprocessor()
    x, y, weights = pack((["a b", "c"], ["d", "e f g"]))
    x = {name: array(value)[:, :5].tolist() for name, value in x.items()}
    assert x["encoder_token_ids"] == [[5, 6, 3, 0, 0], [7, 3, 0, 0, 0]]
    assert x["decoder_token_ids"] == [[2, 8, 0, 0, 0], [2, 9, 10, 11, 0]]
    assert array(y)[:, :5].tolist() == [[8, 3, 0, 0, 0], [9, 10, 11, 3, 0]]
    assert array(weights)[:, :5].tolist() == [[1, 1, 0, 0, 0], [1, 1, 1, 1, 0]]
    long, y, _ = pack((["a " * 30], ["b " * 30]))
    assert array(long["encoder_token_ids"])[0].tolist() == [5] * 11 + [3]
    assert array(y)[0].tolist() == [6] * 11 + [3]
    named = pack({"encoder_text": PAIRS[0], "decoder_text": PAIRS[1]})
    assert_close(arrays(named), arrays(pack(PAIRS)), atol=0)
    _, _, weights = pack(PAIRS, sample_weight=[0.5, 1, 1, 1])
    assert array(weights)[0, 0] == 0.5


def test_label_smoothing():
    """Label smoothing is the same as in PyTorch: a part of each label is spread evenly over the
    vocabulary.
    """
    random = np.random.default_rng(0)
    logits = random.normal(size=(2, 3, 5)).astype("float32")
    labels = random.integers(0, 5, (2, 3))
    odds = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    soft = 0.9 * np.eye(5)[labels] + 0.1 / 5
    loss = TokenCrossEntropy(label_smoothing=0.1)
    assert np.isclose(float(loss(labels, logits)), -(soft * odds).sum(-1).mean(), atol=1e-6)
    assert TokenCrossEntropy.from_config(loss.get_config()).label_smoothing == 0.1


def test_schedule():
    schedule = WarmupInverseSqrt(512**-0.5 * 4000**-0.5, 4000)
    for step in (1, 1000, 4000, 9000):
        wanted = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
        assert np.isclose(float(schedule(step)), wanted, rtol=1e-5)
    again = WarmupInverseSqrt.from_config(json.loads(json.dumps(schedule.get_config())))
    assert float(again(17)) == float(schedule(17))


def refused(call, words):
    with pytest.raises(ValueError, match=words) as error:
        call()
    assert "\n" not in str(error.value).strip()


def test_wrong_use():
    model, bare = tiny(preprocessor()), tiny()
    fewer = {name: x[:2] for name, x in sources().items() if name.startswith("decoder")}

    def cut(name):
        return {**sources(), name: sources()[name][:, :2]}

    for call, words in (
        (lambda: bare.translate("a"), "no preprocessor"),
        (lambda: bare.fit(PAIRS), "no preprocessor"),
        (lambda: model.fit(["a", "b"]), "without targets"),
        (lambda: model.fit(["a", "b"], ["c", "d"]), "as fit|labels|targets"),
        (lambda: model.fit((["a", "b"], ["c"])), "2 and 1 texts"),
        (lambda: model.fit({"encoder_text": ["a"]}), "decoder_text"),
        (lambda: model.translate(["a", ""]), "position 1 has no token"),
        (lambda: model.translate([]), "empty"),
        (lambda: model.translate("a " * 30), "has 30 tokens.*split it"),
        (lambda: model.translate((["a"], ["b"])), "sources only"),
        (lambda: model.translate("a", num_beams=0), "num_beams=0"),
        (lambda: model.translate("a", num_beams=30), "more than half"),
        (lambda: model.translate("a", max_length=13), "sequence_length=12"),
        (lambda: model.translate("a", max_length=1), "max_length=1"),
        (lambda: model.translate("a", batch_size=0), "batch_size=0"),
        (lambda: model.translate(None), "not text"),
        (lambda: model.score(["a", "b"], ["c"]), "2 and 1 texts"),
        (lambda: bare.score("a", "b"), "no preprocessor"),
        (lambda: bare.generate(sources()), "stop_token_ids='auto'"),
        (lambda: bare.generate({"encoder_token_ids": [[1]]}, stop_token_ids=0), "decoder_token"),
        (lambda: bare.generate(cut("decoder_padding_mask"), stop_token_ids=0), "both must be"),
        (lambda: bare.generate(cut("encoder_padding_mask"), stop_token_ids=0), "both must be"),
        (
            lambda: bare.generate({**sources(), **fewer}, stop_token_ids=0),
            "encoder_token_ids has 3.*decoder_token_ids has 2",
        ),
        (lambda: bare.generate(sources(), stop_token_ids=1.5), "stop_token_ids has 1.5"),
        (lambda: TransformerSeq2SeqLM(tiny_backbone()), "needs a TransformerSeq2SeqBackbone"),
        (lambda: bare.predict({**features(), "encoder_token_ids": np.full((3, 7), 40)}), "40 at"),
        (lambda: TransformerSeq2SeqLM(bare.backbone, forbidden_token_ids=[40]), "40"),
        (lambda: TransformerSeq2SeqLM(bare.backbone, output_bais=True), "did you mean output_bias"),
        (lambda: TransformerSeq2SeqBackbone(**SIZES, num_layer=1), "did you mean num_layers"),
        (lambda: TransformerSeq2SeqBackbone(**{**SIZES, "num_heads": 3}), "num_heads=3"),
        (lambda: WarmupInverseSqrt(0.1, 0), "warmup_steps=0"),
        (lambda: TokenCrossEntropy(label_smoothing=1.5), "label_smoothing=1.5"),
        (lambda: kerasbert.convert(model, "x"), "does not support a BertTokenizer"),
        (lambda: kerasbert.convert(tiny(norm_first=True), "x"), "cannot hold norm_first=True"),
    ):
        refused(call, words)
    assert not os.path.exists("x")


def test_marian_files_that_do_not_fit(tmp_path):
    model = marian()
    kerasbert.convert(model, tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    for change, words in (
        ({"share_encoder_decoder_embeddings": False}, "share_encoder_decoder_embeddings=False"),
        ({"activation_function": "tanhshrink"}, "tanhshrink"),
        ({"d_model": "16"}, "d_model"),
        ({"encoder_layers": 3}, "do not match|missing"),
        ({"decoder_layers": 0}, "decoder_layers=0"),
        ({"encoder_ffn_dim": 20}, "do not fit"),
    ):
        path.write_text(json.dumps({**config, **change}))
        refused(lambda: TransformerSeq2SeqLM.from_preset(tmp_path, preprocessor=None), words)
        refused(lambda: kerasbert.convert(tmp_path, tmp_path / "new", tokenizer=False), words)
    path.write_text(json.dumps(config))
    refused(lambda: kerasbert.convert(model, tmp_path / "new", "google"), "only holds BERT")
    refused(lambda: kerasbert.convert(model, tmp_path / "new", "keras_hub"), "has no marian")
    refused(lambda: TransformerSeq2SeqLM.from_preset(tmp_path, num_beam=4), "num_beam")
    refused(lambda: BertBackbone.from_preset(tmp_path), "of the family 'marian'")
    for change, words in (
        ({"bad_words_ids": [[1, 2]]}, "can only forbid single tokens"),
        ({"forced_eos_token_id": [1, 2]}, "forced_eos_token_id"),
    ):
        (tmp_path / "generation_config.json").write_text(json.dumps(change))
        refused(lambda: TransformerSeq2SeqLM.from_preset(tmp_path), words)
    os.remove(tmp_path / "generation_config.json")
    weights = load_file(tmp_path / "model.safetensors")
    for change, words in (
        ({"lm_head.weight": weights["model.shared.weight"] + 1}, "one table for both"),
        (
            {x.replace(".0.", ".1."): w for x, w in weights.items() if ".decoder." in x},
            r"Left over, theirs: decoder\.layers\.1",
        ),
    ):
        save_file({**weights, **change}, tmp_path / "model.safetensors")
        refused(lambda: TransformerSeq2SeqLM.from_preset(tmp_path, preprocessor=None), words)
    save_file(weights, tmp_path / "model.safetensors")
    shapes = TransformerSeq2SeqLM.from_preset(tmp_path, load_weights=False, preprocessor=None)
    assert shapes.count_params() == model.count_params()


def test_config_round_trip():
    backbone = perturb(TransformerSeq2SeqBackbone(**SIZES))
    config = json.loads(json.dumps(backbone.get_config()))
    again = TransformerSeq2SeqBackbone.from_config(config)
    assert again.get_config() == config
    again.set_weights(backbone.get_weights())
    assert_close(again(features()), backbone(features()), atol=0)
