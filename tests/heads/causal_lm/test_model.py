"""`BertCausalLM`: parity with transformers, generation, and scores of texts."""

import functools

import keras
import keras_hub
import numpy as np
import pytest

from kerasbert import convert
from kerasbert.lineage import TransformerXLBackbone, XLNetBackbone
from kerasbert.models import (
    BertBackbone,
    BertCausalLM,
    BertCausalLMPreprocessor,
    BertMaskedLM,
    BertTextClassifier,
    GPT2Tokenizer,
)
from kerasbert.samplers import BeamSampler
from tests.contracts import (
    FAMILY_SETTINGS,
    SETTINGS,
    array,
    assert_close,
    batch,
    model_contract,
    perturb,
    tiny_backbone,
)
from tests.peers import torch, transformers

GPTS = ("gpt2", "gpt", "modernbert_decoder")
# Three prompts of different lengths; 2 is the end token.
PROMPTS = [[5, 17, 9, 33, 8], [11], [3, 3, 40]]
STOP = 2


def tiny(family="gpt2", **settings):
    keras.utils.set_random_seed(1)
    sizes = {**SETTINGS, **FAMILY_SETTINGS[family], **settings}
    return perturb(BertCausalLM(BertBackbone.from_family(family, **sizes)))


def padded(prompts, length):
    ids = np.zeros((len(prompts), length), "int32")
    for row, prompt in zip(ids, prompts):
        row[: len(prompt)] = prompt
    mask = np.arange(length) < np.array([len(prompt) for prompt in prompts])[:, None]
    return {"token_ids": ids, "padding_mask": mask.astype("int32")}


def written(model, prompts, length, stops=(STOP,), **settings):
    """Return the output of `generate` as lists without padding."""
    outputs = model.generate(padded(prompts, length), stop_token_ids=stops, **settings)
    return [
        row[there.astype(bool)].tolist()
        for row, there in zip(array(outputs["token_ids"]), array(outputs["padding_mask"]))
    ]


def by_transformers(theirs, prompt, length, stop=None, **settings):
    """Return the text of transformers, one prompt at a time, without padding."""
    config = transformers.GenerationConfig(
        max_length=length, eos_token_id=stop, pad_token_id=0, do_sample=False, **settings
    )
    ids = torch.tensor([prompt])
    found = theirs.model.generate(
        ids, attention_mask=torch.ones_like(ids), generation_config=config
    )[0].tolist()
    end = found.index(stop, len(prompt)) + 1 if stop in found[len(prompt) :] else len(found)
    return found[:end]


def a_stop(theirs, prompts, length, **settings):
    """Return a token that ends some of the texts, but not all."""
    texts = [by_transformers(theirs, prompt, length, **settings) for prompt in prompts]
    written = [set(text[len(prompt) :]) for text, prompt in zip(texts, prompts)]
    counts = {token: sum(token in one for one in written) for token in set.union(*written)}
    return min(counts, key=lambda token: abs(counts[token] - len(prompts) / 2))


def make(family="gpt2", **settings):
    settings = {"is_causal": True, "embedding_dim": None, **settings}
    return perturb(BertCausalLM(tiny_backbone(family, **settings)))


@pytest.mark.slow
# DeBERTa and Longformer attend to all tokens of a text.
@model_contract("gpt2", without=("deberta", "deberta_v3", "longformer"))
def test_contract(family, check, tmp_path):
    check(functools.partial(make, family), tmp_path)


@pytest.mark.peers
@pytest.mark.backends("torch")
@pytest.mark.parametrize("family", GPTS)
def test_equals_transformers(reference, family):
    theirs = reference(family, "LMHeadModel")
    model = BertCausalLM.from_preset(theirs.directory, preprocessor=None)
    assert theirs.compare(model) <= 1e-5
    assert theirs.compare(model.backbone) <= 1e-5
    inputs = theirs.inputs(13)
    logits = model.predict(inputs, verbose=0)
    there = inputs["padding_mask"] == 1
    assert np.abs(logits - theirs(inputs)["logits"])[there].max() <= 1e-5


