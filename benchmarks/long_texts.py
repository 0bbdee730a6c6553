"""Long texts through a ModernBERT of 6 layers of width 384, ours and transformers'.

    python benchmarks/long_texts.py                        # 1,024, 4,096 and 8,192 tokens
    python benchmarks/long_texts.py --tokens 8192 --only kerasbert/jax

The model has random weights, a window of 128 tokens and global attention in every third layer; a
batch has one text. A run is one forward pass of the encoder, and then one forward and backward pass
that computes the gradients of all its weights; both are compiled if the backend compiles. Memory is
the peak of the process minus its memory before the first pass; each process runs one length.
"""

import resource
from time import perf_counter
from typing import Annotated

import typer
from contest import chosen, console, disturbed, failed, machine, race, ran, serve, table

SPECS = [
    f"{library}/{backend}/{dtype}"
    for dtype in ("float32", "bfloat16")
    for library, backend in (
        ("transformers", "torch"),
        ("kerasbert", "torch"),
        ("kerasbert", "jax"),
        ("kerasbert", "tensorflow"),
    )
]
SHAPE = {"layers": 6, "width": 384, "heads": 6, "inner": 576, "vocabulary": 1000, "window": 128}


def load_transformers(ids, dtype):
    import torch
    import transformers

    config = transformers.ModernBertConfig(
        vocab_size=SHAPE["vocabulary"],
        num_hidden_layers=SHAPE["layers"],
        hidden_size=SHAPE["width"],
        num_attention_heads=SHAPE["heads"],
        intermediate_size=SHAPE["inner"],
        local_attention=SHAPE["window"],
        pad_token_id=0,
        attn_implementation="sdpa",
    )
    model = transformers.ModernBertModel(config).to(getattr(torch, dtype)).train()
    inputs = {"input_ids": torch.from_numpy(ids).long()}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    return _of_torch(lambda: model(**inputs).last_hidden_state, list(model.parameters()))


def load_kerasbert(ids, dtype):
    import keras
    import numpy as np

    from kerasbert.models import BertBackbone

    model = BertBackbone.from_family(
        "modernbert",
        vocabulary_size=SHAPE["vocabulary"],
        num_layers=SHAPE["layers"],
        hidden_dim=SHAPE["width"],
        num_heads=SHAPE["heads"],
        intermediate_dim=SHAPE["inner"],
        local_window=SHAPE["window"],
        activation="gelu",
        dtype=dtype,
    )
    inputs = {"token_ids": ids, "padding_mask": np.ones_like(ids)}
    backend = keras.backend.backend()
    if backend == "torch":
        import torch

        inputs = {name: torch.from_numpy(x) for name, x in inputs.items()}
        weights = [v.value for v in model.trainable_variables]
        return _of_torch(lambda: model(inputs, training=True)["sequence_output"], weights)
    if backend == "jax":
        import jax

        weights = [v.value for v in model.trainable_variables]
        others = [v.value for v in model.non_trainable_variables]

        def loss(weights, inputs):
            outputs, _ = model.stateless_call(weights, others, inputs, training=True)
            return outputs["sequence_output"].astype("float32").sum()

        forwards, both = jax.jit(loss), jax.jit(jax.grad(loss))
        return (
            lambda: jax.block_until_ready(forwards(weights, inputs)),
            lambda: jax.block_until_ready(both(weights, inputs)),
        )
    import tensorflow as tf

    # `fit` and `predict` also compile for any length.
    specs = [{name: tf.TensorSpec((None, None), tf.int32, name) for name in inputs}]

    def total(inputs):
        return tf.reduce_sum(tf.cast(model(inputs, training=True)["sequence_output"], tf.float32))

    def gradients(inputs):
        with tf.GradientTape() as tape:
            loss = total(inputs)
        found = tape.gradient(loss, model.trainable_variables)
        return [loss, *(tf.reduce_sum(tf.convert_to_tensor(x)) for x in found)]

    inputs = {name: tf.constant(x) for name, x in inputs.items()}
    forwards, both = (tf.function(x, input_signature=specs) for x in (total, gradients))
    return lambda: forwards(inputs).numpy(), lambda: both(inputs)[-1].numpy()


def _of_torch(encode, weights):
    import torch

    def forwards():
        with torch.no_grad():
            encode()

    return forwards, lambda: torch.autograd.grad(encode().float().sum(), weights, allow_unused=True)


def prepare(spec, settings):
    import numpy as np

    library, backend, dtype = spec.split("/")
    if backend == "torch":
        import torch

        torch.set_num_threads(settings["threads"])
    random = np.random.default_rng(0)
    ids = random.integers(5, SHAPE["vocabulary"], (1, settings["tokens"])).astype("int32")
    load = {"transformers": load_transformers, "kerasbert": load_kerasbert}[library]
    passes = load(ids, dtype)
    before, held = _megabytes(), []
    for once in passes:  # The first run traces and compiles.
        once()
        held.append(_megabytes() - before)

    def run():
        seconds = []
        for once in passes:
            start = perf_counter()
            once()
            seconds.append(perf_counter() - start)
        return {"seconds": sum(seconds), "forwards": seconds[0], "both": seconds[1]}

    return {"forwards_mb": held[0], "both_mb": held[1]}, run


def _megabytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main(
    tokens: Annotated[str, typer.Option(help="Comma-separated lengths.")] = "1024,4096,8192",
    rounds: Annotated[int, typer.Option(help="Runs of each contestant after its warm-up.")] = 3,
    threads: Annotated[int, typer.Option(help="Cores and threads of each contestant.")] = 2,
    only: Annotated[str, typer.Option(help="Comma-separated prefixes of contestants.")] = "",
    wait: Annotated[int, typer.Option(help="Maximum seconds to wait for a quiet machine.")] = 60,
    contestant: Annotated[str, typer.Option(hidden=True)] = "",
    settings: Annotated[str, typer.Option(hidden=True)] = "",
):
    if contestant:
        import json

        return serve(prepare, contestant, json.loads(settings))
    console.print(machine(threads), soft_wrap=True)
    for length in map(int, tokens.split(",")):
        given = {"tokens": length, "threads": threads}
        children = race(__file__, chosen(SPECS, only), rounds, threads, given, wait)
        failed(children)
        runners = ran(children)
        if not runners:
            continue
        peers = {c.spec.split("/")[2]: c for c in runners if c.spec.startswith("transformers/")}
        rows = []
        for child in runners:
            peer = peers.get(child.spec.split("/")[2])
            row = [child.spec]
            for name in ("forwards", "both"):
                row += [f"{child.median(name):.2f}", child.ready[f"{name}_mb"]]
                row.append(f"{peer.median(name) / child.median(name):.2f}" if peer else "-")
            rows.append(row)
        columns = ["contestant", "forwards, s", "MB", "against transformers"]
        table(f"{length:,} tokens", [*columns, "and backwards, s", *columns[2:]], rows)
        console.print(f"Others took at most {disturbed(children):.0%} of the machine during a run.")


if __name__ == "__main__":
    typer.run(main)
