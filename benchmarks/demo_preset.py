"""The text of the first small preset, `bert_tiny_demo_en_uncased`.

    python benchmarks/demo_preset.py FOLDER
    kerasbert vocab FOLDER -o VOCABULARY --size 8192 --unused 20 --min-frequency 5
    kerasbert pretrain FOLDER -o OUTPUT --vocabulary VOCABULARY ...   # as the card says
    python benchmarks/small_presets.py pack OUTPUT/preset presets/NAME --task pretrainer

The text has one JSON line per document: speeches, novels and plays in the public domain, and
articles of Wikipedia (CC BY-SA 3.0). The Brown corpus was included until we saw that NLTK lists it
as "non-commercial".

The first rows of the training are short for a reason. With rows of 128 tokens, in batches of 16 and
32, an encoder of 4 layers of width 256 had not learned attention after 8 million tokens: its
accuracy stayed on a plateau (12.9% of the masked words; the most frequent token has 4.9%), whatever
the learning rate, dropout and share of masked tokens. With rows of 32 tokens in batches of 128,
without dropout, 2 layers of width 128 leave this plateau after 2 million tokens.
"""

import json
import random
import re
from pathlib import Path

import real_data
import typer


def documents():
    """Yield `(source, text)`."""
    for text in real_data.state_of_the_union():
        yield "state_of_the_union", text
    for text in real_data.wikipedia_sample():
        yield "wikipedia", text
    for text in real_data.jane_austen():
        for chapter in re.split(r"(?mi)^chapter \w+\.?$", text)[1:]:
            yield "austen", chapter.strip()
    for text in real_data.shakespeare():
        yield "shakespeare", text


def text(folder: Path):
    """Write the text."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = list(documents())
    # Shuffled, because wrong next sentences are drawn from nearby documents, and held-out documents
    # are adjacent.
    random.Random(0).shuffle(rows)
    sizes = {}
    with open(folder / "text.jsonl", "w", encoding="utf-8") as file:
        for source, text in rows:
            file.write(json.dumps({"source": source, "text": text}, ensure_ascii=False) + "\n")
            count, size = sizes.get(source, (0, 0))
            sizes[source] = count + 1, size + len(text)
    for source, (count, size) in sizes.items():
        print(f"{source}: {count} documents, {size:,} characters")


if __name__ == "__main__":
    typer.run(text)
