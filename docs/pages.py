"""Generated pages, tables and pictures of the documentation site.

`write` puts them into folders of `docs/` that git ignores: `reference/`, `presets/`, `families/`,
`notebooks/`, `notes/` and `generated/`, which handwritten pages include. `python docs/pages.py`
draws README's picture.
"""

import csv
import importlib
import inspect
import itertools
import json
import pprint
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping
from html import escape
from pathlib import Path

from sphinx.pycode import ModuleAnalyzer

import kerasbert
import pictures
from kerasbert.base.files import write_text
from kerasbert.checkpoints.lineage import LINEAGE_TABLES
from kerasbert.families import FAMILIES, TABLES, get_family, head_settings
from kerasbert.kinds import ENCODER, KINDS
from kerasbert.lineage import CLASSES

ROOT = Path(__file__).parent.parent
NOTEBOOKS = ROOT / "examples"
# Public modules that `kerasbert.__all__` does not list.
_MORE_MODULES = ("data.beam",)


def write(folder):
    """Write all generated pages."""
    folder = Path(folder)
    for name in ("reference", "presets", "families", "notebooks", "notes", "generated"):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir()
    write_reference(folder / "reference")
    write_commands(folder / "reference" / "commands.md")
    write_presets(folder)
    write_pictures(folder)
    write_families(folder)
    write_benchmarks(folder)
    write_lessons(folder)
    for notebook in NOTEBOOKS.glob("*.ipynb"):
        shutil.copy(notebook, folder / "notebooks")


# === The reference ===


def public_modules():
    """Return the public modules, a dict of name, such as "losses", to module."""
    named = {name: getattr(kerasbert, name) for name in kerasbert.__all__}
    modules = {name: value for name, value in named.items() if inspect.ismodule(value)}
    modules |= {name: importlib.import_module(f"kerasbert.{name}") for name in _MORE_MODULES}
    return dict(sorted(modules.items()))


def public_names():
    """Map each public name, such as "losses.CoSENT", to the name of its page.

    Names that `models` exports too, such as tokenizers, have their page in their own module.
    """
    names = {name: getattr(kerasbert, name) for name in kerasbert.__all__}
    names = {name: value for name, value in names.items() if not inspect.ismodule(value)}
    for module, value in public_modules().items():
        names |= {f"{module}.{name}": getattr(value, name) for name in value.__all__}
    pages, first = {}, {}
    # `models` comes last, because it also exports `preprocessors` and `tokenizers`.
    for name, value in sorted(names.items(), key=lambda item: item[0].startswith("models.")):
        is_shared = inspect.isclass(value) or inspect.isfunction(value)
        pages[name] = first.setdefault(id(value), name) if is_shared else name
    return pages


def guides_of(name, guides):
    """Return the guides that use a public name most, as lines of reStructuredText.

    Args:
        name: string. Such as "losses.CoSENT".
        guides: dict of page name to its text.

    >>> guides_of("losses.CoSENT", {"guides/train": "`CoSENT` ranks ...", "start": "# Start"})
    'Guides: :doc:`/guides/train`\\n\\n'
    """
    last = name.rpartition(".")[2]
    # Plain words, such as "convert", count only as calls of kerasbert or as code.
    pattern = rf"\b{last}\b" if last[0].isupper() or "_" in last else rf"kerasbert\.{name}\b"
    counts = {page: len(re.findall(pattern, text)) for page, text in guides.items()}
    most = sorted((page for page in counts if counts[page]), key=lambda page: -counts[page])[:4]
    links = ", ".join(f":doc:`/{page}`" for page in most)
    return f"Guides: {links}\n\n" if links else ""


