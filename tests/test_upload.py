"""Sharing, with local stand-ins that implement the hubs' interfaces."""

import os
import re
import shutil
import traceback

import numpy as np
import pytest

import kerasbert
from kerasbert.models import BertBackbone, BertTextClassifier, BertTextClassifierPreprocessor
from kerasbert.upload import model_card, upload_preset
from tests.contracts import array, batch, bert_tokenizer, perturb, tiny_backbone
from tests.stand_in import files_of, hub_stand_in, kaggle_stand_in

# No backend is involved.
pytestmark = pytest.mark.backends("tensorflow")

hub = pytest.fixture(hub_stand_in)
kaggle = pytest.fixture(kaggle_stand_in)

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(25))]
CARD = {
    "description": "Finds spam among text messages.",
    "base": "bert_tiny_en_uncased",
    "data": "UCI SMS Spam Collection: \"ham\" & 'spam'",
    "datasets": ["sms_spam"],
    "scores": {"accuracy": 0.9876, "F1": 0.95},
    "scored_on": "966 messages, held out",
    "limits": "English only.",
}
SECRET = "hf_verysecrettoken"


@pytest.fixture(scope="module")
def classifier():
    preprocessor = BertTextClassifierPreprocessor(bert_tokenizer(TOKENS), sequence_length=12)
    return perturb(
        BertTextClassifier(tiny_backbone(), labels=["ham", "spam"], preprocessor=preprocessor)
    )


@pytest.fixture(scope="module")
def saved(classifier, tmp_path_factory):
    path = str(tmp_path_factory.mktemp("saved") / "preset")
    classifier.save_to_preset(path)
    return path


@pytest.fixture
def preset(saved, tmp_path):
    """A copy of a preset, to which uploads add a card."""
    return str(shutil.copytree(saved, tmp_path / "preset"))


@pytest.fixture
def token(hub, monkeypatch):
    """A token that may write for "me" and "org"."""
    monkeypatch.setenv("HF_TOKEN", SECRET)
    hub.writers[SECRET] = ["me", "org"]


def front_matter(text):
    import yaml

    return yaml.safe_load(re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)[1])


def test_hugging_face(hub, token, preset, classifier):
    page = kerasbert.upload_preset("hf://org/spam", preset, card=CARD)
    assert page.endswith("/org/spam")
    uploaded = hub.repositories["org/spam"]["main"][1]
    assert uploaded == files_of(preset)  # The card is in the directory, too.
    assert {"README.md", "task.json", "task.weights.h5"} <= set(uploaded)
    card = uploaded["README.md"].decode()
    assert 'BertTextClassifier.from_preset("hf://org/spam")' in card
    loaded = BertTextClassifier.from_preset("hf://org/spam")
    features = batch(classifier)
    np.testing.assert_array_equal(array(loaded(features)), array(classifier(features)))
    # The second upload goes to a user's own account, with the existing card.
    kerasbert.upload_preset("hf://spam", preset)
    assert hub.repositories["me/spam"]["main"][1]["README.md"].decode() == card
    kerasbert.upload_preset("hf://org/spam", preset, card={**CARD, "limits": "None known."})
    assert "None known." in hub.repositories["org/spam"]["main"][1]["README.md"].decode()


def test_card(preset, tmp_path):
    text = model_card(preset, "hf://org/spam", CARD)
    described = kerasbert.builtin_presets()["bert_tiny_en_uncased"]
    fields = front_matter(text)
    assert fields["library_name"] == "kerasbert"
    assert fields["pipeline_tag"] == "text-classification"
    assert fields["license"] == described["license"].lower()
    assert fields["language"] == described["languages"]
    assert fields["base_model"] == described["handle"].removeprefix("hf://")
    assert fields["datasets"] == ["sms_spam"]
    assert fields["tags"] == ["kerasbert", "keras", "bert"]
    result = fields["model-index"][0]["results"][0]
    assert result["dataset"]["name"] == "966 messages, held out"
    metrics = {m["name"]: m["value"] for m in result["metrics"]}
    assert metrics == {"accuracy": 0.9876, "F1": 0.95}
    for part in (
        "# spam\n",
        CARD["description"],
        "family bert",
        "2 layers, 16 wide, 2 heads, 16 positions",
        "`BertTokenizer`, lower case, 30 tokens",
        'Classes: "ham", "spam"',
        CARD["data"],
        "| accuracy | 0.9876 |",
        "English only.",
        f"- Paper: {described['paper']}",
    ):
        assert part in text
    # The example on the card runs.
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1].replace("hf://org/spam", preset)
    exec(code, {})


def test_card_of_little(tmp_path):
    """Only an encoder, about which nothing else is known."""
    tiny_backbone("roberta").save_to_preset(str(tmp_path))
    text = model_card(str(tmp_path), "kaggle://me/model/keras/tiny")
    fields = front_matter(text)
    assert fields["pipeline_tag"] == "feature-extraction"
    assert "license" not in fields and "model-index" not in fields
    assert text.count("not stated by the author") + text.count("Not stated by the author") == 3
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    exec(code.replace("kaggle://me/model/keras/tiny", str(tmp_path)), {})


