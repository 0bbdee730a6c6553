"""Figures of training contain the plotted data."""

import json

import numpy as np
import pytest
from matplotlib.figure import Figure

from kerasbert import visualize
from kerasbert.visualize.figures import save

# No backend is involved.
pytestmark = pytest.mark.backends("tensorflow")


def history(*epochs):
    return [
        {"epoch": number, "loss": loss, "losses": losses, "scores": scores}
        for number, (loss, losses, scores) in enumerate(epochs, start=1)
    ]


def lines(axes):
    """Return the plotted data: a dict of a line's name to its points."""
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
    for source in (log, path, str(tmp_path)):  # From rows, a log, or the folder of one.
        (axes,) = visualize.training_curves(source).axes
        assert lines(axes) == {
            "mlm, training": [[10, 4], [20, 2.5]],
            "mlm, held out": [[20, 2.75]],
            "nsp, training": [[10, 1], [20, 0.5]],
        }

    class History:  # As Keras' own log of a resumed training.
        epoch = [3, 4]
        history = {"loss": [2.0, 1.0], "val_loss": [2.5, 1.5], "f1": [0.5, 0.75]}

    loss, f1 = visualize.training_curves(History()).axes
    assert lines(loss) == {"training": [[4, 2], [5, 1]], "held out": [[4, 2.5], [5, 1.5]]}
    assert lines(f1) == {"training": [[4, 0.5], [5, 0.75]]}
    for empty in ([], {}, {"loss": []}):
        with pytest.raises(ValueError, match="history is empty"):
            visualize.training_curves(empty)
    with pytest.raises(ValueError, match="no log '.*missing.jsonl'; pass"):
        visualize.training_curves(tmp_path / "missing.jsonl")
    with pytest.raises(ValueError, match="no losses or scores"):
        visualize.training_curves([{"step": 1, "seconds": 2.0}])
