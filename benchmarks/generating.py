"""Tokens per second of `generate`: a GPT-2 of random weights, ours, transformers' and KerasHub's.

    python benchmarks/generating.py                               # one prompt, then eight
    python benchmarks/generating.py --prompts 8 --only kerasbert,transformers --beams 4

Prompts are arrays of 32 tokens, and 96 tokens are generated, greedily or with beams; no text ends
early. Layers, width and vocabulary are those of GPT-2 with 124 million parameters; `--layers` takes
fewer. Everything is compiled before the first run.
"""

from time import perf_counter
from typing import Annotated

import typer
from contest import chosen, console, disturbed, failed, machine, race, ran, serve, table

SPECS = [
    "transformers/torch/float32",
    "kerasbert/tensorflow/float32",
    "kerasbert/jax/float32",
    "kerasbert/torch/float32",
    "keras_hub/tensorflow/float32",
    "keras_hub/jax/float32",
]
SIZES = {"vocabulary": 50257, "width": 768, "heads": 12, "positions": 1024}
PROMPT, LENGTH = 32, 128


def load_transformers(settings, ids):
    import torch
    import transformers

    config = transformers.GPT2Config(n_layer=settings["layers"])
    model = transformers.GPT2LMHeadModel(config).eval()
    ids = torch.from_numpy(ids).long()
    # Without an end token, all generate the same number of tokens.
    generation = transformers.GenerationConfig(
        max_length=LENGTH, eos_token_id=None, pad_token_id=0, num_beams=settings["beams"]
    )

    def run():
        mask = torch.ones_like(ids)
        return model.generate(ids, attention_mask=mask, generation_config=generation)

    return run


def load_kerasbert(settings, ids):
    import keras_hub

    from kerasbert.models import BertBackbone, BertCausalLM

    backbone = BertBackbone.from_family("gpt2", **_sizes(settings))
    return _generate(BertCausalLM(backbone), keras_hub, settings, ids)


def load_keras_hub(settings, ids):
    import keras_hub

    sizes = {**_sizes(settings), "max_sequence_length": SIZES["positions"]}
    backbone = keras_hub.models.GPT2Backbone(**sizes)
    return _generate(keras_hub.models.GPT2CausalLM(backbone), keras_hub, settings, ids)


def _sizes(settings):
    return {
        "vocabulary_size": SIZES["vocabulary"],
        "num_layers": settings["layers"],
        "num_heads": SIZES["heads"],
        "hidden_dim": SIZES["width"],
        "intermediate_dim": 4 * SIZES["width"],
    }


def _generate(model, keras_hub, settings, ids):
    import numpy as np

    beams = settings["beams"]
    model.compile(sampler="greedy" if beams == 1 else keras_hub.samplers.BeamSampler(beams))
    room = ((0, 0), (0, LENGTH - PROMPT))
    inputs = {"token_ids": np.pad(ids, room), "padding_mask": np.pad(np.ones_like(ids), room)}
    if type(model).__name__ == "BertCausalLM":
        # For texts, the preprocessor returns this entry, too.
        inputs["prompt_ids"] = ids
    return lambda: np.asarray(model.generate(dict(inputs), stop_token_ids=None)["token_ids"])


def prepare(spec, settings):
    import numpy as np

    library, backend, _ = spec.split("/")
    if backend == "torch":
        import torch

        torch.set_num_threads(settings["threads"])
    random = np.random.default_rng(0)
    ids = random.integers(5, SIZES["vocabulary"], (settings["prompts"], PROMPT)).astype("int32")
    load = {
        "transformers": load_transformers,
        "kerasbert": load_kerasbert,
        "keras_hub": load_keras_hub,
    }[library]
    write = load(settings, ids)
    start = perf_counter()
    write()
    first = perf_counter() - start
    write()

    def run():
        start = perf_counter()
        write()
        return {"seconds": perf_counter() - start}

    return {"first_s": round(first, 1)}, run


def main(
    prompts: Annotated[
        str, typer.Option(help="Comma-separated numbers of prompts per batch.")
    ] = "1,8",
    beams: Annotated[int, typer.Option(help="Number of beams; 1 is greedy.")] = 1,
    layers: Annotated[int, typer.Option(help="Layers of the model.")] = 12,
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
    for count in map(int, prompts.split(",")):
        given = {"prompts": count, "beams": beams, "layers": layers, "threads": threads}
        children = race(__file__, chosen(SPECS, only), rounds, threads, given, wait)
        failed(children)
        runners = ran(children)
        if not runners:
            continue
        speed = {c.spec: count * (LENGTH - PROMPT) / c.median("seconds") for c in runners}
        rows = []
        for child in runners:
            row = [child.spec, f"{speed[child.spec]:.0f}", child.ready["first_s"]]
            for peer in ("transformers/torch/float32", "keras_hub/tensorflow/float32"):
                row.append(f"{speed[child.spec] / speed[peer]:.2f}" if peer in speed else "-")
            rows.append(row)
        columns = ["contestant", "tokens/s", "first call, s", "x transformers", "x KerasHub"]
        table(f"{count} prompts, {beams} beams, {layers} layers", columns, rows)
        console.print(f"Others took at most {disturbed(children):.0%} of the machine during a run.")


if __name__ == "__main__":
    typer.run(main)
