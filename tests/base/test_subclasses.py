"""Presets of users' subclasses load with their base class, and as themselves."""

import functools
import json

import keras
import pytest

from kerasbert import convert, export_serving, lineage, models
from kerasbert.base import subclasses
from kerasbert.models import BertBackbone, BertTextClassifier, BertTextEmbedder
from kerasbert.preprocessors import BertTextClassifierPreprocessor, BertTextEmbedderPreprocessor
from kerasbert.presets import NoHeadError
from kerasbert.tasks.own import model_task
from kerasbert.tokenizers import BertTokenizer
from kerasbert.training.evaluation import open_model
from tests.contracts import assert_close, batch, perturb, tiny_backbone
from tests.export import tiny

# These values differ from the defaults, which would be restored even if they were not stored.
HEADS = {
    models.BertMaskedLM: {"tie_weights": False},
    models.BertMultipleChoice: {"dropout": 0.3},
    models.BertNextSentencePredictor: {"dropout": 0.3},
    models.BertPretrainer: {},
    models.BertQuestionAnswering: {"head_activation": "tanh"},
    models.BertReplacedTokenDetector: {},
    models.BertReranker: {"pooling": "mean"},
    models.BertSparseEmbedder: {},
    models.BertStructuralProbe: {"rank": 3},
    models.BertTextClassifier: {"labels": ["ham", "spam"], "pooling": "mean"},
    models.BertTextEmbedder: {"pooling": "max", "layers": "sum_last_four", "normalize": True},
    models.BertTextRegressor: {"bilstm_units": 2},
    models.BertTokenClassifier: {"labels": ["PER"], "scheme": "BIO"},
}


@functools.cache
def encoder():
    return tiny_backbone(num_layers=4)


def subclass(cls, **namespace):
    return type(f"My{cls.__name__}", (cls,), {"__module__": __name__, **namespace})


def with_alpha(cls, saved):
    """Make a subclass with an additional argument, which may be missing from its config."""

    class Mine(cls):
        def __init__(self, *args, alpha=0.5, **kwargs):
            super().__init__(*args, **kwargs)
            self.alpha = alpha

        def get_config(self):
            return {**super().get_config(), **({"alpha": self.alpha} if saved else {})}

    Mine.__name__ += cls.__name__
    return Mine


@pytest.fixture
def registered():
    """Register a class with Keras until the test ends."""
    names = []

    def register(cls):
        keras.saving.register_keras_serializable(package="mine")(cls)
        names.append(keras.saving.get_registered_name(cls))
        return cls

    yield register
    known = keras.saving.get_custom_objects()
    for name in names:
        known.pop(name, None)


def check_both(model, ours, folder):
    """Check that a preset of a subclass loads as the subclass and as `ours`, with all settings."""
    features, path = batch(model), folder / "preset"
    model.save_to_preset(path)
    for cls in (ours, type(model)):
        loaded = cls.from_preset(path)
        assert type(loaded) is cls
        assert_close(loaded(features), model(features), atol=0)
        for name, value in ours.get_config(loaded).items():
            if name not in ("backbone", "preprocessor", "name"):
                assert value == ours.get_config(model)[name], name
    return loaded


@pytest.mark.backends("torch")
@pytest.mark.parametrize("cls", HEADS, ids=lambda cls: cls.__name__)
def test_a_subclass_of_each_task_loads_as_it_was(cls, tmp_path):
    model = perturb(subclass(cls)(encoder(), **HEADS[cls]))
    check_both(model, cls, tmp_path)
    assert json.loads((tmp_path / "preset" / "task.json").read_text())["registered_name"] == (
        f"kerasbert>{cls.__name__}"
    )


@pytest.mark.backends("torch")
@pytest.mark.parametrize("is_registered", [False, True])
@pytest.mark.parametrize("saved", [False, True])
def test_settings_of_the_subclass_are_kept(registered, is_registered, saved, tmp_path):
    mine = with_alpha(BertTextEmbedder, saved)
    if is_registered:
        registered(mine)
    model = perturb(mine(encoder(), pooling="max", alpha=0.25))
    assert check_both(model, BertTextEmbedder, tmp_path).alpha == 0.25
    assert mine.from_preset(tmp_path / "preset", alpha=2.0).alpha == 2.0
    assert model.with_layers([0, 3]).alpha == 0.25


def test_a_subclass_takes_the_arguments_that_it_passes_on(tmp_path):
    mine = with_alpha(BertTextClassifier, True)
    BertTextClassifier(encoder(), num_classes=2).save_to_preset(tmp_path)
    with pytest.warns(UserWarning, match="New, random weights"):
        loaded = mine.from_preset(tmp_path, num_classes=3, alpha=0.1, dropout=0.2)
    assert (loaded.num_classes, loaded.alpha, loaded.dropout) == (3, 0.1, 0.2)


