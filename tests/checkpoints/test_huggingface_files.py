"""Files of Hugging Face checkpoints: all their forms, and all kinds of damage."""

import glob
import json
import os

import keras
import numpy as np
import pytest

import kerasbert
from kerasbert.encoder.backbone import BertBackbone
from kerasbert.heads.text_classifier.model import BertTextClassifier
from tests.contracts import ENCODERS
from tests.peers import safetensors_torch, torch

# Reading files does not depend on the backend, and PyTorch compiles nothing.
pytestmark = pytest.mark.backends("torch")


EVERY = pytest.mark.parametrize("family", ENCODERS)
CLASSIFIER = "ForSequenceClassification"


def numpy(x):
    return keras.ops.convert_to_numpy(x)


def load_classifier(directory, **arguments):
    return BertTextClassifier.from_preset(directory, preprocessor=None, **arguments)


@pytest.mark.peers
@EVERY
@pytest.mark.parametrize("kind", ["bin", "bin shards", "safetensors shards"])
def test_forms_of_files(reference, tmp_path, family, kind):
    theirs = reference(family, CLASSIFIER, num_labels=3)
    tensors = theirs.tensors()
    if kind == "bin":
        directory = theirs.copy_with(tmp_path, tensors, bin=True)
    else:
        directory = theirs.copy(tmp_path)
        os.remove(os.path.join(directory, "model.safetensors"))
        stem = "pytorch_model" if kind == "bin shards" else "model"
        end = ".bin" if kind == "bin shards" else ".safetensors"
        names, weight_map = sorted(tensors), {}
        for part in range(3):
            file = f"{stem}-{part + 1:05}-of-00003{end}"
            shard = {name: tensors[name] for name in names[part::3]}
            weight_map.update(dict.fromkeys(shard, file))
            save = torch.save if end == ".bin" else safetensors_torch.save_file
            save(shard, os.path.join(directory, file))
        with open(os.path.join(directory, f"{stem}{end}.index.json"), "w") as file:
            json.dump({"metadata": {}, "weight_map": weight_map}, file)
    assert theirs.compare(load_classifier(directory), lengths=(13,)) <= 1e-5


@pytest.mark.peers
@EVERY
def test_names_without_prefix_with_another_and_of_old(reference, tmp_path, family):
    theirs = reference(family)
    bare = theirs.tensors()
    renamed = {
        "prefixed": {f"some.module.{name}": tensor for name, tensor in bare.items()},
        "old": {
            name.replace("orm.weight", "orm.gamma").replace("orm.bias", "orm.beta"): tensor
            for name, tensor in bare.items()
        },
        "buffers": {**bare, "embeddings.position_ids": torch.arange(32)[None]},
    }
    for name, tensors in renamed.items():
        directory = theirs.copy_with(tmp_path / name, tensors)
        encoder = BertBackbone.from_preset(directory)
        assert theirs.compare(encoder, lengths=(13,)) <= 1e-5