def write_reference(folder):
    pages = public_names()
    docs = ROOT / "docs"
    guides = {
        path.relative_to(docs).with_suffix("").as_posix(): path.read_text(encoding="utf-8")
        for path in [docs / "start.md", *sorted(docs.glob("guides/*.md"))]
        if path.stem != "index"
    }
    for name in sorted(set(pages.values())):
        module, _, last = f"kerasbert.{name}".rpartition(".")
        value = getattr(importlib.import_module(module), last)
        if inspect.isclass(value):
            directive = f".. autoclass:: {last}\n   :members:\n   :inherited-members:\n"
        elif callable(value):
            directive = f".. autofunction:: {last}\n"
        else:
            directive = _constant(last, value)
        text = f"{last}\n{'=' * len(last)}\n\n{guides_of(name, guides)}"
        text += f".. currentmodule:: {module}\n\n{directive}"
        write_text(folder / f"kerasbert.{name}.rst", text)
    lines = []
    for module in public_modules():
        own = [name for name in pages if name.rpartition(".")[0] == module]
        title = f"kerasbert.{module}"
        text = f"{title}\n{'=' * len(title)}\n\n.. automodule:: {title}\n   :no-members:\n\n"
        text += _summary([f"kerasbert.{pages[name]}" for name in sorted(own)])
        text += "\n.. toctree::\n   :hidden:\n\n"
        text += "".join(
            f"   {name.rpartition('.')[2]} <kerasbert.{name}>\n"
            for name in sorted(own)
            if pages[name] == name
        )
        write_text(folder / f"{title}.rst", text)
        lines.append(f"   {title} <{title}>\n")
    functions = sorted(name for name in pages if "." not in name)
    text = (
        "Reference\n=========\n\nEvery public name, generated from its docstring. "
        ":doc:`commands` has the command line.\n\n"
        + _summary([f"kerasbert.{name}" for name in functions])
        + "\nModules\n-------\n\n"
        + _summary([f"kerasbert.{module}" for module in public_modules()])
        + "\n.. toctree::\n   :hidden:\n\n   commands\n"
        + "".join(f"   {name} <kerasbert.{name}>\n" for name in functions)
        + "".join(lines)
    )
    write_text(folder / "index.rst", text)


def _constant(name, value):
    """Format a constant as reStructuredText: its `#:` comment and its value."""
    modules = [module for key, module in sys.modules.items() if key.startswith("kerasbert")]
    (home,) = {
        module.__name__
        for module in modules
        if getattr(module, name, None) is value
        and ("", name) in ModuleAnalyzer.for_module(module.__name__).find_attr_docs()
    }
    comment = ModuleAnalyzer.for_module(home).find_attr_docs()["", name]
    shown = pprint.pformat(dict(value) if isinstance(value, Mapping) else value, width=80)
    shown = re.sub(r"<function (\w+) at \w+>", r"\1", shown)
    return f".. py:data:: {name}\n\n" + textwrap.indent(
        "\n".join(comment) + "\n.. code-block:: text\n\n" + textwrap.indent(shown, "   "), "   "
    )


def _summary(names):
    """Return a definition list: names and the first paragraphs of their docstrings."""
    lines = []
    for name in names:
        module, _, last = name.rpartition(".")
        value = getattr(importlib.import_module(module), last)
        is_named = inspect.ismodule(value) or inspect.isclass(value) or callable(value)
        first = (
            (inspect.getdoc(value) or "").split("\n\n")[0].replace("\n", " ") if is_named else ""
        )
        role = "mod" if inspect.ismodule(value) else "obj"
        title = name if inspect.ismodule(value) else last
        lines.append(f":py:{role}:`{title} <{name}>`\n   {first or 'A constant.'}\n")
    return "\n".join(lines)


# === The commands ===


def write_commands(path):
    """Write the page of commands, a section per command, from its `--help`."""
    import typer

    from kerasbert.cli import app

    lines = ["# Commands", "", "`kerasbert COMMAND --help` shows the same.", ""]
    lines += [app.info.epilog, ""]
    for name, command in typer.main.get_command(app).commands.items():
        text = inspect.cleandoc(command.help or "").replace("\b\n", "")
        before, _, examples = text.partition("Examples:\n")
        lines += [f"## {name}", "", before.strip(), ""]
        if examples:
            lines += ["```sh", inspect.cleandoc(examples), "```", ""]
        lines += ["| | |", "|---|---|"]
        for part in command.params:
            names = ", ".join(f"`{one}`" for one in part.opts)
            if part.param_type_name == "argument":
                names = f"`{part.metavar or part.name.upper()}`"
            help = (getattr(part, "help", None) or "").replace("|", "\\|")
            lines.append(f"| {names} | {help} |")
        lines.append("")
    write_text(path, "\n".join(lines))


