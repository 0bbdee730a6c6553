"""The small presets: the packaged files, and a short form of a training as on a card."""

import json
import unicodedata
from pathlib import Path

import numpy as np
import pytest

import kerasbert
from kerasbert.base.files import read_log, write_text
from kerasbert.models import BertMaskedLM, BertTextEmbedder

PRESETS = Path(__file__).parents[1] / "presets"
GOLDEN = Path(__file__).parent / "golden" / "small_presets.json"
# Settings as on the cards, with one source of the text and smaller batches. The English training
# starts like the first run on its card, but also has the teacher of the later runs.
SETTINGS = {
    "objective": "full_sentences",
    "cut_sentences": True,
    "masker": {"mask_selection_rate": (0.3, 0.15)},
    "optimizer": "muon",
    "phases": [(64, 16, 8)],
    "held_out": 0.002,
    "log_every": 4,
    "evaluate_every": 16,
    "reading": {"sentences": "lines"},
    "workers": 1,
    "verbose": False,
}
ONLY = "^LibreOffice help$"
HELP = {"ko": "libreoffice-help-ko", "en": "libreoffice-help-en-us"}
CARDS = {
    "ko": {
        "num_layers": 2,
        "hidden_dim": 256,
        "num_heads": 4,
        "encoder": {"dropout": 0.0, "attention_dropout": 0.0, "initializer_range": 0.05},
        "learning_rate": 4e-3,
        "schedule": "wsd",
        "decay_share": 0.4,
        "warmup_steps": 5,
    },
    "en": {
        "preset": "minilm_mini_demo_en",
        "teacher": "minilm_mini_demo_en",
        "encoder": {"dropout": 0.0, "attention_dropout": 0.0},
        "learning_rate": 1e-3,
        "warmup_steps": 5,
    },
}


@pytest.mark.backends("tensorflow")
def test_what_ships_is_small_and_says_where_it_is_from():
    folders = [path for path in PRESETS.iterdir() if path.is_dir()]
    described = kerasbert.builtin_presets()
    shipped = {name for name, one in described.items() if one["handle"].startswith("package://")}
    assert {folder.name for folder in folders} == shipped and len(shipped) == 4
    assert sum(file.stat().st_size for file in PRESETS.rglob("*") if file.is_file()) < 60e6
    for folder in folders:
        card = (folder / "README.md").read_text(encoding="utf-8")
        assert "- License: Apache-2.0" in card and "## Limits" in card
        assert "kerasbert pretrain" in card or "small_presets.py embedder" in card
        assert "preset_text.py" in card or "demo_preset.py" in card
        # The Brown corpus is listed as non-commercial: it may measure a preset, but not train it.
        assert "rown" not in card.partition("## Limits")[0]


@pytest.mark.slow_on_tensorflow
def test_the_embedder_searches():
    embedder = BertTextEmbedder.from_preset("minilm_mini_demo_en")
    assert embedder.normalize and embedder.pooling == "mean"
    texts = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
    cosines = embedder.embed(texts) @ embedder.embed(texts).T
    assert cosines[0, 1] > 0.4 > 0.2 > max(cosines[0, 2], cosines[1, 2])
    passages = [
        "You get your money back within two weeks.",
        "The parcel arrives after three days.",
        "Our shop opens at nine in the morning.",
        "The battery lasts for ten hours.",
    ]
    index = kerasbert.SearchIndex(embedder, passages)
    questions = ["refund", "how long does shipping take?", "when do you open?", "charge the phone"]
    assert [index.search(one, top_k=1)[0]["id"] for one in questions] == [0, 1, 2, 3]


# A text, and a query for it in other words.
ALIKE = {
    "ko": {
        "파일을 저장하지 못했습니다.": "문서를 디스크에 쓸 수 없음",
        "프린터가 연결되어 있지 않습니다.": "인쇄가 안 돼요",
        "글꼴 크기를 바꿉니다.": "글자를 크게",
        "암호가 틀렸습니다.": "로그인이 안 돼요",
    },
    "ja": {
        "ファイルを保存できませんでした。": "文書をディスクに書けない",
        "プリンターが接続されていません。": "印刷できない",
        "フォントの大きさを変えます。": "文字を大きく",
        "パスワードが違います。": "ログインできない",
    },
}


@pytest.mark.backends("torch")
@pytest.mark.parametrize("language", ALIKE)
def test_translations_taught_what_is_alike(language):
    embedder = BertTextEmbedder.from_preset("bert_mini_demo_ko_ja", normalize=True)
    index = kerasbert.SearchIndex(embedder, list(ALIKE[language]))
    found = [index.search(one, top_k=1)[0]["text"] for one in ALIKE[language].values()]
    assert found == list(ALIKE[language])