@pytest.mark.peers
@pytest.mark.parametrize("bin", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(reference, tmp_path, dtype, bin):
    theirs = reference("bert", CLASSIFIER, num_labels=3)
    tensors = theirs.tensors()
    half = {name: tensor.to(getattr(torch, dtype)) for name, tensor in tensors.items()}
    classifier = load_classifier(theirs.copy_with(tmp_path, half, bin))
    assert {weight.dtype for weight in classifier.weights} == {"float32"}
    kernel = half["classifier.weight"].float().numpy().T
    np.testing.assert_array_equal(numpy(classifier.output_dense.kernel), kernel)


@pytest.mark.peers
def test_bin_of_parameters(reference, tmp_path):
    """The output of `torch.save(dict(model.named_parameters()), ...)`."""
    theirs = reference("bert", "ForSequenceClassification", num_labels=3)
    parameters = dict(theirs.model.named_parameters())
    assert all(parameter.requires_grad for parameter in parameters.values())
    directory = theirs.copy_with(tmp_path, parameters, bin=True)
    assert theirs.compare(load_classifier(directory), lengths=(5,)) <= 1e-5


@pytest.mark.peers
@pytest.mark.parametrize("dtype", ["int32", "bool", "complex64", "float8_e4m3fn"])
@pytest.mark.parametrize("bin", [False, True])
def test_types_that_are_no_weights(reference, tmp_path, dtype, bin):
    theirs = reference("bert", "ForSequenceClassification", num_labels=3)
    tensors = theirs.tensors()
    tensors["classifier.bias"] = tensors["classifier.bias"].to(getattr(torch, dtype))
    directory = theirs.copy_with(tmp_path, tensors, bin=bin)
    with pytest.raises(ValueError, match=r"tensor 'classifier.bias' of .* holds \w+, but wei"):
        load_classifier(directory)


@pytest.mark.peers
@pytest.mark.parametrize("dtype", ["bfloat16", "mixed_bfloat16"])
def test_dtype_passes_through(reference, dtype):
    theirs = reference("bert", CLASSIFIER, num_labels=3)
    classifier = load_classifier(theirs.directory, dtype=dtype)
    assert classifier.backbone.dtype_policy.name == dtype
    assert classifier.output_dense.dtype_policy.name == dtype
    inputs = theirs.inputs(13)
    assert np.abs(numpy(classifier(inputs)) - theirs(inputs)["logits"]).max() <= 0.1


# --- strictness and broken files ---


@pytest.mark.peers
def test_missing_and_left_over_are_both_listed(reference, tmp_path):
    theirs = reference("bert")
    tensors = theirs.tensors()
    tensors["encoder.layer.0.attention.extra.weight"] = torch.ones(2)
    del tensors["encoder.layer.1.output.dense.bias"]
    directory = theirs.copy_with(tmp_path, tensors)
    with pytest.raises(ValueError) as error:
        BertBackbone.from_preset(directory)
    message = str(error.value)
    assert "transformer_layer_1/output/bias (encoder.layer.1.output.dense.bias)" in message
    assert "Left over, theirs: encoder.layer.0.attention.extra.weight" in message


@pytest.mark.peers
def test_more_layers_than_the_configuration_says(reference, tmp_path):
    directory = reference("bert").copy(tmp_path, num_hidden_layers=1)
    with pytest.raises(ValueError, match=r"Left over, theirs: encoder.layer.1.*and 4 more"):
        BertBackbone.from_preset(directory)


@pytest.mark.peers
def test_left_over_part_of_the_head(reference, tmp_path):
    theirs = reference("bert", CLASSIFIER, num_labels=3)
    tensors = {**theirs.tensors(), "classifier.more.weight": torch.ones(2)}
    directory = theirs.copy_with(tmp_path, tensors)
    with pytest.raises(ValueError, match=r"Left over, theirs: classifier.more.weight"):
        load_classifier(directory)


@pytest.mark.peers
@pytest.mark.parametrize("bin", [False, True])
def test_another_shape(reference, tmp_path, bin):
    theirs = reference("bert")
    tensors = theirs.tensors()
    tensors["pooler.dense.weight"] = torch.ones(36, 35)
    directory = theirs.copy_with(tmp_path, tensors, bin)
    message = r"pooler.dense.weight \(36, 35\), but our pooled_dense/kernel is \(36, 36\)"
    with pytest.raises(ValueError, match=message):
        BertBackbone.from_preset(directory)


@pytest.mark.peers
def test_another_vocabulary_size(reference, tmp_path):
    directory = reference("bert").copy(tmp_path, vocab_size=98)
    with pytest.raises(ValueError, match=r"word_embeddings.weight \(99, 36\), but our"):
        BertBackbone.from_preset(directory)


@pytest.mark.peers
def test_another_family(reference, tmp_path):
    directory = reference("modernbert").copy(tmp_path, model_type="bert")
    with pytest.raises(ValueError, match=r"not an encoder of the family that its config.js"):
        BertBackbone.from_preset(directory)


def cut(path, share=0.5):
    with open(path, "rb") as file:
        data = file.read()
    with open(path, "wb") as file:
        file.write(data[: int(len(data) * share)])


@pytest.mark.peers
@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_truncated_safetensors(reference, tmp_path, share):
    directory = reference("bert").copy(tmp_path)
    cut(os.path.join(directory, "model.safetensors"), share)
    with pytest.raises(ValueError, match=r"model.safetensors' \(\d+ bytes\) is truncated or not"):
        BertBackbone.from_preset(directory)


@pytest.mark.peers
@pytest.mark.parametrize("share", [0.0, 0.5, 0.999])
def test_truncated_bin(reference, tmp_path, share):
    theirs = reference("bert")
    directory = theirs.copy_with(tmp_path, theirs.tensors(), bin=True)
    cut(os.path.join(directory, "pytorch_model.bin"), share)
    with pytest.raises(ValueError, match=r"pytorch_model.bin' \(\d+ bytes\) is truncated"):
        BertBackbone.from_preset(directory)


class _Code:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


@pytest.mark.peers
def test_bin_with_code_is_not_run(reference, tmp_path):
    theirs = reference("bert")
    mark = tmp_path / "ran"
    tensors = {**theirs.tensors(), "code": _Code(str(mark))}
    directory = theirs.copy_with(tmp_path / "model", tensors, bin=True)
    with pytest.raises(ValueError, match="other than tensors, which kerasbert does not unpickle"):
        BertBackbone.from_preset(directory)
    assert not mark.exists()


@pytest.mark.peers
def test_bin_with_something_else(reference, tmp_path):
    theirs = reference("bert")
    for number, content in enumerate(({**theirs.tensors(), "epoch": 3}, [1, 2])):
        directory = theirs.copy_with(tmp_path / str(number), content, bin=True)
        with pytest.raises(ValueError, match="holds objects other than tensors"):
            BertBackbone.from_preset(directory)


@pytest.mark.peers
@pytest.mark.parametrize(
    "weight_map, message",
    [
        ({"a": "model-00001.safetensors"}, "shard 'model-00001.safetensors', which is missing"),
        ({"a": "../other/model.safetensors"}, "which leaves its directory"),
        ({"a": "/etc/passwd"}, "which leaves its directory"),
        ({"a": ".."}, "which leaves its directory"),
        ({"a": "sub\\model.safetensors"}, "which leaves its directory"),
        ({"a": 3}, "shard '3', which is missing"),
        ({}, "names no shards"),
        (["a"], "names no shards"),
    ],
    ids=str,
)
def test_broken_index(reference, tmp_path, weight_map, message):
    directory = reference("bert").copy(tmp_path)
    os.remove(os.path.join(directory, "model.safetensors"))
    with open(os.path.join(directory, "model.safetensors.index.json"), "w") as file:
        json.dump({"weight_map": weight_map}, file)
    with pytest.raises(ValueError, match=message):
        BertBackbone.from_preset(directory)


@pytest.mark.peers
def test_no_weights(reference, tmp_path):
    directory = reference("bert").copy(tmp_path)
    for path in glob.glob(os.path.join(directory, "*.safetensors")):
        os.remove(path)
    with pytest.raises(ValueError, match=r"has no weights: neither model.safetensors nor"):
        BertBackbone.from_preset(directory)
    BertBackbone.from_preset(directory, load_weights=False)


@pytest.mark.parametrize(
    "content, message",
    [("{", "is not valid JSON"), ("[]", "holds a list, but must hold"), ("\xff", "not valid JSON")],
)
def test_broken_configuration(tmp_path, content, message):
    (tmp_path / "config.json").write_text(content, encoding="latin-1")
    with pytest.raises(ValueError, match=message):
        BertBackbone.from_preset(str(tmp_path))


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrst"]
LONG = " ".join("abcdefghijklmnopqrst")


def with_sides(reference, tmp_path, head=CLASSIFIER, **sides):
    """Make a checkpoint with a vocabulary and other files; dicts by names without extension."""
    theirs = reference("bert", head, num_labels=3)
    directory = theirs.copy(tmp_path)
    sides.setdefault("tokenizer_config", {"tokenizer_class": "BertTokenizer"})
    with open(os.path.join(directory, "vocab.txt"), "w") as file:
        file.write("\n".join(WORDS))
    for name, content in sides.items():
        with open(os.path.join(directory, f"{name}.json"), "w") as file:
            json.dump(content, file)
    return theirs, directory


def logits_of_theirs(theirs, directory, *texts):
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    inputs = tokenizer(*texts, truncation=True, return_tensors="pt")
    with torch.no_grad():
        return theirs.model(**inputs).logits.numpy()


@pytest.mark.peers
@pytest.mark.parametrize("name, length", [("model_max_length", 8), ("max_len", 5), ("", 512)])
def test_texts_are_cut_where_the_tokenizer_says(reference, tmp_path, name, length):
    config = {"tokenizer_class": "BertTokenizer", **({name: length} if name else {})}
    theirs, directory = with_sides(reference, tmp_path, tokenizer_config=config)
    ours = BertTextClassifier.from_preset(directory)
    assert ours.preprocessor.sequence_length == min(length, ours.backbone.max_sequence_length)
    if name:
        expected = logits_of_theirs(theirs, directory, [LONG])
        np.testing.assert_allclose(ours.predict([LONG]), expected, atol=1e-5)
    longer = BertTextClassifier.from_preset(directory, sequence_length=11)
    assert longer.preprocessor.sequence_length == 11


@pytest.mark.peers
def test_pairs_without_token_types(reference, tmp_path):
    names = ["input_ids", "attention_mask"]
    config = {"tokenizer_class": "BertTokenizer", "model_input_names": names}
    theirs, directory = with_sides(reference, tmp_path, tokenizer_config=config)
    ours = BertTextClassifier.from_preset(directory)
    expected = logits_of_theirs(theirs, directory, ["a b c"], ["d e"])
    np.testing.assert_allclose(ours.predict((["a b c"], ["d e"])), expected, atol=1e-5)
    folder = str(tmp_path / "there")
    kerasbert.convert(directory, folder)
    np.testing.assert_allclose(logits_of_theirs(theirs, folder, ["a b c"], ["d e"]), expected, 1e-5)
    assert BertTextClassifier.from_preset(folder).preprocessor.num_segments == 1


@pytest.mark.peers
def test_padding_is_masked_if_the_tokenizer_returns_no_mask(reference, tmp_path):
    config = {"tokenizer_class": "BertTokenizer", "model_input_names": ["input_ids"]}
    theirs, directory = with_sides(reference, tmp_path, tokenizer_config=config)
    ours = BertTextClassifier.from_preset(directory)
    alone = [logits_of_theirs(theirs, directory, [text])[0] for text in ("a", "a b c d")]
    np.testing.assert_allclose(ours.predict(["a", "a b c d"]), alone, atol=1e-5)


@pytest.mark.peers
@pytest.mark.parametrize(
    "sides, message",
    [
        ({"tokenizer_config": {"truncation_side": "left"}}, "has truncation_side='left'"),
        ({"tokenizer_config": {"padding_side": "left"}}, "has padding_side='left'"),
        (
            {"tokenizer_config": {"model_max_length": "8"}},
            "model_max_length='8' in .* whole number",
        ),
        ({"tokenizer_config": {"model_input_names": "a"}}, "model_input_names='a' in .* a list of"),
        (
            {"special_tokens_map": {"additional_special_tokens": [1]}},
            "a token of additional_special_tokens=1 in .* a string",
        ),
    ],
)
def test_side_files_that_cannot_be_followed(reference, tmp_path, sides, message):
    _, directory = with_sides(reference, tmp_path, **sides)
    with pytest.raises(ValueError, match=message):
        BertTextClassifier.from_preset(directory)


@pytest.mark.peers
@pytest.mark.parametrize(
    "name, value", [("repetition_penalty", 1.2), ("eos_token_id", [1, 2]), ("bad_words_ids", [[3]])]
)
def test_ways_to_write_that_are_not_ours(reference, tmp_path, name, value):
    from kerasbert.models import BertCausalLM

    directory = reference("gpt2", "LMHeadModel").copy(tmp_path)
    path = os.path.join(directory, "generation_config.json")
    with open(path, "w") as file:
        json.dump({"do_sample": True, "repetition_penalty": 1.0}, file)
    BertCausalLM.from_preset(directory, preprocessor=None)
    with open(path, "w") as file:
        json.dump({name: value}, file)
    with pytest.raises(ValueError, match=f"has {name}=.*which generate.. does not support"):
        BertCausalLM.from_preset(directory, preprocessor=None)
    BertBackbone.from_preset(directory)