@pytest.mark.peers
@pytest.mark.backends("torch")
@pytest.mark.parametrize("family", GPTS)
@pytest.mark.parametrize("beams", [1, 4])
def test_writes_as_transformers(reference, family, beams):
    """Token for token: prompts of all lengths in one batch, with an end token."""
    theirs = reference(family, "LMHeadModel")
    model = BertCausalLM.from_preset(theirs.directory, preprocessor=None)
    prompts = [*PROMPTS, *([i, 2 * i] for i in range(4, 20))]
    model.compile(sampler="greedy" if beams == 1 else BeamSampler(beams))
    stop = a_stop(theirs, prompts, 24, num_beams=beams)
    found = written(model, prompts, 24, (stop,))
    wanted = [by_transformers(theirs, prompt, 24, stop, num_beams=beams) for prompt in prompts]
    assert found == wanted
    assert any(len(text) < 24 for text in found) and any(len(text) == 24 for text in found)


@pytest.mark.peers
@pytest.mark.backends("torch")
@pytest.mark.parametrize("penalty", [0.0, 2.0])
def test_length_penalty(reference, penalty):
    theirs = reference("gpt2", "LMHeadModel")
    model = BertCausalLM.from_preset(theirs.directory, preprocessor=None)
    model.compile(sampler=BeamSampler(3, length_penalty=penalty))
    settings = {"num_beams": 3, "length_penalty": penalty}
    prompts = [*PROMPTS, *([i, 2 * i] for i in range(4, 20))]
    stop = a_stop(theirs, prompts, 24, **settings)
    wanted = [by_transformers(theirs, prompt, 24, stop, **settings) for prompt in prompts]
    assert written(model, prompts, 24, (stop,)) == wanted


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "jax", "torch")
@pytest.mark.parametrize("family", GPTS)
def test_cached_equals_uncached(family):
    model = tiny(family)
    features = batch(model)
    ids = features["token_ids"]
    logits = array(model(features))
    cache = model._fresh_cache(ids[:, :3], 7)
    for place in range(2, 7):
        step, _, cache = model.call_with_cache(ids[:, place : place + 1], cache, place)
        there = features["padding_mask"][:, place] == 1
        assert_close(array(step)[there, 0], logits[there, place])
    # Several tokens at once give the same.
    cache = model._fresh_cache(ids[:, :2], 7)
    step, _, _ = model.call_with_cache(ids[:, 2:], cache, 2)
    there = features["padding_mask"][:, 2:] == 1
    assert_close(array(step)[there], logits[:, 2:][there])


def test_rotary_and_local_layers_with_a_cache():
    sizes = {**SETTINGS, **FAMILY_SETTINGS["modernbert"], "is_causal": True}
    keras.utils.set_random_seed(1)
    model = perturb(BertCausalLM(BertBackbone.from_family("modernbert", **sizes)))
    features = batch(model, lengths=(12, 12), length=12)
    logits = array(model(features))
    cache = model._fresh_cache(features["token_ids"][:, :5], 12)
    step, _, _ = model.call_with_cache(features["token_ids"][:, 5:], cache, 5)
    assert_close(step, logits[:, 5:])


@pytest.mark.backends("torch")
def test_steps_by_a_graph(monkeypatch):
    """Steps as a graph of PyTorch's operations give the same, also for other sizes."""
    from kerasbert.backend import torch_kernels as module

    model = tiny()
    model.compile(sampler=BeamSampler(2))
    rows = PROMPTS_30, [[9]], [[4, 5, 6], [7]]
    wanted = [written(model, prompts, length) for prompts, length in zip(rows, (12, 9, 16))]
    assert not model.__dict__["_loop_graphs"]._made
    monkeypatch.setattr(module, "OFTEN_IN_LOOPS", 2)
    del model.__dict__["_loop_graphs"]
    found = [written(model, prompts, length) for prompts, length in zip(rows, (12, 9, 16))]
    assert found == wanted
    assert [graph.module is not None for graph in model.__dict__["_loop_graphs"]._made]
    # The graph uses the current weights.
    perturb(model)
    by_graph = written(model, PROMPTS_30, 12)
    del model.__dict__["_loop_graphs"]
    assert written(model, PROMPTS_30, 12) == by_graph


