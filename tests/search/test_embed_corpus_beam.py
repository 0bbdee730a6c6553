"""`embed_corpus` on Beam's local runner."""

import os
import shutil
import sys

import numpy as np
import pytest

from kerasbert.data.beam import beam_options
from kerasbert.search import embed_corpus
from tests.search.test_embed_corpus import (  # noqa: F401  Fixtures.
    IDS,
    corpus,
    embedder,
    everything,
    names,
    preset,
)


def test_without_beam(monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with pytest.raises(ImportError, match="pip install apache-beam"):
        beam_options("DirectRunner", ())


@pytest.mark.peers
def test_the_same_as_on_one_machine(embedder, preset, corpus, tmp_path):  # noqa: F811
    options, settings = beam_options("DirectRunner", ()), {"rows": 3, "format": "npy"}
    out = tmp_path / "beam"
    assert embed_corpus(corpus, out, preset, options=options, **settings) == len(IDS)
    assert embed_corpus(corpus, tmp_path / "here", embedder, **settings) == len(IDS)
    assert names(out) == names(tmp_path / "here")
    for one, other in zip(everything(out), everything(tmp_path / "here")):
        if isinstance(one, list):
            assert one == other
        else:
            np.testing.assert_allclose(one, other, atol=1e-5)
    # Only missing shards are computed again.
    times = {name: os.stat(out / name).st_mtime_ns for name in names(out)}
    (out / "vectors-00000-00001.npy").unlink()
    assert embed_corpus(corpus, out, preset, options=options, **settings) == len(IDS)
    changed = {name for name in names(out) if os.stat(out / name).st_mtime_ns != times[name]}
    assert changed == {"vectors-00000-00001.jsonl", "vectors-00000-00001.npy", "vectors.json"}
    with pytest.raises(ValueError, match="dims=None, not 3"):
        embed_corpus(corpus, out, preset, options=options, dims=3, **settings)


@pytest.mark.peers
def test_a_pipeline_rebuilds_damaged_shards(preset, corpus, tmp_path):  # noqa: F811
    options, settings = beam_options("DirectRunner", ()), {"rows": 3, "format": "npy"}
    shutil.copytree(corpus, tmp_path / "corpus")
    out = tmp_path / "out"

    def run():
        return embed_corpus(tmp_path / "corpus", out, preset, options=options, **settings)

    assert run() == len(IDS)
    whole = everything(out)
    (out / "vectors-00000-00000.jsonl").unlink()
    os.truncate(out / "vectors-00001-00000.npy", 150)
    with open(out / "vectors-00002-00000.npy", "r+b") as file:
        file.seek(-2, os.SEEK_END)
        file.write(b"x")
    times = {name: os.stat(out / name).st_mtime_ns for name in names(out)}
    with pytest.raises(ValueError, match="run the same embed_corpus again"):
        everything(out)
    assert run() == len(IDS)
    changed = [x for x in names(out) if os.stat(out / x).st_mtime_ns != times.get(x)]
    made = {"00000-00000", "00001-00000", "00002-00000", "json"}
    assert {name[8:19] for name in changed} == made
    for one, other in zip(everything(out), whole):
        np.testing.assert_array_equal(one, other)
    assert not [name for name in os.listdir(out) if name.startswith(".")]
    path = tmp_path / "corpus" / "lines.txt"
    path.write_text(path.read_text(encoding="utf-8").replace("good", "fine"), encoding="utf-8")
    with pytest.raises(Exception, match="out' has vectors from another corpus"):
        run()


@pytest.mark.peers
def test_parquet_of_a_pipeline(preset, corpus, tmp_path):  # noqa: F811
    options = beam_options("DirectRunner", ())
    assert embed_corpus(f"{corpus}/*.txt", tmp_path / "out", preset, options=options) == 5
    ids, texts, vectors = everything(tmp_path / "out")
    assert ids == IDS[:5] and texts[2] == "서울의 날씨" and vectors.shape == (5, 32)


@pytest.mark.peers
def test_bad_input_of_a_pipeline(embedder, preset, corpus, tmp_path):  # noqa: F811
    options = beam_options("DirectRunner", ())
    with pytest.raises(ValueError, match="is not a file, nor a pattern"):
        embed_corpus(str(tmp_path / "no*.txt"), tmp_path / "out", preset, options=options)
    with pytest.raises(ValueError, match="a folder that all workers can read"):
        embed_corpus(corpus, tmp_path / "out", embedder, options=options)
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(Exception, match="has no texts"):
        embed_corpus(tmp_path / "empty.txt", tmp_path / "out", preset, options=options)