# === Presets ===

_PURPOSE = {
    "gpt": "next tokens",
    "gpt2": "next tokens",
    "modernbert_decoder": "next tokens",
    "deberta_v3": "replaced tokens",
    "transformer_xl": "next tokens, with a memory",
    "xlnet": "permuted tokens",
}
_OF_NAMES = (
    ("reranker", "relevance"),
    ("minilm", "text embeddings"),
    ("ruri", "text embeddings"),
    ("generator", "masked tokens"),
    ("electra", "replaced tokens"),
)
_HEADS = {
    "next tokens": "models.BertCausalLM",
    "masked tokens": "models.BertMaskedLM",
    "replaced tokens": "models.BertReplacedTokenDetector",
    "text embeddings": "models.BertTextEmbedder",
    "relevance": "models.BertReranker",
    "next tokens, with a memory": "lineage.TransformerXLLM",
    "permuted tokens": "lineage.XLNetPretrainer",
}


def purpose(preset):
    """Return what a preset was trained to predict."""
    for part, found in _OF_NAMES:
        if part in preset["name"]:
            return found
    return _PURPOSE.get(preset["family"], "masked tokens")


def verified():
    """Return the rows of `tools/verify_hub.py`, without failed ones."""
    rows = json.loads((ROOT / "tools" / "verified.json").read_text(encoding="utf-8"))["rows"]
    return [row for row in rows if row["verdict"] != "failed"]


def checked_with(preset, rows):
    """Describe the weights that were compared with transformers: the preset's, or random tiny ones.

    Files with the SHA-256 of the preset's weights are its weights, wherever they were found.
    """
    sha256 = set(preset["sha256"].values())
    found = [
        row
        for row in rows
        if preset["handle"] in (f"package://{row['name']}", f"hf://{row['name']}")
        or sha256 & set(row["sha256"].values())
    ]
    if not found:
        return "random tiny weights"
    row = max(found, key=lambda row: row["date"])
    revision = f", revision {row['revision'][:8]}" if row["revision"] else ""
    return f"real weights ({row['date']}{revision}): {verdict(row)}"


def verdict(row):
    """Return whether both packages agree on a checkpoint, or the items that differ."""
    items = ", ".join(item.replace("_", " ") for item in row["different"])
    return f"{row['verdict']} ({items})" if items else row["verdict"]


def write_verified(path, rows):
    """Write the table of checkpoints that were compared with their real weights."""
    items = ("ids", "offsets", "hidden_states", "logits", "loss", "weights")
    lines = [
        "| checkpoint | family, head | source | backend | date | verdict | "
        + " | ".join(item.replace("_", " ") for item in items)
        + " |",
        "|---" * (6 + len(items)) + "|",
    ]
    for row in rows:
        found = row["differences"]
        values = [f"{found[x]:.0g}" if x in found else "" for x in items]
        source = row["source"] + (f", revision {row['revision'][:8]}" if row["revision"] else "")
        cells = (
            f"`{row['name']}`",
            f"{row['family']}, {row['head']}",
            source,
            f"{row['backend']}, transformers {row['versions']['transformers']}",
            row["date"],
            verdict(row),
            *values,
        )
        lines.append("| " + " | ".join(cells) + " |")
    write_text(path, "\n".join(lines) + "\n")


# Result files of benchmarks that measured one text at a time, by the preset that they ran.
_ONE_TEXT = {
    "bert_tiny_demo_en_uncased": "one_text.json",
    "all_minilm_l6_v2_en": "one_text_minilm.json",
}


def _results(name):
    path = ROOT / "benchmarks" / "results" / name
    return json.loads(path.read_text(encoding="utf-8"))["rows"]


