"""Generated pages, tables and pictures of the documentation site.

`write` puts them into folders of `docs/` that git ignores: `reference/`, `presets/`, `families/`,
`notebooks/`, `notes/` and `generated/`, which handwritten pages include. `python docs/pages.py`
draws README's picture.
"""

import importlib
import inspect
import json
import pprint
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

from sphinx.pycode import ModuleAnalyzer

import kerasbert
import pictures
from kerasbert.base.files import write_text
from kerasbert.checkpoints.lineage import LINEAGE_TABLES
from kerasbert.families import FAMILIES, TABLES, get_family
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


def write_reference(folder):
    pages = public_names()
    for name in sorted(set(pages.values())):
        module, _, last = f"kerasbert.{name}".rpartition(".")
        value = getattr(importlib.import_module(module), last)
        if inspect.isclass(value):
            directive = f".. autoclass:: {last}\n   :members:\n   :inherited-members:\n"
        elif callable(value):
            directive = f".. autofunction:: {last}\n"
        else:
            directive = _constant(last, value)
        text = f"{last}\n{'=' * len(last)}\n\n.. currentmodule:: {module}\n\n{directive}"
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
    heads = ("preset", "languages", "size", "layers", "family", "objective", "license", "included")
    heads += ("weights compared with transformers",)
    rows = []
    for name, preset in presets.items():
        handle, settings, found = preset["handle"], preset["settings"], purpose(preset)
        link = f"https://huggingface.co/{handle[5:]}" if handle.startswith("hf://") else ""
        if handle.startswith("package://"):
            link = f"{root}presets/{name}.html"
        cells = (
            f'<a href="{link}"><code>{name}</code></a>' if link else f"<code>{name}</code>",
            " ".join(preset["languages"]),
            f"{preset['parameters'] / 1e6:,.0f} M" if preset["parameters"] >= 1e6 else "under 1 M",
            f"{settings['num_layers']} x {settings['hidden_dim']}",
            f'<a href="{root}families/{preset["family"]}.html">{preset["family"]}</a>',
            f'<a href="{root}reference/kerasbert.{_HEADS[found]}.html">{found}</a>',
            preset["license"] or "see its page",
            "yes" if handle.startswith("package://") else "",
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


def overview():
    """Return README's picture."""
    kinds = [kind.model for kind in KINDS.values() if kind.model]
    return pictures.overview(
        [*FAMILIES],
        kinds,
        ["text", "CSV, JSON lines", "presets", "Hugging Face", "KerasHub", "Google's BERT"],
        ["TensorFlow Serving", "ONNX", "LiteRT", "OpenVINO", "transformers", "KerasHub"],
    )


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


def write_lessons(folder):
    """Write the lists of notebooks in each language; see CONTRIBUTING.md."""
    for language in ("", "ko", "ja"):
        found = sorted((folder / language / "lessons").glob("*.ipynb"))
        names = ["/" + str(path.relative_to(folder).with_suffix("")) for path in found]
        if not language:
            names += [f"/notebooks/{path.stem}" for path in sorted(NOTEBOOKS.glob("*.ipynb"))]
        lines = ["```{toctree}", ":maxdepth: 1", "", *names, "```", ""] if names else [""]
        name = f"lessons.{language}.md" if language else "lessons.md"
        write_text(folder / "generated" / name, "\n".join(lines))


if __name__ == "__main__":
    write_text(ROOT / "docs" / "overview.svg", overview())
