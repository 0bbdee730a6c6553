"""Short runs of the campaigns, with the same cases each time."""

import pytest

from tests.campaigns import batches, calls, hostile, tables, threads, tokenizer_files

# The readers under test use TensorFlow or Python on every backend. Hypothesis draws the cases.
pytestmark = [pytest.mark.slow, pytest.mark.peers, pytest.mark.backends("tensorflow")]


@pytest.mark.parametrize("name", hostile.KINDS)
def test_hostile_files(name):
    few = name in ("preset", "huggingface", "byte_pair", "byte_pair_json")
    assert hostile.run(8 if few else 25, seed=1, only=[name]) == []


@pytest.mark.parametrize("name", calls.METHODS)
def test_many_calls(name):
    assert calls.run(48, seed=1, only=[name]) == []


def test_threads_beside_loading_and_training():
    assert threads.run(calls=50, loads=4, seed=1) == []


@pytest.mark.parametrize("name", batches.KINDS)
def test_texts_alone_and_in_batches(name):
    assert batches.run(60, seed=1, only=[name]) == []


def test_tables_as_programs_write_them():
    assert tables.run(100, seed=1) == []


@pytest.mark.parametrize("name", tokenizer_files.FAMILIES)
def test_changed_tokenizer_files(name):
    assert tokenizer_files.run(40, seed=2, only=[name]) == []