def quality(name, root=""):
    """Return the measured quality of a preset, linked to its measurement; "" if there is none."""
    cards = json.loads((ROOT / "benchmarks" / "cards.json").read_text(encoding="utf-8"))
    scores = cards.get(name, {}).get("scores", {})
    shown, note, cosine = "", "presets", "cosine with MiniLM's embeddings"
    if "mlm_accuracy" in scores:
        shown = f"{scores['mlm_accuracy']:.0%} of masked words"
    elif cosine in scores:
        shown = f"{scores[cosine]:.2f} cosine to MiniLM"
    elif name == "all_minilm_l6_v2_en":
        (row,) = [row for row in _results("quality.json") if row["work"].startswith("TREC")]
        found = row["values"]["MiniLM"]
        shown, note = f"{sum(found) / len(found):.0%} of questions, 6 classes", "quality"
    return f'<a href="{root}notes/{note}.html">{shown}</a>' if shown else ""


def speed(name, root=""):
    """Return the milliseconds for one text on our backends, the fastest first; "" if unknown."""
    if name not in _ONE_TEXT:
        return ""
    (row,) = [row for row in _results(_ONE_TEXT[name]) if ", embed" in row["work"]]
    found = [value for who, value in row["values"].items() if who.startswith("kerasbert")]
    return f'<a href="{root}notes/one_text.html">{min(found):g} to {max(found):g} ms</a>'


def write_presets(folder):
    """Write the tables of all presets and checks, and the cards of the presets in the package."""
    presets, checks = kerasbert.builtin_presets(), verified()
    write_verified(folder / "generated" / "verified.md", checks)
    table = preset_table(presets, checks)
    write_text(folder / "generated" / "presets.html", table)
    for name, preset in presets.items():
        handle = preset["handle"]
        if handle.startswith("package://"):
            card = (ROOT / "presets" / name / "README.md").read_text(encoding="utf-8")
            card = re.sub(r"\A---\n.*?\n---\n", "", card, flags=re.DOTALL)
            write_text(folder / "presets" / f"{name}.md", card)
            for picture in (ROOT / "presets" / name).glob("*.png"):
                (folder / "presets" / name).mkdir(exist_ok=True)
                shutil.copy(picture, folder / "presets" / name)
            text = (folder / "presets" / f"{name}.md").read_text(encoding="utf-8")
            text = re.sub(r"\]\((\w+\.png)\)", rf"]({name}/\1)", text)
            write_text(folder / "presets" / f"{name}.md", text)


def preset_table(presets, checks, root=""):
    """Return an HTML table of presets; `root` is the path from its page to the site's root."""
    heads = ("preset", "languages", "size", "quality", "one text", "layers", "family")
    heads += ("objective", "license", "weights compared with transformers")
    rows = []
    # Those in the package come first.
    shown = sorted(presets.items(), key=lambda x: not x[1]["handle"].startswith("package:"))
    for name, preset in shown:
        handle, settings, found = preset["handle"], preset["settings"], purpose(preset)
        link = f"https://huggingface.co/{handle[5:]}" if handle.startswith("hf://") else ""
        if handle.startswith("package://"):
            link = f"{root}presets/{name}.html"
        cells = (
            (f'<a href="{link}"><code>{name}</code></a>' if link else f"<code>{name}</code>")
            + f'<div class="about">{escape(preset["description"])}</div>',
            " ".join(preset["languages"]),
            f"{preset['parameters'] / 1e6:,.0f} M" if preset["parameters"] >= 1e6 else "under 1 M",
            quality(name, root),
            speed(name, root),
            f"{settings['num_layers']} x {settings['hidden_dim']}",
            f'<a href="{root}families/{preset["family"]}.html">{preset["family"]}</a>',
            f'<a href="{root}reference/kerasbert.{_HEADS[found]}.html">{found}</a>',
            preset["license"] or "see its page",
            checked_with(preset, checks),
        )
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    table = "<table class='presets table'><thead><tr>"
    table += "".join(f"<th>{head}</th>" for head in heads)
    return table + "</tr></thead><tbody>" + "\n".join(rows) + "</tbody></table>"