@pytest.mark.slow
def test_greedy_is_the_likeliest_token():
    """Greedy decoding and a single beam both take the most likely token."""
    model = tiny()
    model.compile(sampler="greedy")
    texts = written(model, PROMPTS_30, 12)
    likeliest = array(model(padded(texts, 12))).argmax(axis=-1)
    for text, prompt, row in zip(texts, PROMPTS_30, likeliest):
        end = len(text) - 1
        assert text[: len(prompt)] == prompt and (end == 11 or text[end] == STOP)
        assert text[len(prompt) :] == row[len(prompt) - 1 : end].tolist()
        assert STOP not in text[len(prompt) : end]
    model.compile(sampler=BeamSampler(1), run_eagerly=True)
    assert written(model, PROMPTS_30, 12) == texts


PROMPTS_30 = [[id % 30 for id in prompt] for prompt in PROMPTS]


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "jax", "torch")
def test_samplers():
    model = tiny()
    for sampler in ("top_k", "top_p", "random", "beam"):
        model.compile(sampler=sampler)
        for text, prompt in zip(written(model, PROMPTS_30, 10), PROMPTS_30):
            assert text[: len(prompt)] == prompt and len(text) <= 10, sampler
            assert STOP not in text[len(prompt) : -1], sampler


@pytest.mark.slow
def test_sampler_is_ours_and_survives_saving(tmp_path):
    model = tiny()
    beams = keras_hub.samplers.BeamSampler(num_beams=3, temperature=0.5)
    model.compile(sampler=beams, run_eagerly=True)
    assert type(model.sampler) is BeamSampler and model.sampler.num_beams == 3
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.sampler.get_config() == model.sampler.get_config()
    assert written(loaded, PROMPTS_30, 10) == written(model, PROMPTS_30, 10)
    model.compile(sampler=keras_hub.samplers.TopKSampler(k=2, seed=3))
    model.save(tmp_path / "model.keras")
    assert keras.models.load_model(tmp_path / "model.keras").sampler.k == 2
    assert keras.models.clone_model(model)(batch(model)).shape == (3, 7, 30)
    for wrong in ("gredy", "contrastive", keras_hub.samplers.ContrastiveSampler(), 3):
        with pytest.raises(ValueError, match="use one of top_k, greedy"):
            model.compile(sampler=wrong)
    with pytest.raises(ValueError, match="return_all_beams"):
        model.compile(sampler=keras_hub.samplers.BeamSampler(return_all_beams=True))


def test_needs_an_encoder_that_looks_left():
    both = BertBackbone(**SETTINGS)
    with pytest.raises(ValueError, match="bidirectional.* is_causal=True"):
        BertCausalLM(both)
    with pytest.raises(ValueError, match="embedding_dim=8"):
        BertCausalLM(BertBackbone(**SETTINGS, is_causal=True, embedding_dim=8))
    others = XLNetBackbone(9, 1, 1, 4, 4, is_causal=True), TransformerXLBackbone(9, 1, 1, 4, 4)
    for other in others:
        with pytest.raises(ValueError, match="BertCausalLM needs a BertBackbone"):
            BertCausalLM(other)


def test_of_a_masked_language_model_that_looks_left(tmp_path):
    """A masked language model that was pre-trained left to right (an ablation of the paper) can
    generate, too.
    """
    masked = perturb(BertMaskedLM(BertBackbone(**SETTINGS, is_causal=True)))
    masked.save_to_preset(tmp_path)
    with pytest.raises(ValueError, match="has no head for a BertCausalLM; pass new_head=True"):
        BertCausalLM.from_preset(str(tmp_path), preprocessor=None)
    model = BertCausalLM.from_preset(str(tmp_path), preprocessor=None, new_head=True)
    assert_close(model.backbone.get_weights(), masked.backbone.get_weights(), atol=0)
    model.compile(sampler="greedy", run_eagerly=True)
    assert len(written(model, [[5, 6]], 8, None)[0]) == 8


# === Texts ===


@pytest.fixture(scope="module")
def tokenizer():
    from tests.export.tiny import byte_pairs

    return byte_pairs(GPT2Tokenizer, "<|endoftext|>")


def of_texts(tokenizer, sequence_length=32, **settings):
    size = tokenizer.vocabulary_size()
    backbone = tiny_backbone("gpt2", vocabulary_size=size, max_sequence_length=32)
    packer = BertCausalLMPreprocessor(tokenizer, sequence_length, **settings)
    return BertCausalLM(backbone, preprocessor=packer)