@pytest.mark.slow
def test_kaggle(kaggle, preset, monkeypatch):
    monkeypatch.setenv("KAGGLE_API_TOKEN", SECRET)
    kaggle.writers.add(f"Bearer {SECRET}")
    page = upload_preset("kaggle://me/spam/keras/tiny", preset, card=CARD)
    assert page == "https://www.kaggle.com/models/me/spam/keras/tiny"
    expected = files_of(preset)
    assert kaggle.models["me/spam"]["tiny"] == [expected]
    assert b'from_preset("kaggle://me/spam/keras/tiny")' in expected["README.md"]
    # Another version of the model.
    upload_preset("kaggle://me/spam/keras/tiny", preset)
    assert kaggle.models["me/spam"]["tiny"] == [expected, expected]
    assert kaggle.asked.count("CreateModel") == 1


def no_secret(error):
    text = "".join(traceback.format_exception(error.value)) + str(error.value)
    assert SECRET not in text


@pytest.mark.parametrize("right", ["none", "no token", "of another"])
def test_no_right_to_write(hub, preset, monkeypatch, right, capfd):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", "/nowhere/token")
    if right != "no token":
        monkeypatch.setenv("HF_TOKEN", SECRET)
    if right == "of another":
        hub.writers[SECRET] = ["me"]
    with pytest.raises(
        ValueError, match="^No permission to write to 'hf://org/spam': log in to"
    ) as error:
        upload_preset("hf://org/spam", preset, card=CARD)
    no_secret(error)
    assert SECRET not in "".join(capfd.readouterr())
    assert hub.repositories == {}


def test_no_right_to_write_to_kaggle(kaggle, preset, monkeypatch):
    monkeypatch.setenv("KAGGLE_API_TOKEN", SECRET)
    with pytest.raises(
        ValueError, match="^No permission to write to 'kaggle://me/spam/keras/t"
    ) as error:
        upload_preset("kaggle://me/spam/keras/tiny", preset)
    no_secret(error)


def test_a_hub_out_of_reach(hub, token, preset):
    hub.shutdown()
    hub.server_close()
    with pytest.raises(ValueError, match=r"^Cannot upload to 'hf://org/spam' \(.*\); try") as error:
        upload_preset("hf://org/spam", preset)
    no_secret(error)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "uri, message",
    [
        ("org/spam", "'org/spam' is not a .* use hf://org/name or kaggle://user/model/keras/var"),
        ("s3://org/spam", "'s3://org/spam' is not a handle of a hub"),
        ("hf://a/b/c", "'hf://a/b/c' is not .* use hf://org/name, or hf://name"),
        ("hf://org/spam@main", "'hf://org/spam@main' is not a handle to upload to"),
        ("kaggle://me/spam/keras/tiny/2", "tiny/2' is not a .* use kaggle://user/model"),
    ],
)
def test_bad_handles(preset, uri, message):
    with pytest.raises(ValueError, match=message):
        upload_preset(uri, preset)


def test_what_is_no_preset(tmp_path, preset):
    with pytest.raises(ValueError, match="is not a directory; save a preset with save_to_preset"):
        upload_preset("hf://org/spam", tmp_path / "none")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ValueError, match="is not a kerasbert preset: it needs the config.json and"):
        upload_preset("hf://org/spam", tmp_path)
    os.remove(os.path.join(preset, "model.weights.h5"))
    with pytest.raises(ValueError, match="is not a kerasbert preset.*model.weights.h5"):
        upload_preset("hf://org/spam", preset)


@pytest.mark.parametrize(
    "card, message",
    [
        ("A model.", "card='A model.' must be a dict of description, base"),
        ({"licence": "mit"}, "field 'licence' in card; use description, base"),
        ({"scores": {"accuracy": "high"}}, "scores={.* in card must be a dict of numbers"),
        ({"scores": 0.9}, "scores=0.9 in card must be a dict of numbers"),
        ({"languages": "en"}, "languages='en' in card must be a list of strings"),
        ({"data": 3}, "data=3 in card must be a string"),
    ],
    ids=str,
)
def test_bad_cards(preset, card, message):
    with pytest.raises(ValueError, match=message):
        upload_preset("hf://org/spam", preset, card=card)
    assert not os.path.exists(os.path.join(preset, "README.md"))


def test_shards(hub, token, tmp_path):
    encoder = tiny_backbone()
    encoder.save_to_preset(str(tmp_path), max_shard_size=1e-5)
    upload_preset("hf://org/shards", tmp_path)
    loaded = BertBackbone.from_preset("hf://org/shards")
    assert all(np.array_equal(array(a), array(b)) for a, b in zip(loaded.weights, encoder.weights))
