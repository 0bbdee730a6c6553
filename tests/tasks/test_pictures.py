"""Pictures hold what they are drawn from."""

import warnings

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="pictures need matplotlib")

from matplotlib.figure import Figure  # noqa: E402

from kerasbert.tasks import pictures  # noqa: E402


@pytest.fixture
def figures(monkeypatch):
    """The figures that were saved."""
    saved, save = [], pictures._save
    monkeypatch.setattr(
        pictures, "_save", lambda figure, path: saved.append(figure) or save(figure, path)
    )
    return saved


def history(*epochs):
    return [
        {"epoch": number, "loss": loss, "losses": losses, "scores": scores}
        for number, (loss, losses, scores) in enumerate(epochs, start=1)
    ]


def test_learning_curves(tmp_path, figures):
    runs = [
        {
            "run": "a",
            "history": history(
                (0.6, [[2, 0.7], [4, 0.5]], {"f1": 0.5}), (0.3, [[2, 0.4], [4, 0.2]], {"f1": 0.75})
            ),
        },
        {"run": "b", "history": history((None, [[2, 0.7], [4, None]], {}))},
        {"run": "c", "history": history((0.6, [], {"f1": 0.25}))},
    ]
    pictures.learning_curve(str(tmp_path / "curve.png"), runs, "a", "f1")
    (figure,) = figures
    assert isinstance(figure, Figure)
    loss, score = figure.axes
    best = loss.lines[-1]
    np.testing.assert_allclose(best.get_xdata(), [0.5, 1, 1.5, 2])
    np.testing.assert_allclose(best.get_ydata(), [0.7, 0.5, 0.4, 0.2])
    np.testing.assert_allclose(score.lines[-1].get_ydata(), [0.5, 0.75])
    assert score.get_legend().get_texts()[0].get_text() == "a"
    assert (tmp_path / "curve.png").read_bytes()[:4] == b"\x89PNG"
    assert [file.name for file in tmp_path.iterdir()] == ["curve.png"]


def test_confusion(tmp_path, figures):
    labels = ["정치", "スポーツ", "c"]
    gold = ["정치", "정치", "c", "c", "c"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predictions = ["정치", "c", "c", "c", "c"]
        pictures.confusion(str(tmp_path / "c.png"), gold, predictions, labels)
    axes = figures[0].axes[0]
    assert [text.get_text() for text in axes.texts] == "1 0 1 0 0 0 0 0 3".split()
    np.testing.assert_allclose(axes.images[0].get_array(), [[0.5, 0, 0.5], [0, 0, 0], [0, 0, 1]])
    assert [label.get_text() for label in axes.get_yticklabels()] == labels
    # Many classes have no room for numbers.
    many = [f"class {i}" for i in range(40)]
    pictures.confusion(str(tmp_path / "many.png"), many, many, many)
    assert not figures[1].axes[0].texts