@pytest.mark.slow
def test_a_subclass_of_causal_lm_and_of_several_tasks(tmp_path, monkeypatch):
    decoder = tiny_backbone("gpt2")
    check_both(perturb(subclass(models.BertCausalLM)(decoder)), models.BertCausalLM, tmp_path / "a")
    part = perturb(subclass(BertTextClassifier)(encoder(), num_classes=2))
    whole = subclass(models.BertMultiTask)({"one": part})
    made, build = [], subclasses._twin
    monkeypatch.setattr(subclasses, "_twin", lambda one, *a: made.append(one) or build(one, *a))
    whole.save_to_preset(tmp_path / "b")
    assert len(made) == len({id(one) for one in made})  # One twin is built per class.
    features = {"one": batch(part)}
    for cls in (models.BertMultiTask, type(whole)):
        loaded = cls.from_preset(tmp_path / "b")
        assert type(loaded) is cls
        assert_close(loaded(features), whole(features), atol=0)


@pytest.mark.slow
def test_subclasses_of_lineage(tmp_path):
    settings = {"num_layers": 2, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 24}
    settings |= {"vocabulary_size": 30}
    made = lineage.XLNetBackbone(**settings)
    model = perturb(subclass(lineage.XLNetTextClassifier)(made, num_classes=2))
    check_both(model, lineage.XLNetTextClassifier, tmp_path / "a")
    encoder = subclass(lineage.XLNetBackbone)(**settings)
    check_both(encoder, lineage.XLNetBackbone, tmp_path / "b")
    memory = perturb(subclass(lineage.TransformerXLBackbone)(**settings))
    memory.save_to_preset(tmp_path / "c")
    loaded = lineage.TransformerXLBackbone.from_preset(tmp_path / "c")
    assert_close(loaded.get_weights(), memory.get_weights(), atol=0)


@pytest.mark.slow
def test_a_subclassed_encoder_loads_alone_and_in_a_task(tmp_path):
    mine = with_alpha(BertBackbone, False)
    own = mine(**{**tiny_backbone("roberta").get_config(), "alpha": 0.25})
    assert check_both(own, BertBackbone, tmp_path / "a").alpha == 0.25
    assert own.with_layers([1]).alpha == 0.25
    model = perturb(BertTextClassifier(own, num_classes=2))
    model.save_to_preset(tmp_path / "b")
    loaded = BertTextClassifier.from_preset(tmp_path / "b")
    assert_close(loaded(batch(model)), model(batch(model)), atol=0)
    task = subclass(BertTextClassifier, backbone_cls=mine).from_preset(tmp_path / "b")
    assert task.backbone.alpha == 0.25


def test_subclassed_preprocessors_and_tokenizers(tmp_path, registered):
    tokens = tiny.tokenizer().get_vocabulary()
    words = subclass(BertTokenizer)(tokens, lowercase=True)
    packer = with_alpha(BertTextEmbedderPreprocessor, False)(
        words, sequence_length=9, prompts={"query": "q "}, alpha=0.25
    )
    model = BertTextEmbedder(tiny.encoder(), preprocessor=packer)
    assert model.preprocessor.alpha == 0.25
    assert model.preprocessor.for_role("query").alpha == 0.25
    model.save_to_preset(tmp_path)
    loaded = BertTextEmbedder.from_preset(tmp_path)
    assert type(loaded.preprocessor) is BertTextEmbedderPreprocessor
    assert loaded.preprocessor.sequence_length == 9
    assert loaded.preprocessor.prompts == {"query": "q "}
    assert type(loaded.preprocessor.tokenizer) is BertTokenizer
    assert BertTokenizer.from_preset(tmp_path)("ab") == words("ab")
    assert type(type(words).from_preset(tmp_path)) is type(words)
    again = type(packer).from_preset(tmp_path)
    assert (again.alpha, again.sequence_length) == (0.25, 9)
    registered(type(packer))
    BertTextEmbedder(tiny.encoder(), preprocessor=packer).save_to_preset(tmp_path / "b")
    assert BertTextEmbedder.from_preset(tmp_path / "b").preprocessor.alpha == 0.25


