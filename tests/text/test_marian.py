"""Marian's tokenizer: ids of transformers, two languages on one vocabulary, files."""

import io
import json
import unicodedata

import keras
import pytest

import kerasbert
from kerasbert.lineage import TransformerSeq2SeqBackbone, TransformerSeq2SeqLM
from kerasbert.text.sentence_piece_models import read_proto
from kerasbert.tokenizers import MarianTokenizer
from tests.export import tiny
from tests.peers import transformers


@pytest.fixture(scope="module")
def directory(tmp_path_factory, sentences):
    """Two models on parts of the sentences; the vocabulary lacks some of their pieces."""
    import sentencepiece

    folder = tmp_path_factory.mktemp("marian")
    tokens = ["</s>", "<unk>", ">>fra<<"]
    for name, part in (("source", sentences[:5]), ("target", sentences[2:])):
        data = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(part * 3),
            model_writer=data,
            vocab_size=220,
            hard_vocab_limit=False,
            minloglevel=2,
        )
        (folder / f"{name}.spm").write_bytes(data.getvalue())
        pieces = [piece.piece for piece in read_proto(data.getvalue()).pieces]
        # The vocabulary has another order than the models, as in Marian's files.
        tokens += [x for x in sorted(pieces[3:]) if x not in tokens and x not in ("q", "▁is")]
    ids = {token: id for id, token in enumerate([*tokens, "<pad>"])}
    (folder / "vocab.json").write_text(json.dumps(ids))
    config = {"tokenizer_class": "MarianTokenizer", "source_lang": "en", "target_lang": "fr"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def is_plain(text):
    return all(c in "\t\n" or unicodedata.category(c) not in ("Cc", "Cf", "Zl") for c in text)


def both(tokenizer, texts):
    return tokenizer(texts), tokenizer.for_targets()(texts)


@pytest.mark.peers
def test_ids_equal_transformers(directory, hard, sentences):
    theirs = transformers.MarianTokenizer.from_pretrained(directory)
    ours = MarianTokenizer.from_files(directory, special_tokens_in_strings=True)
    # transformers' special tokens include the white space around them, and ours are text by
    # default. Control and format characters end words here, as in the fast tokenizers of
    # transformers.
    texts = [text for text in [*hard, *sentences] if "<s>" not in text and is_plain(text)]
    assert len(texts) > 18
    texts += [">>fra<< It's a dog.", ">>fra<<dog", "quick is q 日本語"]
    for text in texts:
        for own, wanted in (
            (ours(text), theirs(text)["input_ids"]),
            (ours.for_targets()(text), theirs(text_target=text)["input_ids"]),
        ):
            if unicodedata.normalize("NFKC", text) != text:
                # Pieces that one language's model lacks are looked up in the other model, with
                # their text before NFKC.
                is_unknown = [a == ours.unk_token_id for a in own]
                wanted = [a if no else b for no, a, b in zip(is_unknown, own, wanted)] + wanted[-1:]
            assert [*own, ours.end_token_id] == wanted, text
        kept = [id for id in ours(text) if id not in ours.special_token_ids]
        written = theirs.decode(ours(text), skip_special_tokens=True)
        assert ours.detokenize(kept).strip() == written, text


def test_two_languages(directory):
    tokenizer = MarianTokenizer.from_files(directory)
    text = "The quick brown fox, 文書を開きます"
    source, target = tokenizer(text), tokenizer.for_targets()(text)
    assert source != target and max(source + target) < tokenizer.vocabulary_size()
    assert tokenizer.unk_token_id in tokenizer("q")  # The model has the piece, but it has no id.
    assert tokenizer.start_token_id == tokenizer.pad_token_id == tokenizer.vocabulary_size() - 1
    assert tokenizer(">>fra<< dog")[0] == tokenizer.token_to_id(">>fra<<")
    assert tokenizer.for_targets() is tokenizer.for_targets()


@pytest.mark.slow
def test_files_and_presets(directory, tmp_path):
    """A model with the tokenizer writes and reads both kinds of folders."""
    tokenizer = MarianTokenizer.from_files(directory)
    backbone = TransformerSeq2SeqBackbone(
        vocabulary_size=tokenizer.vocabulary_size(),
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=16,
        max_sequence_length=24,
    )
    make = TransformerSeq2SeqLM.preprocessor_cls
    model = TransformerSeq2SeqLM(backbone, make(tokenizer, 24), output_bias=True)
    model.compile(run_eagerly=True)
    model.save(tmp_path / "model.keras")
    model.save_to_preset(tmp_path / "preset")
    kerasbert.convert(model, tmp_path / "theirs")
    texts = ["The lazy dog.", "文書を開きます。"]
    for name in ("preset", "theirs"):
        again = TransformerSeq2SeqLM.from_preset(tmp_path / name, sequence_length=16)
        assert again.preprocessor.sequence_length == 16
        again.compile(run_eagerly=True)
        own = again.preprocessor.tokenizer
        assert own(texts) == tokenizer(texts) and own.for_targets()(
            texts
        ) == tokenizer.for_targets()(texts)
        assert own.get_vocabulary() == tokenizer.get_vocabulary()
        assert again.translate(texts, num_beams=2) == model.translate(
            texts, num_beams=2, max_length=16
        )
    again = keras.models.load_model(tmp_path / "model.keras")
    own = again.preprocessor.tokenizer
    assert both(own, texts) == both(tokenizer, texts)
    assert abs(again.score(texts, texts) - model.score(texts, texts)).max() < 1e-6
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert config["decoder_start_token_id"] == config["pad_token_id"] == tokenizer.pad_token_id


@pytest.mark.slow
def test_served(directory, tmp_path, monkeypatch):
    tiny.write_here(monkeypatch)
    """Raw pairs, two tokenizers in the graph; writing it compares its scores with the model's."""
    from tests.export.test_serving import session_run

    tokenizer = MarianTokenizer.from_files(directory)
    backbone = TransformerSeq2SeqBackbone(tokenizer.vocabulary_size(), 1, 2, 8, 16)
    make = TransformerSeq2SeqLM.preprocessor_cls
    model = TransformerSeq2SeqLM(backbone, make(tokenizer, 24), output_bias=True)
    path = kerasbert.export_serving(model, tmp_path / "served", warmup=[("A dog.", "文書")])
    texts = ["The lazy dog.", "文書を開きます。", ""]
    outputs = session_run(path, "serving_default", source=texts, target=texts[::-1])
    wanted = model.score(texts, texts[::-1])
    assert abs(outputs["score"] - wanted).max() < 1e-4


@pytest.mark.peers
@pytest.mark.backends("tensorflow")  # The same graph on every backend.
def test_written_files_are_read_there(directory, tmp_path):
    tokenizer = MarianTokenizer.from_files(directory)
    backbone = TransformerSeq2SeqBackbone(tokenizer.vocabulary_size(), 1, 2, 8, 16)
    make = TransformerSeq2SeqLM.preprocessor_cls
    model = TransformerSeq2SeqLM(backbone, make(tokenizer, 24))
    kerasbert.convert(model, tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    network = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    texts = ["The lazy dog.", "It's a film."]
    batch = theirs(texts, return_tensors="pt", padding=True)
    found = network.generate(**batch, num_beams=3, max_length=12)
    wanted = theirs.batch_decode(found, skip_special_tokens=True)
    assert [x.strip() for x in model.translate(texts, num_beams=3, max_length=12)] == wanted
    done = kerasbert.convert(tmp_path, tmp_path / "ours", format="kerasbert")
    assert done["tokenizer"] == "MarianTokenizer"
    again = TransformerSeq2SeqLM.from_preset(tmp_path / "ours").preprocessor.tokenizer
    assert again.files() == tokenizer.files() and again.for_targets()(
        texts
    ) == tokenizer.for_targets()(texts)


def test_what_is_missing(directory, tmp_path):
    with pytest.raises(ValueError, match="three parts together"):
        MarianTokenizer(tokens=["<unk>"])
    with pytest.raises(ValueError, match="source.spm, target.spm"):
        (tmp_path / "vocab.json").write_text("{}")
        MarianTokenizer.from_files(tmp_path)
    with pytest.raises(ValueError, match="no vocabulary yet"):
        MarianTokenizer()("text")