TEXTS = ["lower and lower we go", "", "Ä", "日本語 🙂", "x"]


def log_odds(model, rows):
    """Return the log-probabilities (N, T, V) of the token after each."""
    logits = array(model(padded(rows, max(map(len, rows))))).astype("float64")
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


@pytest.mark.slow
def test_scores(tokenizer, monkeypatch):
    from kerasbert.heads.causal_lm import model as causal_lm

    model = of_texts(tokenizer)
    for starts in (True, False):
        model.preprocessor = BertCausalLMPreprocessor(tokenizer, 32, add_start_token=starts)
        found = model.score(TEXTS)
        for text, row in zip(TEXTS, found):
            ids, begins, ends = tokenizer.tokenize_with_offsets(text)
            whole = [tokenizer.start_token_id, *ids] if starts else ids
            assert [one["token_id"] for one in row] == whole[1:], (starts, text)
            places = list(zip(begins, ends))[0 if starts else 1 :]
            assert [(one["start"], one["end"]) for one in row] == places, (starts, text)
            if len(whole) > 1:
                odds = log_odds(model, [whole])[0]
                wanted = [odds[i, id] for i, id in enumerate(whole[1:])]
                scores = [one["score"] for one in row]
                np.testing.assert_allclose(scores, wanted, atol=1e-5, err_msg=f"{starts}, {text}")
        row = [one["score"] for one in found[0]]
        alone = [one["score"] for one in model.score(TEXTS[0])]
        np.testing.assert_allclose(alone, row, atol=1e-5)
        assert model.perplexity(TEXTS[0]) == pytest.approx(np.exp(-np.mean(row))), starts
        texts = [TEXTS[0], TEXTS[3]]
        assert model.perplexity(texts)[0] == pytest.approx(model.perplexity(TEXTS[0]), rel=1e-5)
    # Texts without a token to score.
    assert model.score("") == model.score("x") == [] and model.score(["", "x"]) == [[], []]
    with pytest.raises(ValueError, match="position 0 has no token .* add_start_token=True"):
        model.perplexity("")
    # Few logits at a time.
    monkeypatch.setattr(causal_lm, "MOST_LOGITS", 1)
    for a, b in zip(found, model.score(TEXTS)):
        np.testing.assert_allclose([x["score"] for x in a], [x["score"] for x in b], atol=1e-5)


@pytest.mark.slow
def test_long_texts_are_read_in_windows(tokenizer):
    """Each token is scored in the first window that contains it, as in transformers' page on
    perplexity.
    """
    model = of_texts(tokenizer, 16)
    text = "lower we go, and then we go on, lower and lower"
    ids = tokenizer(text)
    assert len(ids) > 32
    for stride in (None, 1, 5, 15):
        step = 8 if stride is None else stride
        wanted, before = [], 1
        windows = [ids[begin : begin + 16] for begin in range(0, len(ids), step)]
        for i, (window, odds) in enumerate(zip(windows, log_odds(model, windows))):
            places = range(before - i * step, len(window))
            wanted += [odds[place - 1, window[place]] for place in places]
            before = i * step + len(window)
        found = [one["score"] for one in model.score(text, stride=stride, batch_size=3)]
        np.testing.assert_allclose(found, wanted, atol=1e-5, err_msg=f"stride {stride}")
    with pytest.raises(ValueError, match="stride=16 leaves windows"):
        model.score(text, stride=16)
    with pytest.raises(ValueError, match="position 1 has no token .* add_start_token=True"):
        model.perplexity(["lower we", "x"])


