"""Settings of `finetune`: numbers of the grid, and what each method needs."""

import pytest

from kerasbert.tasks import Task
from kerasbert.training.finetune_settings import FinetuneSettings

pytestmark = pytest.mark.backends("tensorflow")  # Settings do not depend on the backend.


def settings(**given):
    return FinetuneSettings("rte", "a", "b", **given)


def test_numbers_of_a_grid():
    with pytest.raises(ValueError, match="seeds=None must be a whole number"):
        settings(seeds=None)
    with pytest.raises(ValueError, match="epochs is empty"):
        settings(epochs=[])


def test_long_texts():
    assert settings().compared()["long"] is None
    assert settings(long={"mode": "windows"}).compared()["long"] == "windows"
    with pytest.raises(ValueError, match="long='window' is unknown; use one of truncate"):
        settings(long="window")


def test_methods_and_what_they_alone_have():
    assert settings(method="setfit").pairs == 20
    assert settings().method == "full" and settings().lora_rank is None
    with pytest.raises(ValueError, match="method='setfi' is unknown; use one of full, lora, froz"):
        settings(method="setfi")
    with pytest.raises(ValueError, match="pairs=0 must be a whole number"):
        settings(method="setfit", pairs=0)
    with pytest.raises(ValueError, match="lora_rank=4 needs method='lora'; leave it out"):
        settings(method="frozen", lora_rank=4)
    with pytest.raises(ValueError, match="record_rate=True .* whole models"):
        settings(method="setfit", record_rate=True)
    with pytest.raises(ValueError, match="r_drop=1.0 needs method='full' or 'lora'"):
        settings(method="frozen", r_drop=1.0)
    with pytest.raises(ValueError, match="adversarial_strength=0 must be a number above 0"):
        settings(adversarial="awp", adversarial_strength=0)
    with pytest.raises(ValueError, match="reinitialize_layers=1 needs method='full'"):
        settings(method="lora", reinitialize_layers=1)


@pytest.mark.parametrize(
    ("method", "head", "grid"),
    [
        ("full", "text_classifier", ((16, 32), (5e-5, 3e-5, 2e-5), (2, 3, 4))),
        ("setfit", "text_classifier", ((16,), (2e-5,), (1,))),
        ("frozen", "text_classifier", ((32,), (0.0,), (1,))),
        ("frozen", "token_classifier", ((16, 32), (1e-3,), (2, 3, 4))),
    ],
)
def test_what_a_method_takes_by_default(method, head, grid):
    task = Task("t", "T", head, ("text",), ("accuracy",))
    names = ("batch_sizes", "learning_rates", "epochs")
    found = settings(method=method).of(task).settings
    assert tuple(getattr(found, name) for name in names) == grid
    found = settings(method=method, batch_sizes=7).of(task).settings
    assert found.batch_sizes == (7,) and found.epochs == grid[2]


def test_a_head_found_at_once_has_no_epochs():
    task = Task("t", "T", "text_classifier", ("text",), ("accuracy",))
    with pytest.raises(ValueError, match=r"epochs=\[3\] has no effect with method='frozen'"):
        settings(method="frozen", epochs=3).of(task)