# === Families ===


def family_settings(name):
    """Return a family's encoder settings, with the sizes of a preset if it has one."""
    arguments = inspect.signature(kerasbert.models.BertBackbone).parameters.values()
    settings = {one.name: one.default for one in arguments if one.default is not one.empty}
    settings |= get_family(name).encoder
    presets = [x for x in kerasbert.builtin_presets().values() if x["family"] == name]
    usual = [x for x in presets if "_base_" in x["name"]] or presets
    if usual:
        settings |= usual[0]["settings"]
    return settings, usual[0]["name"] if usual else None


def write_pictures(folder):
    """Write the pictures of "How it works"."""
    usual, _ = family_settings("bert")
    write_text(folder / "generated" / "overview.svg", overview(narrow=True))
    title = "A SavedModel holds the tokenizer, the encoder, the head and the postprocessing"
    both = (pictures.chain(title, _SERVED, narrow) for narrow in (False, True))
    write_text(folder / "generated" / "served.svg", "".join(both))
    write_text(folder / "generated" / "batches.md", batches())
    write_text(folder / "generated" / "encoder.svg", pictures.encoder("bert", usual))
    shown = ["::::{tab-set}"]
    for name in ("bert", "roberta", "modernbert"):
        shown += [f":::{{tab-item}} {name}", "```{raw} html", heads(name), "```", ":::"]
    write_text(folder / "generated" / "heads.md", "\n".join([*shown, "::::", ""]))


def heads_of(name):
    """Return a table of a family's classes that transformers has too."""
    own = CLASSES.get(name, {})
    tables = {**TABLES, **LINEAGE_TABLES}
    lines = ["| class | in transformers |", "|---|---|"]
    for kind, row in {None: ENCODER, **KINDS}.items():
        model = own[kind].__name__ if kind in own else "" if own else row.model
        tabled = kind and row.tables
        if model and tables[name].has_class(tabled):
            link = f"/reference/kerasbert.{'lineage' if own else 'models'}.{model}.rst"
            lines.append(f"| [`{model}`]({link}) | `{tables[name].class_of(tabled)}` |")
    return "\n".join(lines)


def about(name):
    """Return the docstring of the module with a family's row."""
    modules = [module for key, module in sys.modules.items() if key.startswith("kerasbert.famil")]
    (home,) = (
        module
        for module in modules
        if module.__name__ != "kerasbert.families" and name in getattr(module, "FAMILIES", {})
    )
    return inspect.cleandoc(home.__doc__)


def write_families(folder):
    """Write a page per family, and a table of their differences."""
    usual, _ = family_settings("bert")
    presets, checks = kerasbert.builtin_presets(), verified()
    lines = ["| family | differences from BERT | tokenizer |", "|---|---|---|"]
    for name in (*FAMILIES, *CLASSES):
        family = get_family(name)
        tokenizer = "none; its models read token ids"
        if family.tokenizer and not hasattr(kerasbert.tokenizers, family.tokenizer):
            tokenizer = f"`{family.tokenizer}`, not supported; its models read token ids"
        elif family.tokenizer:
            link = f"reference/kerasbert.tokenizers.{family.tokenizer}.rst"
            tokenizer = f"[`{family.tokenizer}`](/{link})"
        page = [f"# {name}", ""]
        if name in CLASSES:
            encoder = CLASSES[name][None].__name__
            differences = f"a model of its own, `{encoder}`"
        else:
            own = {key: value for key, value in family.encoder.items() if usual[key] != value}
            own = ", ".join(f"`{key}={value!r}`" for key, value in own.items())
            differences = own or "nothing"
            settings, preset = family_settings(name)
            shown = f"Sizes of `{preset}`." if preset else "Without sizes: no preset has them."
            page += [about(name), "", "## Encoder", "", shown, "", "```{raw} html"]
            page += [pictures.encoder(name, settings).strip(), "```", ""]
        page += [f"Differences from BERT: {differences}.", "", f"Tokenizer: {tokenizer}.", ""]
        page += ["## Classes", "", heads_of(name), ""]
        if name not in CLASSES:
            page += ["Other heads of {py:mod}`kerasbert.models` run on these encoders, too.", ""]
        page += ["## Presets", ""]
        found = {key: value for key, value in presets.items() if value["family"] == name}
        if found:
            page += ["The last column shows which weights were [compared](/presets.md)."]
            page += ["", "```{raw} html", '<div class="wide">', preset_table(found, checks, "../")]
            page += ["</div>", "```", ""]
        else:
            page += ["No preset has this family; `from_preset` takes a handle or a directory.", ""]
        write_text(folder / "families" / f"{name}.md", "\n".join(page))
        lines.append(f"| [{name}](/families/{name}.md) | {differences} | {tokenizer} |")
    write_text(folder / "generated" / "families.md", "\n".join(lines) + "\n")


