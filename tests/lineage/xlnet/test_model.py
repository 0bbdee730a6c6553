"""XLNet compared with transformers, live and recorded; memory, files, presets."""

import keras
import numpy as np
import pytest
from keras import ops

import kerasbert
from kerasbert.lineage import XLNetBackbone, XLNetPretrainer
from tests.contracts import array, assert_close, gradients, perturb
from tests.peers import torch, transformers

SIZES = {
    "vocabulary_size": 50,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 16,
    "intermediate_dim": 24,
}


def make(**settings):
    keras.utils.set_random_seed(1)
    return perturb(XLNetBackbone(**{**SIZES, **settings}))


def features(lengths=(4, 7, 2), length=7, seed=0):
    """Return left-padded rows with two segments; the last token has a third one."""
    random = np.random.default_rng(seed)
    mask = np.arange(length) >= length - np.array(lengths)[:, None]
    segments = np.where(mask, np.arange(length) > 4, 3).astype("int32")
    segments[:, -1] = 2
    ids = random.integers(0, 50, mask.shape, dtype="int32")
    return {"token_ids": ids, "segment_ids": segments, "padding_mask": mask.astype("int32")}


def permutations(seed=0):
    """Return a mask of the tokens that each token does not see, and two tokens per row to
    predict.
    """
    random = np.random.default_rng(seed)
    hidden = (random.random((3, 7, 7)) < 0.4).astype("float32")
    mapping = np.zeros((3, 2, 7), "float32")
    for row, places in enumerate([(3, 4), (0, 6), (5, 6)]):
        for i, place in enumerate(places):
            mapping[row, i, place] = hidden[row, :, place] = 1
    return hidden, mapping


def theirs(cls="XLNetModel", **settings):
    torch.manual_seed(0)
    config = transformers.XLNetConfig(
        vocab_size=50, d_model=16, n_layer=2, n_head=2, d_inner=24, mem_len=6, **settings
    )
    model = getattr(transformers, cls)(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return model


def run(model, x, **more):
    """Return the outputs of transformers' model for our inputs."""
    given = {
        "input_ids": torch.tensor(x["token_ids"]).long(),
        "token_type_ids": torch.tensor(x["segment_ids"]).long(),
    }
    if "padding_mask" in x:
        given["attention_mask"] = torch.tensor(x["padding_mask"]).float()
    with torch.no_grad():
        return model(**given, **{k: torch.as_tensor(v) for k, v in more.items()})


@pytest.mark.peers
@pytest.mark.parametrize("settings", [{}, {"clamp_len": 3}], ids=["free", "clamped"])
def test_equals_transformers(tmp_path, settings):
    peer = theirs(**settings)
    peer.save_pretrained(tmp_path)
    backbone = XLNetBackbone.from_preset(tmp_path)
    x = features()
    assert_close(backbone(x)["sequence_output"], run(peer, x).last_hidden_state, atol=2e-6)
    hidden, mapping = permutations()
    wanted = run(peer, x, perm_mask=hidden, target_mapping=mapping).last_hidden_state
    x = {name: ops.convert_to_tensor(value) for name, value in x.items()}
    found = backbone.predict_targets(x, *map(ops.convert_to_tensor, (hidden, mapping)))
    assert_close(found, wanted, atol=2e-6)


@pytest.mark.backends("tensorflow", "jax", "torch")
@pytest.mark.peers
@pytest.mark.parametrize("direction", ["bi", "uni"])
def test_memory_equals_transformers(tmp_path, direction):
    """Three segments of the same texts; the memory is truncated to six tokens."""
    peer = theirs(attn_type=direction)
    peer.save_pretrained(tmp_path)
    backbone = XLNetBackbone.from_preset(tmp_path)
    assert backbone.is_causal == (direction == "uni")
    memory = mems = None
    for part in range(3):
        x = features((4, 4, 4), 4, seed=part)
        # With a padding mask and a memory, transformers' left-to-right mask fails.
        del x["padding_mask"]
        given = {} if mems is None else {"mems": mems}
        with torch.no_grad():
            wanted = peer(
                torch.tensor(x["token_ids"]).long(),
                token_type_ids=torch.tensor(x["segment_ids"]).long(),
                use_mems=True,
                **given,
            )
        mems = wanted.mems
        outputs, memory = backbone.read_on(x, memory)
        assert_close(outputs["sequence_output"], wanted.last_hidden_state, atol=2e-6)
        assert_close(np.moveaxis(array(memory), 0, 2), torch.stack(mems), atol=2e-6)
    assert memory.shape[2] == 6


@pytest.mark.peers
def test_transformers_reads_it(tmp_path):
    backbone = make(clamp_length=3, memory_length=5)
    written = kerasbert.convert(backbone, tmp_path / "theirs", format="huggingface")
    assert written["written"] == "XLNetModel"
    peer = transformers.AutoModel.from_pretrained(tmp_path / "theirs").eval()
    x = features()
    assert_close(backbone(x)["sequence_output"], run(peer, x).last_hidden_state, atol=2e-6)


def test_files(tmp_path):
    """transformers' format, ours, and `.keras` hold the same model."""
    backbone = make(memory_length=5)
    x = features()
    wanted = backbone(x)["sequence_output"]
    kerasbert.convert(backbone, tmp_path / "theirs", format="huggingface")
    backbone.save_to_preset(tmp_path / "ours")
    backbone.save(tmp_path / "model.keras")
    again = [XLNetBackbone.from_preset(tmp_path / name) for name in ("theirs", "ours")]
    for model in (*again, keras.models.load_model(tmp_path / "model.keras")):
        assert type(model) is type(backbone)
        assert_close(model(x)["sequence_output"], wanted, atol=1e-6)
        config = {**model.get_config(), "name": backbone.name}
        assert config == backbone.get_config()


def test_padding_and_segments():
    """Padding on either side changes nothing; it matters only whether two segments are equal, not
    which they are.
    """
    backbone = make()
    x = features()
    wanted = array(backbone(x)["sequence_output"])[0, 3:]
    alone = {name: value[:1, 3:] for name, value in x.items()}
    assert_close(backbone(alone)["sequence_output"][0], wanted, atol=1e-6)
    right = {name: np.pad(value, [(0, 0), (0, 2)]) for name, value in alone.items()}
    assert_close(backbone(right)["sequence_output"][0, :4], wanted, atol=1e-6)
    renamed = {**alone, "segment_ids": 3 - alone["segment_ids"]}
    assert_close(backbone(renamed)["sequence_output"][0], wanted, atol=1e-6)
    merged = {**alone, "segment_ids": 0 * alone["segment_ids"]}
    assert np.abs(array(backbone(merged)["sequence_output"][0]) - wanted).max() > 1e-3


def test_left_to_right_memory_equals_one_text():
    backbone = make(is_causal=True, memory_length=0)
    x = {k: v for k, v in features((7, 7, 7)).items() if k == "token_ids"}
    whole = backbone(x)["sequence_output"]
    memory, parts = None, []
    for first in (0, 2, 5):
        part = {"token_ids": x["token_ids"][:, first : (2, 5, 7)[(0, 2, 5).index(first)]]}
        outputs, memory = backbone.read_on(part, memory)
        parts.append(array(outputs["sequence_output"]))
    assert memory.shape == (3, 2, 7, 16)
    assert_close(np.concatenate(parts, axis=1), whole, atol=1e-6)


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "jax", "torch")
def test_gradients_in_a_remat_scope():
    """Rematerialized blocks train the same weights, including the predictions' embedding."""
    hidden, mapping = permutations()
    more = {"hidden_mask": hidden.astype("int32"), "target_mapping": mapping}
    # The last entry names the weights that get no gradient in this case.
    cases = ((lambda x: x, {}, "mask_embedding"), (XLNetPretrainer, more, "segment_"))
    for wrap, more, unused in cases:
        x = features() | more
        _, expected = gradients(wrap(make(dropout=0.0)), x)
        with keras.RematScope("full"):
            model = wrap(make(dropout=0.0))
        _, found = gradients(model, x)
        assert_close(found, expected, atol=3e-6)
        for path, gradient in found.items():
            assert unused in path or np.abs(gradient).max() > 3e-5, path


