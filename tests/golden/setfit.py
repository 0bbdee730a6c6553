"""Recorded trainings of setfit: tiny encoders, its pairs in their order, heads and answers.

    pip install "setfit==1.2.0"
    python -m tests.golden.setfit    # regenerates setfit.npz

Weights are drawn from their names, as in `peers.py`; `tests/training/test_setfit.py` trains on the
same pairs.
"""

import json
import os
import pathlib
import tempfile

import numpy as np

from tests.golden.peers import weights

FILE = pathlib.Path(__file__).parent / "setfit.npz"
RATE, BATCH, LENGTH = 1e-3, 8, 24
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = "a the film was is good bad long short who what where ran sat sea sky".split()
CONFIG = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "vocab_size": len(SPECIAL) + len(WORDS),
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "pad_token_id": 0,
}
# Number of classes, whether embeddings are normalized, and how pairs are sampled.
CASES = {
    "two": (2, False, {"sampling_strategy": "undersampling"}),
    "three": (3, True, {"num_iterations": 5}),
}


def texts_of(case):
    """Return `(texts, classes, others)`: twelve for training, and eight for prediction."""
    count = CASES[case][0]
    random = np.random.RandomState(count)
    texts = []
    for number in range(20):
        words = random.choice(WORDS, random.randint(2, 9)).tolist()
        texts.append(" ".join([*words, ("good", "bad", "who")[number % count]]))
    return texts[:12], [number % count for number in range(12)], texts[12:]


def write(case, directory):
    """Write the embedder of a case, as sentence-transformers stores it."""
    from safetensors.numpy import save_file

    width, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    shapes = {
        "embeddings.word_embeddings.weight": (CONFIG["vocab_size"], width),
        "embeddings.position_embeddings.weight": (CONFIG["max_position_embeddings"], width),
        "embeddings.token_type_embeddings.weight": (2, width),
        **_norm("embeddings.LayerNorm", width),
        **_dense("pooler.dense", width, width),
    }
    for layer in range(CONFIG["num_hidden_layers"]):
        start = f"encoder.layer.{layer}."
        for name in ("query", "key", "value"):
            shapes |= _dense(f"{start}attention.self.{name}", width, width)
        shapes |= _dense(f"{start}attention.output.dense", width, width)
        shapes |= _norm(f"{start}attention.output.LayerNorm", width)
        shapes |= _dense(f"{start}intermediate.dense", width, inner)
        shapes |= _dense(f"{start}output.dense", inner, width)
        shapes |= _norm(f"{start}output.LayerNorm", width)
    save_file(
        weights(shapes), os.path.join(directory, "model.safetensors"), metadata={"format": "pt"}
    )
    kinds = ["Transformer", "Pooling", *(["Normalize"] if CASES[case][1] else [])]
    modules = [
        {
            "idx": number,
            "name": str(number),
            "path": f"{number}_{kind}" if number else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for number, kind in enumerate(kinds)
    ]
    for module in modules[1:]:
        os.mkdir(os.path.join(directory, module["path"]))
    files = {
        "config.json": CONFIG,
        "modules.json": modules,
        "sentence_bert_config.json": {"max_seq_length": LENGTH, "do_lower_case": False},
        "tokenizer_config.json": {"tokenizer_class": "BertTokenizer", "do_lower_case": True},
        "1_Pooling/config.json": {
            "word_embedding_dimension": width,
            "pooling_mode_mean_tokens": True,
        },
    }
    for name, value in files.items():
        with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
            json.dump(value, file)
    with open(os.path.join(directory, "vocab.txt"), "w", encoding="utf-8") as file:
        file.write("\n".join([*SPECIAL, *WORDS]) + "\n")


def _dense(name, inputs, outputs):
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _norm(name, width):
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def record(case):
    """Return setfit's results for a case: a dict of arrays."""
    from datasets import Dataset
    from setfit import SetFitModel, Trainer, TrainingArguments

    texts, classes, others = texts_of(case)
    places = {text: place for place, text in enumerate(texts)}
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        write(case, folder)
        model = SetFitModel.from_pretrained(folder, device="cpu")
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=os.path.join(folder, "out"),
                batch_size=BATCH,
                num_epochs=1,
                body_learning_rate=RATE,
                report_to="none",
                save_strategy="no",
                show_progress_bar=False,
                **CASES[case][2],
            ),
            train_dataset=Dataset.from_dict({"text": texts, "label": classes}),
        )
        collator = trainer.st_trainer.data_collator

        class Seen(type(collator)):
            def __call__(self, rows):
                pairs.extend(
                    (places[row["sentence_1"]], places[row["sentence_2"]], row["label"])
                    for row in rows
                )
                return super().__call__(rows)

        collator.__class__ = Seen
        trainer.train()
        body, head = model.model_body, model.model_head
        return {
            "pairs": np.array(pairs, "float32"),
            "vectors": body.encode(others),
            "coefficients": head.coef_,
            "intercept": head.intercept_,
            "probabilities": head.predict_proba(body.encode(others)),
        }


def recorded(case):
    """Return the file's content for a case."""
    with np.load(FILE) as file:
        return {name.partition("/")[2]: file[name] for name in file.files if name.startswith(case)}


def main():
    made = {case: record(case) for case in CASES}
    arrays = {f"{case}/{name}": x for case, found in made.items() for name, x in found.items()}
    np.savez_compressed(FILE, **arrays)
    print(f"{len(made)} cases, {FILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
