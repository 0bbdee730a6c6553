"""Load tiny checkpoints of BERT under another name, and compare with transformers.

python use.py FOLDER
"""

import json
import os
import sys

# First, as in tests/conftest.py: PyTorch's compiler must be imported before TensorFlow's.
import kerasbert.models  # isort: split

import keras
import numpy as np
import torch
import transformers

SIZES = {
    "vocab_size": 60,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 20,
}
# Suffix of the transformers class: our class, its settings, and the outputs of ours and theirs.
LOGITS = {"logits": "logits"}
HEADS = {
    "Model": ("BertBackbone", {}, {"sequence_output": "last_hidden_state"}),
    "ForSequenceClassification": ("BertTextClassifier", {"num_labels": 3}, LOGITS),
    "ForTokenClassification": ("BertTokenClassifier", {"num_labels": 3}, LOGITS),
    "ForQuestionAnswering": (
        "BertQuestionAnswering",
        {},
        {name: name for name in ("start_logits", "end_logits")},
    ),
    "ForMultipleChoice": ("BertMultipleChoice", {}, LOGITS),
    "ForMaskedLM": ("BertMaskedLM", {}, LOGITS),
    "ForNextSentencePrediction": ("BertNextSentencePredictor", {}, LOGITS),
    "ForPreTraining": (
        "BertPretrainer",
        {},
        {"mlm_logits": "prediction_logits", "nsp_logits": "seq_relationship_logits"},
    ),
}


def main(folder):
    for end, (name, settings, outputs) in HEADS.items():
        torch.manual_seed(0)
        config = transformers.BertConfig(**SIZES, **settings)
        theirs = getattr(transformers, f"Bert{end}")(config).eval()
        with torch.no_grad():
            for weight in theirs.parameters():
                weight.add_(torch.randn_like(weight) * 0.3)
        path = os.path.join(folder, end)
        theirs.save_pretrained(path)
        config = {**config.to_dict(), "model_type": "other-bert"}
        config["architectures"] = [f"OtherBert{end}"]
        with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
        arguments = {} if name == "BertBackbone" else {"preprocessor": None}
        ours = getattr(kerasbert.models, name).from_preset(path, **arguments)
        shape = (2, 3, 9) if name == "BertMultipleChoice" else (2, 9)
        ids = np.random.default_rng(0).integers(1, 60, shape).astype("int32")
        with torch.no_grad():
            expected = theirs(torch.tensor(ids).long())
        found = ours({"token_ids": ids})
        for key, their_key in outputs.items():
            array = keras.ops.convert_to_numpy(found[key] if isinstance(found, dict) else found)
            gap = np.abs(array - expected[their_key].numpy()).max()
            assert gap < 1e-5, (name, key, gap)
            print(f"{name} {key}: {gap:.1e}")
        converted = kerasbert.convert(ours, os.path.join(folder, "converted", end))
        assert converted["written"] == f"OtherBert{end}", converted["written"]


if __name__ == "__main__":
    main(sys.argv[1])