def test_int8_lora_and_bfloat16(tmp_path):
    x = features()
    is_token = x["padding_mask"] == 1
    backbone = make()
    wanted = array(backbone(x)["sequence_output"])[is_token]
    half = XLNetBackbone(**SIZES, dtype="mixed_bfloat16")
    half.set_weights(backbone.get_weights())
    found = array(ops.cast(half(x)["sequence_output"], "float32"))[is_token]
    assert np.abs(found - wanted).max() < 0.1
    backbone.enable_lora(2)
    assert {weight.name for weight in backbone.trainable_weights} == {
        "lora_kernel_a",
        "lora_kernel_b",
    }
    small = make()
    small.quantize("int8")
    found = array(small(x)["sequence_output"])[is_token]
    assert 0 < np.abs(found - wanted).max() < 0.1
    small.save_to_preset(tmp_path / "int8")
    again = XLNetBackbone.from_preset(tmp_path / "int8")
    assert_close(array(again(x)["sequence_output"])[is_token], found, atol=1e-6)


def test_misuse(tmp_path):
    backbone = make()
    x = {"token_ids": np.ones((2, 3), "int32")}
    _, memory = backbone.read_on(x)
    with pytest.raises(ValueError, match=r"3 texts need \(3, 2, tokens, 16\)"):
        backbone.read_on({"token_ids": np.ones((3, 3), "int32")}, memory)
    with pytest.raises(ValueError, match="no argument 'memory_lenght'; did you mean memory_length"):
        make(memory_lenght=3)
    with pytest.raises(ValueError, match="no argument 'pooler'"):
        make(pooler=True)
    with pytest.raises(ValueError, match="clamp_length=0 must be"):
        make(clamp_length=0)
    with pytest.raises(ValueError, match="not a multiple of num_heads=3"):
        make(num_heads=3)
    with pytest.raises(ValueError, match="takes rows of any length.*pass sequence_length"):
        kerasbert.export_litert(backbone, tmp_path / "lite")


def test_of_another_family(tmp_path):
    """Even the smallest XLNet loads, although it has no position table; the errors of other classes
    name the right class.
    """
    settings = {"vocabulary_size": 9, "num_layers": 1, "hidden_dim": 4, "intermediate_dim": 4}
    kerasbert.convert(make(**settings), tmp_path / "theirs", format="huggingface")
    assert XLNetBackbone.from_preset(tmp_path / "theirs").hidden_dim == 4
    with pytest.raises(
        ValueError, match="of the family 'xlnet', which BertBackbone does not support"
    ):
        kerasbert.models.BertBackbone.from_preset(tmp_path / "theirs")
    with pytest.raises(ValueError, match="foreign checkpoint, which ElmoBackbone cannot"):
        kerasbert.lineage.ElmoBackbone.from_preset(tmp_path / "theirs")
    with pytest.raises(ValueError, match="'bert', which XLNetBackbone does not"):
        XLNetBackbone.from_preset("bert_base_en_uncased", load_weights=False)
    assert "bert_base_en_uncased" not in XLNetBackbone.presets
