"""Real text, its vocabulary and its examples, made once."""

import pytest


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """A folder of parts of 40 documents of the Brown corpus, one file each, one sentence per
    line.
    """
    import real_data

    documents = real_data.or_skip(real_data.brown_tagged)
    folder = tmp_path_factory.mktemp("brown")
    for number, document in enumerate(documents[::12][:40]):
        lines = (" ".join(word for word, _ in sentence) for sentence in document[:40])
        (folder / f"{number:03}.txt").write_text("\n".join(lines))
    return str(folder)


@pytest.fixture(scope="session")
def vocabulary(corpus, tmp_path_factory):
    """The path of a `vocab.txt` of 1,000 tokens."""
    import kerasbert

    return kerasbert.vocab(corpus, str(tmp_path_factory.mktemp("vocabulary")), size=1000)["file"]


@pytest.fixture(scope="session")
def examples(corpus, vocabulary, tmp_path_factory):
    """A folder of examples of 16 tokens, in several shards."""
    import os

    from kerasbert.data.examples import write_examples
    from kerasbert.tokenizers import BertTokenizer

    folder = str(tmp_path_factory.mktemp("examples"))
    tokenizer = BertTokenizer.from_files(os.path.dirname(vocabulary))
    write_examples(
        corpus,
        folder,
        tokenizer,
        sequence_length=16,
        block_bytes=1 << 16,
        blocks_per_shard=1,
        workers=1,
        sentences="lines",
    )
    return folder
