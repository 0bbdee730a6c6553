"""Send texts to a classifier on Triton: python triton_client.py localhost:8001 spam "A text."

The second argument is the folder that the export wrote; its name is the model's name on the server.
Prints the label of each text and its probability. Needs tokenizers and tritonclient[grpc].
"""

import json
import os
import sys

import numpy as np
import tritonclient.grpc as triton
from tokenizers import Tokenizer

# Requests run as one batch if their rows have the same length.
MULTIPLE = 16


def classify(address, folder, texts):
    """Return the label and probability of each text."""
    tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    padding = {**tokenizer.padding, "pad_to_multiple_of": MULTIPLE}
    tokenizer.enable_padding(**padding)
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        labels = list(json.load(file)["id2label"].values())
    rows = tokenizer.encode_batch(texts)
    features = {
        "token_ids": [row.ids for row in rows],
        "segment_ids": [row.type_ids for row in rows],
        "padding_mask": [row.attention_mask for row in rows],
    }
    with triton.InferenceServerClient(address) as client:
        name = os.path.basename(os.path.abspath(folder))
        # Some families have no segments.
        known = {x.name for x in client.get_model_metadata(name).inputs}
        inputs = []
        for key, values in features.items():
            if key in known:
                values = np.array(values, "int32")
                inputs.append(triton.InferInput(key, values.shape, "INT32"))
                inputs[-1].set_data_from_numpy(values)
        logits = client.infer(name, inputs).as_numpy("logits")
    odds = np.exp(logits - logits.max(-1, keepdims=True))
    odds /= odds.sum(-1, keepdims=True)
    return [(labels[row.argmax()], float(row.max())) for row in odds]


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(f"Usage: python {sys.argv[0]} HOST:PORT FOLDER TEXT [TEXT ...]")
    for text, (label, score) in zip(sys.argv[3:], classify(*sys.argv[1:3], sys.argv[3:])):
        print(f"{label:>8}  {score:.4f}  {text}")