@pytest.mark.slow
def test_what_would_load_as_something_else_is_an_error_at_saving(tmp_path, registered):
    class More(BertTextClassifier):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.temperature = keras.Variable(1.0, name="temperature")
            self.more = keras.layers.Dense(2)
            self.more.build((None, 2))

    class Other(BertTextClassifier):
        def call(self, inputs, **kwargs):
            return 2 * super().call(inputs, **kwargs)

    class Lost(BertTextClassifier):
        def __init__(self, *args, alpha=0.5, **kwargs):
            super().__init__(*args, **kwargs)

    class Clean(BertTextClassifierPreprocessor):
        def columns(self, x):
            return super().columns([text.lower() for text in x])

    for cls, said in (
        (More, "other weights"),
        (Other, "other outputs"),
        (Lost, "'alpha', which is neither in its get_config"),
    ):
        with pytest.raises(ValueError, match=said):
            cls(encoder(), num_classes=2).save_to_preset(tmp_path / cls.__name__)
        assert not (tmp_path / cls.__name__).exists()
    with pytest.raises(ValueError, match="it overrides columns"):
        Clean(tiny.tokenizer()).save_to_preset(tmp_path / "clean")

    # A registered subclass is saved as itself, and never loaded as another class.
    model = perturb(registered(Other)(encoder(), num_classes=2))
    model.save_to_preset(tmp_path / "other")
    assert_close(Other.from_preset(tmp_path / "other")(batch(model)), model(batch(model)), atol=0)
    assert type(open_model(str(tmp_path / "other"), model_task(model))[0]) is Other
    keras.saving.get_custom_objects().pop("mine>Other")
    with pytest.raises(NoHeadError, match="class 'mine>Other', which is not registered"):
        BertTextClassifier.from_preset(tmp_path / "other")
    with pytest.raises(NoHeadError, match="class 'mine>Other', which is not registered"):
        BertTextEmbedder.from_preset(tmp_path / "other")


@pytest.mark.slow
def test_a_call_that_differs_in_training_alone_is_saved(tmp_path):
    def call(self, inputs, training=None, **kwargs):
        outputs = BertTextClassifier.call(self, inputs, training=training, **kwargs)
        return outputs + keras.random.normal((2,)) if training else outputs

    model = perturb(subclass(BertTextClassifier, call=call)(encoder(), num_classes=2))
    check_both(model, BertTextClassifier, tmp_path)


def test_presets_of_before_load_by_the_subclass_alone(tmp_path):
    mine = subclass(BertTextEmbedder)
    model = perturb(mine(encoder(), pooling="max"))
    model.save_to_preset(tmp_path)
    path = tmp_path / "task.json"
    saved = json.loads(path.read_text()) | {"registered_name": mine.__name__}
    saved.pop("subclass")
    path.write_text(json.dumps(saved))
    assert mine.from_preset(tmp_path).pooling == "max"
    with pytest.raises(NoHeadError, match="'MyBertTextEmbedder', which is not registered"):
        BertTextEmbedder.from_preset(tmp_path)


@pytest.mark.slow
def test_keras_files_of_subclasses(tmp_path, registered):
    mine = with_alpha(BertTextEmbedder, True)
    model = perturb(mine(encoder(), pooling="max", alpha=0.25))
    model.save(tmp_path / "model.keras")
    known = {mine.__name__: mine}
    loaded = keras.saving.load_model(tmp_path / "model.keras", custom_objects=known)
    assert (loaded.alpha, loaded.pooling) == (0.25, "max")
    registered(mine)
    model.save(tmp_path / "named.keras")
    loaded = keras.saving.load_model(tmp_path / "named.keras")
    assert_close(loaded(batch(model)), model(batch(model)), atol=0)


@pytest.mark.backends("torch")
def test_subclasses_are_converted(tmp_path):
    mine = with_alpha(BertTextClassifier, True)
    model = perturb(mine(with_alpha(BertBackbone, True)(**encoder().get_config()), num_classes=2))
    for format in ("huggingface", "kerasbert", "keras_hub"):
        folder = tmp_path / format
        convert(model, str(folder), format)
        for cls in (BertTextClassifier, mine):
            loaded = cls.from_preset(folder, preprocessor=None)
            assert_close(loaded(batch(model)), model(batch(model)))
    assert loaded.alpha == 0.5
    convert(str(tmp_path / "kerasbert"), str(tmp_path / "again"), "huggingface")


@pytest.mark.slow
def test_a_subclass_is_exported(tmp_path, monkeypatch):
    tiny.write_here(monkeypatch)
    model = tiny.task("TextClassifier")
    mine = with_alpha(BertTextClassifier, True)(
        model.backbone,
        labels=model.labels,
        preprocessor=with_alpha(BertTextClassifierPreprocessor, True)(
            model.preprocessor.tokenizer, sequence_length=64
        ),
    )
    mine.set_weights(model.get_weights())
    export_serving(mine, str(tmp_path / "served"))
