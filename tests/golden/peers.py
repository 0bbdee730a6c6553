"""Recorded outputs of transformers: tiny models of every family and head.

    python tests/golden/peers.py    # regenerates peers.npz; needs transformers and PyTorch

Weights are not stored: they are drawn from their names, equal on every machine, so the file is
small. `tests/test_peers.py` compares kerasbert with the file; if transformers is installed, it also
computes the outputs again and compares them with the file.
"""

import json
import os
import pathlib
import tempfile
import zlib

import numpy as np

FILE = pathlib.Path(__file__).parent / "peers.npz"
LENGTH = 11
# Names of transformers' heads, with settings, and our class.
LABELS = {0: "no", 1: "maybe", 2: "yes"}
HEADS = {
    "encoder": ("Model", {}, "BertBackbone"),
    "classes": ("ForSequenceClassification", {"id2label": LABELS}, "BertTextClassifier"),
    "number": ("ForSequenceClassification", {"num_labels": 1}, "BertTextRegressor"),
    "tags": ("ForTokenClassification", {"id2label": LABELS}, "BertTokenClassifier"),
    "spans": ("ForQuestionAnswering", {}, "BertQuestionAnswering"),
    "choice": ("ForMultipleChoice", {}, "BertMultipleChoice"),
    "masked": ("ForMaskedLM", {}, "BertMaskedLM"),
    "next": ("ForNextSentencePrediction", {}, "BertNextSentencePredictor"),
    "both": ("ForPreTraining", {}, "BertPretrainer"),
    "replaced": ("ForPreTraining", {}, "BertReplacedTokenDetector"),
    "following": ("LMHeadModel", {}, "BertCausalLM"),
}
ONLY = {"next": ("bert",), "both": ("bert", "albert"), "following": (), "replaced": ("electra",)}
# Families with causal attention.
OF_GPT = ("encoder", "classes", "number", "following")
# Our output names by transformers' names.
OUTPUTS = {
    "last_hidden_state": "sequence_output",
    "pooler_output": "pooled_output",
    "logits": "logits",
    "start_logits": "start_logits",
    "end_logits": "end_logits",
    "prediction_logits": "mlm_logits",
    "seq_relationship_logits": "nsp_logits",
    "sop_logits": "nsp_logits",
}


def cases():
    """Return every family with every head that it has."""
    from kerasbert.families import FAMILIES
    from tests.conftest import TINY
    from tests.contracts import MASKED_LMS, RELATIVES, with_head

    only = {**ONLY, "masked": [*MASKED_LMS, "gte"]}
    only |= {"spans": with_head("question_answering"), "choice": with_head("multiple_choice")}
    looks_back = {name for name, row in FAMILIES.items() if row.encoder.get("is_causal")}
    return [
        (family, head)
        for family in FAMILIES
        if family in TINY and family not in RELATIVES  # Others are not in transformers.
        for head in HEADS
        if (head in OF_GPT if family in looks_back else family in only.get(head, [family]))
    ]


def weights(shapes):
    """Return values for tensors by name: gains are around 1, and every bias matters."""
    found = {}
    for name, shape in shapes.items():
        # `RandomState` draws the same numbers in every version of NumPy.
        drawn = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
        is_gain = len(shape) == 1 and name.endswith("weight")
        found[name] = (0.25 * drawn + is_gain).astype("float32")
    return found


def inputs(family, head, vocabulary_size=99):
    """Return three of our rows, the second one padded; (3, 2, T) for choices."""
    from tests.conftest import SEGMENTS, TINY

    random = np.random.RandomState(zlib.crc32(f"{family} {head}".encode()))
    shape = (3, 2, LENGTH) if head == "choice" else (3, LENGTH)
    mask = np.ones(shape, "int32")
    mask[1, ..., LENGTH // 2 :] = 0
    ids = random.randint(3, vocabulary_size, shape)
    made = {"token_ids": np.where(mask, ids, _padding(family)), "padding_mask": mask}
    if family in SEGMENTS:
        most = TINY[family].get("type_vocab_size", 2)
        made["segment_ids"] = random.randint(0, most, shape)
    return {name: value.astype("int32") for name, value in made.items()}


def _padding(family):
    # The positions of these families start after the padding id.
    return 1 if "roberta" in family or family == "mpnet" else 0


def outputs(family, head, their_outputs):
    """Return our outputs by name, at tokens only."""
    mask = inputs(family, head)["padding_mask"]
    found = {}
    for theirs, ours in OUTPUTS.items():
        if their_outputs.get(theirs) is not None:
            value = np.asarray(their_outputs[theirs])
            has_tokens = value.shape[: mask.ndim] == mask.shape and head != "choice"
            found[ours] = value[mask == 1] if has_tokens else value
    return found


def record():
    """Return every case run by transformers: configurations, shapes and outputs, by family and
    head.
    """
    import torch
    import transformers
    from safetensors import safe_open
    from safetensors.numpy import save_file

    from tests.conftest import TINY, _architecture

    made = {}
    for family, head in cases():
        name, settings, _ = HEADS[head]
        architecture = _architecture(family, name)
        settings = {**settings, "attn_implementation": "eager"}
        model = architecture(architecture.config_class(**TINY[family], **settings)).eval()
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)  # It omits tied weights.
            with safe_open(os.path.join(folder, "model.safetensors"), "numpy") as file:
                shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}
            # In some families, transformers reads files with other names than its class has.
            save_file(weights(shapes), os.path.join(folder, "model.safetensors"))
            filled, report = architecture.from_pretrained(folder, output_loading_info=True)
        assert not any(report.values())
        model.load_state_dict(filled.state_dict())
        given = {
            {"token_ids": "input_ids", "padding_mask": "attention_mask"}.get(
                name, "token_type_ids"
            ): torch.tensor(value).long()
            for name, value in inputs(family, head).items()
        }
        with torch.no_grad():
            answered = {name: value for name, value in model(**given).items()}
        answered = {n: v.numpy() for n, v in answered.items() if hasattr(v, "numpy")}
        said = {"config": model.config.to_dict(), "shapes": shapes}
        said["config"]["architectures"] = [architecture.__name__]
        made[f"{family}/{head}"] = (said, outputs(family, head, answered))
    return made, {"transformers": transformers.__version__, "torch": str(torch.__version__)}


def recorded():
    """Return the file's content: `(by case (said, outputs), versions)`."""
    with np.load(FILE) as file:
        said = json.loads(str(file["said"]))
        made = {}
        for case, one in said["cases"].items():
            found = {
                name.rsplit("/", 1)[1]: file[name]
                for name in file.files
                if name.startswith(f"{case}/")
            }
            made[case] = (one, found)
    return made, said["versions"]


def write(case, directory):
    """Write the checkpoint of a case, as transformers stores it."""
    from safetensors.numpy import save_file

    said = recorded()[0][case][0]
    os.makedirs(directory, exist_ok=True)
    save_file(weights(said["shapes"]), os.path.join(directory, "model.safetensors"))
    with open(os.path.join(directory, "config.json"), "w", encoding="utf-8") as file:
        json.dump(said["config"], file)


def main():
    made, versions = record()
    said = {"versions": versions, "cases": {case: one for case, (one, _) in made.items()}}
    arrays = {
        f"{case}/{name}": value
        for case, (_, found) in made.items()
        for name, value in found.items()
    }
    np.savez_compressed(FILE, said=json.dumps(said), **arrays)
    print(f"{len(made)} cases, {FILE.stat().st_size:,} bytes, {versions}")


if __name__ == "__main__":
    main()