@pytest.mark.slow
def test_generate_on_texts(tokenizer, monkeypatch):
    seen, whole = [], BertBackbone.call_with_cache

    def call(self, token_ids, *arguments):
        seen.append(int(token_ids.shape[1]))
        return whole(self, token_ids, *arguments)

    monkeypatch.setattr(BertBackbone, "call_with_cache", call)
    model = of_texts(tokenizer)
    model.compile(sampler="greedy")
    prompts = ["lower", "we go lower and", "日本"]
    texts = model.generate(prompts, max_length=24)
    assert all(text.startswith(prompt) for text, prompt in zip(texts, prompts))
    # Prompts run at their own lengths.
    seen.clear()
    assert model.generate(prompts[0], max_length=24) == texts[0]
    assert seen[0] == 8 and set(seen[1:]) == {1}
    rest = model.generate(prompts, max_length=24, strip_prompt=True)
    for text, end in zip(texts, rest):
        assert len(end) < len(text) and text.endswith(end[-2:])
    assert len(tokenizer(model.generate("lower", stop_token_ids=None)[5:])) > 1
    assert model.generate(np.array(prompts), 24) == texts
    with pytest.raises(ValueError, match="prompt '' at position 1 has no token"):
        model.generate(["lower", ""])
    with pytest.raises(ValueError, match="prompt at position 0 has 1 tokens, and max_length=1"):
        model.generate("lo", 1)
    with pytest.raises(ValueError, match="max_length=33 exceeds the prep"):
        model.generate("lo", 33)
    with pytest.raises(ValueError, match="max_length=0 must be"):
        model.generate("lo", 0)
    with pytest.raises(ValueError, match="position 0 is 3"):
        model.generate([3])
    with pytest.raises(ValueError, match="position 1|pairs"):
        model.generate((["lower"], ["we"]))
    started = of_texts(tokenizer, add_start_token=True)
    started.compile(run_eagerly=True)
    assert isinstance(started.generate("", 8), str)


def test_arrays_that_are_no_prompts():
    model = tiny()
    good = padded(PROMPTS_30, 8)
    with pytest.raises(ValueError, match="17 tokens per row, .* 16 positions"):
        model.generate(padded(PROMPTS_30, 17), stop_token_ids=None)
    for mask in ([0] * 8, [0, 1, 1, 0, 0, 0, 0, 0]):
        with pytest.raises(ValueError, match="Row 1 of padding_mask"):
            wrong = np.array(good["padding_mask"])
            wrong[1] = mask
            model.generate({**good, "padding_mask": wrong}, stop_token_ids=None)
    with pytest.raises(ValueError, match=r"token_ids has \d+ at"):
        model.generate({**good, "token_ids": good["token_ids"] + 77}, stop_token_ids=None)
    with pytest.raises(ValueError, match="got token_ids, but also needs padding_mask"):
        model.generate({"token_ids": good["token_ids"]}, stop_token_ids=None)
    for ids in (good["token_ids"][:, :5], good["token_ids"][0]):
        with pytest.raises(ValueError, match=r"both must be \(texts, tokens\)"):
            model.generate({**good, "token_ids": ids}, stop_token_ids=None)
    with pytest.raises(ValueError, match="stop_token_ids has 1.5"):
        model.generate(good, stop_token_ids=1.5)


@pytest.mark.parametrize(
    "settings", [{"temperature": 0}, {"temperature": "hot"}, {"forbidden_token_ids": "ab"}]
)
def test_wrong_settings_of_a_sampler(settings):
    with pytest.raises(ValueError, match=f"{next(iter(settings))}=.* must be"):
        BeamSampler(2, **settings)


def test_rows_of_long_texts(tokenizer):
    """`fit` and `evaluate` leave out no token: each is predicted once."""
    model = of_texts(tokenizer, 8)
    model.compile(run_eagerly=True)
    packer = model.preprocessor
    texts = ["lower we go, and then we go on", "x", "", "lo lo"]
    batches = list(packer.batches(texts, batch_size=3, shuffle=False))
    rows = [row for x, y, w in batches for row in zip(*map(np.asarray, (x["token_ids"], y, w)))]
    seen = [[(int(a), int(b)) for a, b, there in zip(*row) if there] for row in rows]
    pairs = [pair for row in seen for pair in row]
    wanted = []
    for text in texts:
        ids = [*tokenizer(text), tokenizer.end_token_id]
        wanted += list(zip(ids, ids[1:]))
    assert pairs == wanted and len(rows) > len(texts)
    losses = model.evaluate(texts, return_dict=True, verbose=0)
    assert losses["perplexity"] == pytest.approx(np.exp(losses["loss"]), rel=1e-4)