@pytest.mark.backends("tensorflow")
def test_korean_and_japanese_as_people_type_it():
    from kerasbert.tokenizers import BertTokenizer

    tokenizer = BertTokenizer.from_preset("bert_mini_demo_ko_ja")
    for typed, usual in {
        unicodedata.normalize("NFD", "파일을 저장하지"): "파일을 저장하지",
        "ﾌｧｲﾙを保存": "ファイルを保存",
        "Ｌｉｎｕｘ": "Linux",
    }.items():
        assert tokenizer(typed) == tokenizer(usual)
        assert tokenizer.unk_token_id not in tokenizer(typed)
    for end in ("ㅋㅋㅋ", "ㅠㅠ", "👍🏽", "❤️", "⏰"):
        ids, starts, _ = tokenizer.tokenize_with_offsets(f"저장하지{end}파일을")
        assert ids[0] == tokenizer("저장하지")[0] and ids[-1] == tokenizer("파일을")[0]
        assert starts[1:-1] == list(range(4, 4 + len(end)))
    # Symbols of the vocabulary stay with their words.
    assert tokenizer.unk_token_id not in tokenizer("가★")


# Some of the first five predictions for each. Japanese is raw, without spaces between words.
MASKED = {
    "bert_mini_demo_en_uncased": {
        "The president of the united [MASK] spoke to the congress.": {"states"},
        "Click the button to [MASK] the file.": {"open", "edit"},
        "Paris is the capital of [MASK].": {"france"},
    },
    "bert_mini_demo_ko_ja": {
        "새 파일을 [MASK] 수 없습니다.": {"찾을", "읽을", "열"},
        "変更したファイルを[MASK]存します。": {"保"},
    },
}


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", MASKED)
def test_masked_words(name):
    model = BertMaskedLM.from_preset(name)
    for text, expected in MASKED[name].items():
        words = {word["token"] for word in model.fill_mask(text, top_k=5)}
        assert words & expected, text


@pytest.mark.backends("tensorflow")
def test_narrower_vectors_and_translations(tmp_path):
    import small_presets

    drawn = np.random.default_rng(0)
    vectors = drawn.normal(size=(50, 4)) @ drawn.normal(size=(4, 8))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    narrow = small_presets.narrower(vectors, 4)
    assert narrow.shape == (50, 4)
    np.testing.assert_allclose(narrow @ narrow.T, vectors @ vectors.T, atol=1e-6)
    assert small_presets.narrower(vectors, 8) is vectors
    write_text(str(tmp_path / "ko.tsv"), "".join(f"{i}번\tNo. {i}\n" for i in range(9)))
    texts, english = small_presets.translated([tmp_path / "ko.tsv"], 5, seed=0)
    assert len(texts) == len(set(texts)) == 5 and texts != sorted(texts)
    assert english == [f"No. {text[:-1]}" for text in texts]


@pytest.mark.slow
@pytest.mark.peers
@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("call", [*CARDS, "pairs"])
def test_first_steps_of_a_card(tmp_path, call):
    """The losses are the recorded ones.

    `PYTHONPATH=benchmarks python -m tests.test_small_presets` records the current ones.
    """
    import preset_text
    import real_data

    for language in HELP if call == "pairs" else [call]:
        archive = preset_text.ARCHIVES[HELP[language]]
        real_data.or_skip(lambda archive=archive: real_data.archive(archive))
    expected = json.loads(GOLDEN.read_text())[call]
    found = first_steps(call, tmp_path)
    assert found["characters"] == expected["characters"]
    np.testing.assert_allclose(found["values"], expected["values"], rtol=0, atol=1e-4)


def first_steps(call, folder):
    return cosines_of(folder) if call == "pairs" else losses_of(call, folder)


def losses_of(language, folder):
    import preset_text

    documents, _ = preset_text.made(language, overlap=False, only=ONLY)
    text = folder / "text.txt"
    write_text(str(text), "".join("\n".join(one.paragraphs) + "\n\n" for one in documents))
    settings = SETTINGS | CARDS[language]
    if "preset" not in settings:
        words = {"size": 2000, "lowercase": False, "min_frequency": 3}
        kerasbert.vocab(str(text), str(folder / "vocabulary"), **words)
        settings["vocabulary"] = str(folder / "vocabulary")
    kerasbert.pretrain(str(text), str(folder / "out"), **settings)
    log = read_log(str(folder / "out" / "log.jsonl"))
    return {
        "characters": len(text.read_text(encoding="utf-8")),
        "values": [round(line["loss"], 6) for line in log],
    }


def cosines_of(folder):
    """Train the packaged model further on translations; return the cosines of its embeddings with
    MiniLM's of the English originals.
    """
    import preset_pairs
    import small_presets

    pairs, _ = preset_pairs.made("ko", overlap=False, only=ONLY)
    text = "".join(f"{korean}\t{english}\n" for korean, english in pairs)
    write_text(str(folder / "ko.tsv"), text)
    small_presets.embedder(
        PRESETS / "bert_mini_demo_ko_ja",
        folder / "out",
        pairs=str(folder / "ko.tsv"),
        count=2600,  # A thousand of these pairs are held out.
        epochs=1,
        batch_size=8,
        learning_rate=2e-3,
        optimizer="muon",
        steps_a_slice=50,
        precision="float32",
    )
    log = read_log(str(folder / "out" / "log.jsonl"))
    return {"characters": len(text), "values": [line["cosine"] for line in log]}


if __name__ == "__main__":
    import tempfile

    found = {}
    for call in (*CARDS, "pairs"):
        with tempfile.TemporaryDirectory() as made:
            found[call] = first_steps(call, Path(made))
    write_text(str(GOLDEN), json.dumps(found) + "\n")
