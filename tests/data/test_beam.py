"""The pipeline, with Beam's local runner."""

import json
import os
import pathlib
import sys

import numpy as np
import pytest

import kerasbert
from kerasbert.data import beam as pipeline
from kerasbert.data import deduplicate, documents, read_examples, write_examples
from kerasbert.data.manifest import NAME, read_manifest
from tests.cli.test_commands import kerasbert as run
from tests.data.example_folders import PIECES, SPECIAL, WORDS, T, files, parsed, text_of
from tests.data.test_deduplicate import EXPECTED, content, planted  # noqa: F401  A fixture.


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(4):
        (folder / f"part-{number}.txt").write_text(text_of(120, seed=number))
    (folder / "part-4.txt").write_text("\n \n")
    return str(folder)


def test_without_beam(bert, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with pytest.raises(ImportError, match="pip install apache-beam"):
        pipeline.write_examples("any.txt", tmp_path, bert)


@pytest.mark.peers
def test_examples_of_a_pipeline(corpus, bert, tmp_path):
    settings = {"sequence_length": T, "seed": 3}
    pattern = os.path.join(corpus, "part-*.txt")
    for name in ("one", "two"):
        pipeline.write_examples(
            pattern,
            tmp_path / name,
            bert,
            block_bytes=30_000,
            document_end="empty_line",
            **settings,
        )
    assert files(tmp_path / "one") == files(tmp_path / "two")
    shards = [name for name in files(tmp_path / "one") if name.startswith("examples-")]
    assert len(shards) > 3
    here = write_examples(
        corpus, tmp_path / "here", bert, workers=1, document_end="empty_line", **settings
    )
    batches = read_examples(tmp_path / "one", 32, tokenizer=bert, repeat=False, masking="static")
    count = sum(len(x["token_ids"]) for x, _, _ in batches)
    features = parsed(tmp_path / "one")
    assert count == len(features["input_ids"])
    assert abs(count / here["counts"]["examples"] - 1) < 0.1
    assert abs(features["next_sentence_labels"].mean() - here["counts"]["not_next"] / count) < 0.1
    manifest = read_manifest(tmp_path / "one")
    for name in ("documents", "sentences", "tokens"):
        assert manifest["counts"][name] == here["counts"][name]
    # A block has documents from all files.
    assert all(shard["documents"] > 30 for shard in manifest["shards"])
    assert np.std([shard["documents"] for shard in manifest["shards"]]) < 30


RUNNERS = {
    "processes": ("DirectRunner", ["direct_num_workers=2", "direct_running_mode=multi_processing"]),
    "dask": ("apache_beam.runners.dask.dask_runner.DaskRunner", []),
}


@pytest.mark.peers
@pytest.mark.parametrize("runner", RUNNERS)
def test_every_runner_makes_the_same(runner, corpus, bert, tmp_path):
    """Dask's runner used to count documents twice for the number of blocks."""
    if runner == "dask":
        pytest.importorskip("distributed", reason="needs the package dask[distributed]")
    options = pipeline.beam_options(*RUNNERS[runner])
    pattern = os.path.join(corpus, "part-*.txt")
    settings = {"sequence_length": T, "block_bytes": 30_000, "document_end": "empty_line"}
    for name, chosen in (("here", None), ("there", options)):
        pipeline.write_examples(pattern, tmp_path / name, bert, options=chosen, **settings)
        words = {"size": 90, "unused": 0, "min_frequency": 1, "options": chosen}
        given = corpus if chosen is None else pattern
        kerasbert.vocab(given, str(tmp_path / f"words-{name}"), **words)
    assert files(tmp_path / "here") == files(tmp_path / "there")
    assert len(files(tmp_path / "here")) > 4
    assert files(tmp_path / "words-here") == files(tmp_path / "words-there")


@pytest.mark.peers
@pytest.mark.parametrize("runner", ["here", *RUNNERS])
def test_the_same_documents_stay(runner, planted, tmp_path):  # noqa: F811
    if runner == "dask":
        pytest.importorskip("distributed", reason="needs the package dask[distributed]")
    options = pipeline.beam_options(*RUNNERS.get(runner, ("DirectRunner", [])))
    settings = {"document_end": "empty_line"}
    here = deduplicate(planted, tmp_path / "here", **settings)
    assert deduplicate(planted, tmp_path / "there", options=options, **settings) == here
    assert content(tmp_path / "there") == content(tmp_path / "here")
    assert [pair["document"] for pair in here["pairs"]] == EXPECTED
    with pytest.raises(ValueError, match="is not empty; name another folder"):
        deduplicate(planted, tmp_path / "there", options=options)
    # The state after a killed pipeline.
    report = tmp_path / "there" / ".duplicates.json"
    report.write_text(json.dumps({"made_of": here["made_of"], "complete": False}))
    os.remove(tmp_path / "there" / "c" / "e.txt")
    with pytest.raises(ValueError, match="is incomplete: `deduplicate` was interrupted"):
        list(documents(tmp_path / "there"))
    with pytest.raises(ValueError, match="is incomplete"):
        pipeline.matched(str(tmp_path / "there"))
    if runner == "here":
        assert deduplicate(planted, tmp_path / "there", options=options, **settings) == here
        assert content(tmp_path / "there") == content(tmp_path / "here")


@pytest.mark.peers
def test_a_command_makes_examples_by_a_pipeline(corpus, bert, tmp_path):
    pattern = os.path.join(corpus, "part-*.txt")
    settings = {"sequence_length": T, "seed": 3, "document_end": "empty_line"}
    pipeline.write_examples(pattern, tmp_path / "here", bert, **settings)
    (tmp_path / "vocab.txt").write_text("\n".join(SPECIAL + WORDS + PIECES))
    given = ["--vocabulary", tmp_path / "vocab.txt", "--sequence-length", T, "--seed", 3]
    given += ["--reading", "document_end=empty_line", "--runner", "DirectRunner"]
    done = run("examples", pattern, "-o", tmp_path / "there", *given)
    assert done.exit_code == 0, done.output
    assert "from 480 documents" in done.stdout
    there, here = files(tmp_path / "there"), files(tmp_path / "here")
    # Only the manifests differ, because they distinguish a vocabulary from a file and one from a
    # list.
    assert there.keys() == here.keys() and len(here) > 1
    assert all(there[name] == here[name] for name in here if name != NAME)
    done = run("examples", pattern, "-o", tmp_path / "there", *given, "--workers", 2)
    assert done.exit_code == 2 and "--workers cannot be used with --runner" in done.output


@pytest.mark.peers
def test_a_command_deduplicates_by_a_pipeline(planted, tmp_path):  # noqa: F811
    runner = ["--runner", "DirectRunner", "--beam", "direct_num_workers=1"]
    done = run("deduplicate", f"{planted}/*.txt", "-o", tmp_path / "out", *runner)
    assert done.exit_code == 0 and "1 of 4 documents" in done.stdout, done.output
    done = run("deduplicate", planted / "empty.txt", "-o", tmp_path / "empty", *runner)
    assert done.exit_code != 0 and "The corpus has no text" in repr((done.output, done.exception))


@pytest.mark.peers
def test_a_folder_is_all_that_is_in_it(corpus, bert, tmp_path):
    """Each file in a folder is a document, as without a pipeline."""
    settings = {"sequence_length": T, "seed": 3, "workers": 1}
    write_examples(corpus, tmp_path / "here", bert, **settings)
    del settings["workers"]
    pipeline.write_examples(corpus, tmp_path / "there", bert, **settings)
    here, there = (read_manifest(tmp_path / name)["counts"] for name in ("here", "there"))
    with_text = [path for path in pathlib.Path(corpus).iterdir() if path.read_text().strip()]
    assert here == there and here["documents"] == len(with_text) > 1
    (tmp_path / "bare").mkdir()
    with pytest.raises(ValueError, match="The folder '.*bare' has no files"):
        pipeline.write_examples(tmp_path / "bare", tmp_path / "out", bert)


def test_options_of_a_runner():
    assert pipeline.beam_options(None, None) is None
    with pytest.raises(ValueError, match="--beam 'region=x' needs a --runner of Apache Beam"):
        pipeline.beam_options(None, ["region=x"])


@pytest.mark.peers
def test_bad_input_of_a_pipeline(bert, tmp_path):
    with pytest.raises(ValueError, match="is not a file, nor a pattern"):
        pipeline.write_examples(str(tmp_path / "none*.txt"), tmp_path / "out", bert)
    (tmp_path / "empty.txt").write_text("\n\n")
    # Each runner raises its own exception class, with the origin of the error.
    with pytest.raises(Exception, match="has no text to make an example of"):
        pipeline.write_examples(tmp_path / "empty.txt", tmp_path / "out", bert, sequence_length=T)
    (tmp_path / "one.txt").write_text("ba be\nbi bo\n")
    with pytest.raises(Exception, match="another document, but there is only one"):
        pipeline.write_examples(tmp_path / "one.txt", tmp_path / "out", bert, sequence_length=T)
    # The folder states that it is incomplete.
    assert read_manifest(tmp_path / "out")["complete"] is False
    with pytest.raises(ValueError, match="incomplete"):
        read_examples(tmp_path / "out", 2)


@pytest.mark.peers
@pytest.mark.parametrize("runner", [None, "processes"])
def test_a_large_file_is_read_in_parts(runner, bert, tmp_path, monkeypatch):
    """The documents and words are those of the whole file, however it is split."""
    path = tmp_path / "large.txt"
    path.write_text("\n".join(text_of(120, seed=number) for number in range(4)))
    options = pipeline.beam_options(*RUNNERS[runner]) if runner else None
    words = {"size": 90, "unused": 0, "min_frequency": 1, "options": options}
    settings = {"sequence_length": T, "block_bytes": 30_000, "options": options}
    for name, size in (("whole", 1 << 26), ("parts", 5000)):
        monkeypatch.setattr(pipeline, "PART", size)
        assert (len(pipeline._parts(str(path))) > 5) == (name == "parts")
        pipeline.write_examples(str(path), tmp_path / name, bert, **settings)
        kerasbert.vocab(str(path), str(tmp_path / f"words-{name}"), **words)
    whole, found = (read_manifest(tmp_path / name)["counts"] for name in ("whole", "parts"))
    for name in ("documents", "sentences", "tokens"):
        assert found[name] == whole[name]
    assert files(tmp_path / "words-parts") == files(tmp_path / "words-whole")
    if runner:  # These are the documents that a single process reads.
        pipeline.write_examples(str(path), tmp_path / "here", bert, **{**settings, "options": None})
        assert files(tmp_path / "here") == files(tmp_path / "parts")
