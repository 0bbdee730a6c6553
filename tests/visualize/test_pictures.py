"""Pictures hold what they are drawn from."""

import io
import json
import sys
import warnings

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from kerasbert import visualize
from kerasbert.visualize.figures import save

# They know no backend.
pytestmark = pytest.mark.backends("tensorflow")


def history(*epochs):
    return [
        {"epoch": number, "loss": loss, "losses": losses, "scores": scores}
        for number, (loss, losses, scores) in enumerate(epochs, start=1)
    ]


def lines(axes):
    """What is drawn: a dict of a line's name to its points."""
    return {line.get_label(): line.get_xydata().tolist() for line in axes.lines}


def test_finetuning_curves(tmp_path):
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
    figure = visualize.finetuning_curves(runs, "a", "f1")
    assert isinstance(figure, Figure)
    loss, score = figure.axes
    best = loss.lines[-1]
    np.testing.assert_allclose(best.get_xdata(), [0.5, 1, 1.5, 2])
    np.testing.assert_allclose(best.get_ydata(), [0.7, 0.5, 0.4, 0.2])
    np.testing.assert_allclose(score.lines[-1].get_ydata(), [0.5, 0.75])
    assert score.get_legend().get_texts()[0].get_text() == "a"
    save(figure, str(tmp_path / "curve.png"))
    assert (tmp_path / "curve.png").read_bytes()[:4] == b"\x89PNG"
    assert [file.name for file in tmp_path.iterdir()] == ["curve.png"]


def test_training_curves(tmp_path):
    log = [
        {"step": 10, "phase": 1, "loss": 5.0, "mlm_loss": 4.0, "nsp_loss": 1.0, "seconds": None},
        {"step": 20, "loss": 3.0, "mlm_loss": 2.5, "nsp_loss": 0.5, "held_out_mlm_loss": 2.75},
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in log) + '{"step": 3')
    for source in (log, path, str(tmp_path)):  # Rows, a log, the folder of one.
        (axes,) = visualize.training_curves(source).axes
        assert lines(axes) == {
            "mlm, training": [[10, 4], [20, 2.5]],
            "mlm, held out": [[20, 2.75]],
            "nsp, training": [[10, 1], [20, 0.5]],
        }

    class History:  # As Keras' own, of a training that went on.
        epoch = [3, 4]
        history = {"loss": [2.0, 1.0], "val_loss": [2.5, 1.5], "f1": [0.5, 0.75]}

    loss, f1 = visualize.training_curves(History()).axes
    assert lines(loss) == {"training": [[4, 2], [5, 1]], "held out": [[4, 2.5], [5, 1.5]]}
    assert lines(f1) == {"training": [[4, 0.5], [5, 0.75]]}
    for empty in ([], {}, {"loss": []}):
        with pytest.raises(ValueError, match="the history is empty"):
            visualize.training_curves(empty)
    with pytest.raises(ValueError, match="no log '.*missing.jsonl'"):
        visualize.training_curves(tmp_path / "missing.jsonl")
    with pytest.raises(ValueError, match="no losses or scores"):
        visualize.training_curves([{"step": 1, "seconds": 2.0}])


def test_confusion_matrix():
    labels = ["정치", "スポーツ", "c $x$ $"]
    gold = ["정치", "정치", *3 * labels[2:]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predictions = ["정치", *4 * labels[2:]]
        figure = visualize.confusion_matrix(gold, predictions, labels)
        # In a notebook, and drawn by others, who may want it tight.
        assert figure._repr_png_().startswith(b"\x89PNG")
        figure.savefig(io.BytesIO(), format="png", bbox_inches="tight")
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.texts] == "1 0 1 0 0 0 0 0 3".split()
    np.testing.assert_allclose(axes.images[0].get_array(), [[0.5, 0, 0.5], [0, 0, 0], [0, 0, 1]])
    assert [label.get_text() for label in axes.get_yticklabels()] == labels
    # Many classes have no room for numbers.
    many = [f"class {i}" for i in range(40)]
    assert not visualize.confusion_matrix(many, many, many).axes[0].texts


def test_masked_words():
    words = [{"token": "노트 $", "score": 0.5, "text": "a"}, {"token": "b", "score": 0.25}]
    figure = visualize.masked_words([words, words[:1]])
    assert len(figure.axes) == 2
    assert [bar.get_width() for bar in figure.axes[0].patches] == [0.5, 0.25]
    assert figure.axes[0].yaxis_inverted()  # The best on top.
    for nothing in ([], [[]]):
        with pytest.raises(ValueError, match="no words to draw"):
            visualize.masked_words(nothing)


def test_embedding_map():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(12, 5)) * 0.01
    vectors[6:, 2] += 4
    labels = 6 * ["a"] + 6 * ["b"]
    figure = visualize.embedding_map(vectors, labels, names=[f"text {i} " * 20 for i in range(12)])
    first, second = (points.get_offsets() for points in figure.axes[0].collections)
    # The axis of most variance has the classes at its ends.
    assert abs(first[:, 0].mean() - second[:, 0].mean()) == pytest.approx(4, abs=0.1)
    assert figure.axes[0].get_xlabel() == "component 1, 100% of the variance"
    assert len(figure.axes[0].texts) == 12
    figure = visualize.embedding_map(vectors, method="tsne")
    assert figure.axes[0].get_legend() is None
    assert len(figure.axes[0].collections[0].get_offsets()) == 12
    broken = vectors.copy()
    broken[3, 1] = np.nan
    for arguments, message in (
        ((vectors[:2],), r"3 or more vectors .* these are \(2, 5\)"),
        ((vectors[0],), "these are"),
        ((broken,), "position 3"),
        ((vectors, ["a"]), "12 vectors and 1 labels"),
        ((vectors, None, None, "umap"), "method='umap' is unknown"),
    ):
        with pytest.raises(ValueError, match=message):
            visualize.embedding_map(*arguments)


def test_pictures_leave_no_settings_behind():
    before = dict(matplotlib.rcParams)
    visualize.masked_words([{"token": "a", "score": 1.0}])._repr_png_()
    assert dict(matplotlib.rcParams) == before


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'kerasbert\[plot\]'"):
        visualize.masked_words([{"token": "a", "score": 1.0}])
    # HTML needs none.
    assert "<mark" in visualize.entities("a", [(0, 1, "X")])._repr_html_()