@pytest.mark.backends("torch")
def test_learns_a_text(tokenizer):
    keras.utils.set_random_seed(0)
    model = of_texts(tokenizer)
    model.compile(keras.optimizers.Adam(1e-2), sampler="greedy")
    text = "lower and lower we go"
    model.fit([text] * 8, epochs=40, batch_size=8, verbose=0)
    assert model.generate("lower and") == text
    assert model.perplexity(text) < 2
    with pytest.raises(ValueError, match="makes its own labels"):
        model.fit([text], [1])


@pytest.mark.slow
def test_preset(tokenizer, tmp_path):
    model = of_texts(tokenizer)
    model.compile(sampler="greedy", run_eagerly=True)
    model.save_to_preset(tmp_path / "own")
    again = BertCausalLM.from_preset(str(tmp_path / "own"))
    again.compile(sampler="greedy", run_eagerly=True)
    assert again.generate("lower") == model.generate("lower")
    classifier = BertTextClassifier.from_preset(str(tmp_path / "own"), num_classes=2)
    assert classifier.pooling == "last"


@pytest.mark.peers
@pytest.mark.backends("torch")
@pytest.mark.parametrize("tie", [True, False])
def test_transformers_reads_it(tokenizer, tmp_path, tie):
    base = of_texts(tokenizer)
    model = BertCausalLM(base.backbone, preprocessor=base.preprocessor, tie_weights=tie)
    perturb(model).save_to_preset(tmp_path / "own")
    convert(str(tmp_path / "own"), str(tmp_path / "theirs"), format="huggingface")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "theirs").eval()
    assert type(theirs).__name__ == "GPT2LMHeadModel"
    ids = tokenizer("lower we go")
    with torch.no_grad():
        wanted = theirs(torch.tensor([ids])).logits.numpy()
    assert_close(model({"token_ids": np.array([ids], "int32")}), wanted)
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    assert read("lower we go")["input_ids"] == ids
    again = BertCausalLM.from_preset(str(tmp_path / "theirs"))
    assert_close(again({"token_ids": np.array([ids], "int32")}), wanted)
    assert again.preprocessor.tokenizer("lower we go") == ids
    assert type(again.preprocessor.tokenizer) is GPT2Tokenizer


@pytest.mark.backends("torch")
def test_keras_hub_reads_it(tokenizer, tmp_path):
    model = of_texts(tokenizer)
    model.compile(sampler="greedy")
    model.save_to_preset(tmp_path / "own")
    convert(str(tmp_path / "own"), str(tmp_path / "theirs"), format="keras_hub")
    theirs = keras_hub.models.CausalLM.from_preset(str(tmp_path / "theirs"))
    assert type(theirs) is keras_hub.models.GPT2CausalLM
    ids = np.array([tokenizer("lower we go")], "int32")
    wanted = theirs({"token_ids": ids, "padding_mask": np.ones_like(ids)})
    assert_close(model({"token_ids": ids}), wanted)
    again = BertCausalLM.from_preset(str(tmp_path / "theirs"))
    again.compile(sampler="greedy")
    assert again.generate("lower we") == model.generate("lower we")


@pytest.mark.peers
@pytest.mark.backends("torch")
@pytest.mark.parametrize("family", GPTS)
def test_classes_are_read_off_the_last_token(reference, family, tmp_path):
    theirs = reference(family, "ForSequenceClassification", num_labels=3)
    model = BertTextClassifier.from_preset(theirs.directory, preprocessor=None)
    assert model.pooling == "last" and not model.output_bias
    assert theirs.compare(model) <= 1e-5
    convert(theirs.directory, str(tmp_path / "again"), format="huggingface", tokenizer=False)
    again = type(theirs.model).from_pretrained(tmp_path / "again").eval()
    for name, weight in theirs.model.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight), name


@pytest.mark.peers
@pytest.mark.backends("torch")
@pytest.mark.parametrize("family", GPTS)
@pytest.mark.parametrize("tie", [True, False])
def test_there_and_back(reference, family, tmp_path, tie):
    theirs = reference(family, "LMHeadModel", tie_word_embeddings=tie)
    model = BertCausalLM.from_preset(theirs.directory, preprocessor=None)
    assert model.tie_weights == tie and theirs.compare(model) <= 1e-5
    convert(theirs.directory, str(tmp_path / "again"), format="huggingface", tokenizer=False)
    again = type(theirs.model).from_pretrained(tmp_path / "again").eval()
    for name, weight in theirs.model.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight), name