# What the picture shows of some heads, and of all exports.
_ANSWERS = {
    "text_classifier": "spam or not",
    "token_classifier": "names in a text",
    "question_answering": "a span of a text",
    "masked_lm": "a masked word",
    "text_embedder": "a vector",
    "reranker": "the best text first",
    "causal_lm": "the next words",
}
_EXPORTS = {
    "export_serving": "TensorFlow Serving",
    "export_onnx": "ONNX Runtime",
    "export_openvino": "OpenVINO",
    "export_litert": "LiteRT, on phones",
    "export_web": "a web page",
}


def overview(narrow=False):
    """Return README's picture, or its form for narrow pages."""
    tokenizer = kerasbert.tokenizers.BertTokenizer.from_preset("bert_tiny_demo_en_uncased")
    text = "Win a free holiday!"
    pieces = ["[CLS]", *(tokenizer.id_to_token(int(one)) for one in tokenizer(text)), "[SEP]"]
    half = len(pieces) // 2
    shown = [f"{KINDS[name].method}: {answer}" for name, answer in _ANSWERS.items()]
    models = sum(bool(kind.method) for kind in KINDS.values())
    exports = [_EXPORTS[name] for name in kerasbert.__all__ if name.startswith("export_")]
    steps = [
        (
            "Text in",
            [f"\u201c{text}\u201d", "", "split into tokens:"]
            + [" ".join(pieces[:half]), " ".join(pieces[half:]), "", "or pairs, or long texts"],
            "e",
        ),
        (
            "One encoder",
            [f"{len(FAMILIES)} families: BERT,", "RoBERTa, ModernBERT, ...", ""]
            + ["weights of Hugging Face,", "KerasHub and Google, or", "trained on your own text"],
            "a",
        ),
        ("A head", [*shown, f"and {models - len(shown)} more"], "h"),
        ("Where it runs", ["TensorFlow, JAX, PyTorch", "", "exported to:", *exports], "f"),
    ]
    title = "A text goes through one encoder and a head, in Python, on servers, phones or web pages"
    return pictures.chain(title, steps, narrow)


# The last operation of some heads, and its output.
_ENDS = {
    "text_classifier": ("dense", "logits (B, C)"),
    "token_classifier": ("dense", "logits (B, T, C)"),
    "masked_lm": ("token table", "logits (B, P, V)"),
    "text_embedder": ("unit length, if asked", "vectors (B, D)"),
}
_POOLED = {"cls": "first token", "tokens": "every token", "mean": "mean of the tokens"}


def heads(family):
    """Return pictures of some heads of a family, from their settings."""
    found = []
    for kind, (last, output) in _ENDS.items():
        settings = head_settings(family, kind)
        pooled = "masked tokens" if kind == "masked_lm" else _POOLED.get(settings.get("pooling"))
        rows = [pooled or "pooled_output"]
        if kind == "masked_lm" or settings.get("head_activation"):
            activation = settings.get("head_activation") or family_settings(family)[0]["activation"]
            rows.append(f"dense, {activation}")
        if kind == "masked_lm" or settings.get("head_norm"):
            rows.append("norm")
        found.append(pictures.head(KINDS[kind].model, [*rows, last], output).strip())
    return f'<div class="heads">{"".join(found)}</div>'


