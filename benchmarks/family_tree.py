"""`examples/family_tree.py` in English, Korean and Japanese, on texts from packages.

    pip install mwparserfromhell fugashi unidic-lite
    python benchmarks/family_tree.py FOLDER TREEBANKS
    python benchmarks/family_tree.py FOLDER TREEBANKS --languages ko --only GPT,XLNet --seeds 1

TREEBANKS holds `en_ewt-ud-test.conllu.gz`, `en_ewt-ud-dev.conllu.gz`, and the same files of
`ko_gsd` and `ja_gsd` (universaldependencies.org). Each model and seed runs in a separate process,
which writes its line to FOLDER when it ends; a second call does not repeat finished runs. Two calls
with different models may run at the same time. The English text is gensim's sample of Wikipedia,
one sentence per line; the Korean and Japanese texts are LibreOffice's help and manuals, and fugashi
splits the Japanese into words.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import real_data
import typer

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "family_tree.py"
BANKS = {"en": "en_ewt", "ko": "ko_gsd", "ja": "ja_gsd"}
MODELS = "BERT at its start,BERT,BERT on sinusoids,ELMo,GPT,XLNet,ELECTRA"
BATCH = 64  # Rows per step.


def english():
    texts = (text.replace("\n", " ") for text in real_data.wikipedia_sample())
    sentences = (one.strip() for text in texts for one in re.split(r"(?<=[.!?])\s+", text))
    return [sentence for sentence in sentences if len(sentence.split()) > 3]


def japanese():
    import fugashi

    tagger = fugashi.Tagger("-Owakati")
    return [tagger.parse(line).strip() for line in real_data.japanese_text()]


TEXTS = {"en": english, "ko": real_data.korean_text, "ja": japanese}


def main(
    folder: Annotated[Path, typer.Argument(help="folder for texts and results")],
    treebanks: Path,
    steps: int = 1200,
    rows: Annotated[
        int, typer.Option(help="maximum number of rows of 40 words; half for Korean")
    ] = 7680,
    seeds: str = "0",
    languages: str = "en,ko,ja",
    only: Annotated[str, typer.Option(help="comma-separated models of the example")] = MODELS,
):
    folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds.split(","):
        for language in languages.split(","):
            text = folder / f"{language}.txt"
            if not text.exists():
                text.write_text("\n".join(TEXTS[language]()), encoding="utf-8")
            count = rows // 2 if language == "ko" else rows
            for model in only.split(","):
                done = folder / f"{language}.{seed}.{model}.txt"
                if not done.exists():
                    banks = [
                        str(treebanks / f"{BANKS[language]}-ud-{part}.conllu.gz")
                        for part in ("test", "dev")
                    ]
                    options = {
                        "--rows": count,
                        "--epochs": steps * BATCH // count,
                        "--seeds": seed,
                        "--only": model,
                    }
                    given = [str(part) for option in options.items() for part in option]
                    command = [sys.executable, str(EXAMPLE), str(text), *banks, *given]
                    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                    done.with_suffix(".part").write_text(run.stdout, encoding="utf-8")
                    done.with_suffix(".part").rename(done)
                for line in done.read_text(encoding="utf-8").splitlines():
                    if line.startswith("seed "):
                        print(language, line, flush=True)


if __name__ == "__main__":
    typer.run(main)
