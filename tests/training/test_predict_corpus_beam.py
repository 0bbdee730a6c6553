"""`predict_corpus` on the available runners of Beam."""

import pytest

import kerasbert
from kerasbert.data.beam import beam_options
from tests.cli.test_commands import kerasbert as run
from tests.data.test_beam import RUNNERS
from tests.training.test_predict_corpus import (  # noqa: F401  Fixtures.
    TEXTS,
    check_same,
    corpus,
    model,
    preset,
    shards,
)


@pytest.mark.peers
@pytest.mark.parametrize("runner", ["here", *RUNNERS])
def test_the_same_as_predict(runner, model, preset, corpus, tmp_path):  # noqa: F811
    if runner == "dask":
        pytest.importorskip("distributed", reason="needs the package dask[distributed]")
    options = beam_options(*RUNNERS.get(runner, ("DirectRunner", [])))
    out = tmp_path / "out"
    count = kerasbert.predict_corpus(preset, corpus, out, rows=3, options=options)
    assert count == 2 * len(TEXTS) and len(shards(out)) == 6
    check_same(list(kerasbert.read_predictions(out)), model, corpus)


@pytest.mark.peers
def test_the_command(preset, corpus, tmp_path):  # noqa: F811
    out = tmp_path / "out"
    done = run("predict", preset, f"{corpus}/*.txt", "--output", out, "--runner", "DirectRunner")
    assert done.exit_code == 0, done.output
    assert f"{len(TEXTS)} predictions -> {out}" in done.stdout


@pytest.mark.peers
def test_a_model_in_memory(model, corpus, tmp_path):  # noqa: F811
    with pytest.raises(ValueError, match="a folder that all workers can read"):
        options = beam_options("DirectRunner", [])
        kerasbert.predict_corpus(model, corpus, tmp_path / "out", options=options)