def batches():
    """Return a Markdown section with two pictures: batches in the order of a file, and ours."""
    tokenizer = kerasbert.tokenizers.BertTokenizer.from_preset("bert_tiny_demo_en_uncased")
    path = kerasbert.data.sample_file("sms_spam.csv")
    with open(path, encoding="utf-8", newline="") as file:
        texts = [row["text"] for row in itertools.islice(csv.DictReader(file), 12, 24)]
    lengths = [len(tokenizer(text)) + 2 for text in texts]  # With [CLS] and [SEP].
    size, longest = 4, kerasbert.data.bucket_length(max(lengths))
    plain = [list(range(begin, begin + size)) for begin in range(0, len(texts), size)]
    similar = [list(group) for group in kerasbert.data.similar_length_batches(lengths, size)]
    shown = []
    for title, groups, bucket in (
        ("In the order of the file, padded to one length", plain, lambda _: longest),
        ("In batches of similar length", similar, kerasbert.data.bucket_length),
    ):
        picture, share = pictures.batches(f"{title}: rows of tokens", lengths, groups, bucket)
        shown += [f"{title}: {share:.0%} padding.", "", f"```{{raw}} html\n{picture}```", ""]
    return "\n".join(shown)


# The parts of a SavedModel that takes strings.
_SERVED = [
    ("Request", ["a string, as JSON", "or a string tensor"], "n"),
    ("Tokenizer", ["token ids,", "packed and padded"], "e"),
    ("Encoder, head", ["in batches of", "similar length"], "a"),
    ("Answer", ["label, score,", "probabilities"], "h"),
]


# === Figures ===


# Figures: title, result file, and a part that the names of the shown workloads contain.
FIGURES = (
    ("Embedding texts", "embedding", ""),
    ("Fine-tuning", "finetuning", "float32"),
    ("Fine-tuning on short texts", "finetuning_reviews", ""),
    ("One text at a time", "one_text_minilm", ""),
    ("Serving single texts", "serving", "1 text"),
    ("Serving 32 texts", "serving", "32 texts"),
    ("Pre-training on a CPU", "pretraining", ""),
    ("Pre-training on a GPU", "pretraining_gpu", ""),
    ("A few labels", "few_labels", "TREC"),
    ("Training embedders", "training_embedders", "statements"),
    ("Reranking", "reranking", ""),
)


def figure(title, name, part):
    """Return a section of figures.md: a bar chart of a benchmark's result file."""
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    result = json.loads(path.read_text(encoding="utf-8"))
    rows = [row for row in result["rows"] if part in row["work"]]
    bars = {}
    for row in rows:
        for contestant, value in row["values"].items():
            # Group bars by contestant, if there is a color for each workload.
            group, series = contestant, row["work"]
            if len(rows) > 4:
                group, series = series, group
            bars.setdefault(group, {})[series] = value[0] if isinstance(value, list) else value
    unit = rows[0]["unit"]
    unit += f", {'lower' if unit in ('ms', 's') else 'higher'} is better"
    picture = pictures.bars(unit, list(bars.items()), result["command"])
    return f"## {title}\n\n```{{raw}} html\n{picture}```\n"


def write_benchmarks(folder):
    """Write the benchmark page, its notes, and bar charts of its result files."""
    source = ROOT / "benchmarks"
    text = (source / "README.md").read_text(encoding="utf-8")
    write_text(folder / "generated" / "benchmarks.md", _links_of_site(text))
    for path in source.glob("notes/*.md"):
        write_text(folder / "notes" / path.name, _links_of_site(path.read_text(encoding="utf-8")))
    sections = "\n".join(figure(*one) for one in FIGURES)
    write_text(folder / "generated" / "figures.md", sections)


def _links_of_site(text):
    text = text.replace("](../README.md", "](/benchmarks.md")
    text = re.sub(r"\]\((?:\.\./)+presets/(\w+)/README\.md", r"](/presets/\1.md", text)
    return re.sub(r"\]\((?:\.\./)+docs/", "](/", text)


