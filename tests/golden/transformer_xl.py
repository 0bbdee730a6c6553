"""Recorded outputs of transformers 4.30: tiny models of Transformer-XL, and their directories.

    pip install --no-deps --target OLD transformers==4.30.0 tokenizers==0.13.3 \\
        huggingface-hub==0.14.1
    PYTHONPATH=OLD python tests/golden/transformer_xl.py

recreates `transformer_xl.npz`: later versions of transformers have no such models.
"""

import json
import os
import tempfile

import numpy as np

FILE = os.path.splitext(__file__)[0] + ".npz"
SIZES = {"vocab_size": 40, "d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 24, "n_layer": 2}
# Three models. The first has a plain softmax and shared biases; the second has clusters with narrow
# embeddings, one with its own projection, and `same_length` attention; the third has clusters in
# one narrow table.
CASES = {
    "plain": {
        "d_embed": 16,
        "cutoffs": [],
        "div_val": 1,
        "mem_len": 6,
        "same_length": False,
        "clamp_len": -1,
        "untie_r": False,
        "tie_projs": [False],
    },
    "same_length": {
        "d_embed": 16,
        "cutoffs": [10, 25],
        "div_val": 2,
        "mem_len": 5,
        "same_length": True,
        "clamp_len": 4,
        "untie_r": True,
        "tie_projs": [False, True, True],
    },
    "narrow": {
        "d_embed": 8,
        "cutoffs": [10, 25],
        "div_val": 1,
        "mem_len": 6,
        "same_length": False,
        "clamp_len": 3,
        "untie_r": True,
        "tie_projs": [False, True, True],
    },
}


def record():
    import torch
    from transformers import TransfoXLConfig, TransfoXLLMHeadModel

    found = {}
    for name, settings in CASES.items():
        torch.manual_seed(0)
        model = TransfoXLLMHeadModel(TransfoXLConfig(**SIZES, **settings)).eval()
        with torch.no_grad():
            for weight in model.parameters():
                # Few bits, so that the file is small.
                weight.add_(0.1 * torch.randn_like(weight)).copy_(weight.half().float())
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            with open(os.path.join(folder, "config.json")) as file:
                found[f"{name}/config"] = np.array(json.dumps(json.load(file)))
        for key, value in model.state_dict().items():
            if not key.endswith("inv_freq"):
                found[f"{name}/weights/{key}"] = value.numpy().astype("float16")
        memory, random = None, np.random.default_rng(0)
        for part in range(3):
            ids = random.integers(0, 40, (2, 4 + part), dtype="int32")
            with torch.no_grad():
                outputs = model(torch.tensor(ids).long(), mems=memory)
                hidden = model.transformer(torch.tensor(ids).long(), mems=memory)
            memory = outputs.mems
            found |= {
                f"{name}/{part}/token_ids": ids,
                f"{name}/{part}/scores": outputs.prediction_scores.numpy(),
                f"{name}/{part}/sequence_output": hidden.last_hidden_state.numpy(),
                f"{name}/{part}/memory": torch.stack(memory).numpy().transpose(2, 0, 1, 3),
            }
    np.savez_compressed(FILE, **found)


if __name__ == "__main__":
    record()