# === Lessons ===

# Words of the line below a lesson's title: the notebook, Colab, the next lesson.
_LINE = {
    "": ("Download the notebook", "Open in Colab", "Next:"),
    "ko": ("노트북 내려받기", "Colab에서 열기", "다음:"),
    "ja": ("ノートブックをダウンロード", "Colab で開く", "次:"),
}
_LANGUAGES = {"": "English", "ko": "한국어", "ja": "日本語"}
_LESSON = re.compile(r"(?:(ko|ja)/)?lessons/(\d\d)_\w+")


def lessons(language):
    """Return the notebooks of a language's lessons, in their order."""
    return sorted((ROOT / "docs" / language / "lessons").glob("*.ipynb"))


def _first_cell(path):
    """Return a notebook's title and the text below it."""
    cell = json.loads(path.read_text(encoding="utf-8"))["cells"][0]
    title, _, text = "".join(cell["source"]).partition("\n")
    return title.removeprefix("# "), text.strip()


def _numbered(path):
    return f"{int(path.stem[:2])}. {_first_cell(path)[0]}"


def with_links(docname, text, repository):
    """Add the number and a line of links to the title of a notebook.

    Args:
        docname: string. The page's name.
        text: string. The notebook, as JSON.
        repository: string. "owner/name" on GitHub, from which Colab opens notebooks; "" for none.
    """
    lesson = _LESSON.fullmatch(docname)
    if not lesson and not docname.startswith("notebooks/"):
        return text
    notebook = json.loads(text)
    cell = notebook["cells"][0]
    title, _, rest = "".join(cell["source"]).partition("\n")
    language = lesson and lesson[1] or ""
    download, colab, following = _LINE[language]
    name = docname.rpartition("/")[2]
    links = [f"{{download}}`{download} <{name}.ipynb>`"]
    if repository:
        folder = f"docs/{docname.rpartition('/')[0]}" if lesson else "examples"
        url = f"https://colab.research.google.com/github/{repository}/blob/main/{folder}"
        links.append(f"{{bdg-link-warning}}`{colab} <{url}/{name}.ipynb>`")
    if lesson:
        title = f"# {int(lesson[2])}. {title.removeprefix('# ')}"
        for other, label in _LANGUAGES.items():
            path = Path("/", other, "lessons", f"{name}.ipynb").as_posix()
            if other != language and Path(ROOT, "docs", path[1:]).is_file():
                links.append(f"[{label}]({path})")
        later = [path for path in lessons(language) if path.stem > name]
        if later:
            links.append(f"{following} [{_numbered(later[0])}]({later[0].name})")
    cell["source"] = f"{title}\n\n{' · '.join(links)}\n\n{rest.strip()}"
    return json.dumps(notebook)


def write_lessons(folder):
    """Write the lists of lessons in each language, with their questions; see CONTRIBUTING.md."""
    for language in _LANGUAGES:
        lines, pages = [], []
        for number, path in enumerate(lessons(language), 1):
            page = "/" + path.relative_to(ROOT / "docs").as_posix()
            title, text = _first_cell(path)
            question = re.sub(r"^\*\*.*?\*\*\s*", "", text.partition("\n\n")[0])
            lines += [f"{number}. [{title}]({page})\\", f"   {question}"]
            pages.append(page)
        if not language:
            lines += ["", "More notebooks:", ""]
            for path in sorted(NOTEBOOKS.glob("*.ipynb")):
                title, text = _first_cell(path)
                page = f"/notebooks/{path.name}"
                lines += [f"- [{title}]({page})\\", f"  {text.partition(chr(10) * 2)[0]}"]
                pages.append(page)
        pages = [page.removesuffix(".ipynb") for page in pages]
        lines += ["", "```{toctree}", ":hidden:", "", *pages, "```", ""]
        name = f"lessons.{language}.md" if language else "lessons.md"
        write_text(folder / "generated" / name, "\n".join(lines))


if __name__ == "__main__":
    write_text(ROOT / "docs" / "overview.svg", overview())
