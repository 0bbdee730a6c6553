"""The command `kerasbert`.

Each command has the Python call of the same name behind it.
"""

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

app = typer.Typer(
    help="BERT in Keras 3: presets of the whole family, by name.",
    no_args_is_help=True,
    add_completion=True,
)


@app.callback()
def _commands():
    """Keep `presets` a command of its own while it is the only one."""


@app.command()
def presets(
    match: Annotated[str, typer.Argument(help="Only names, languages or families with this.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
):
    """List the built-in presets.

    Examples: `kerasbert presets`, `kerasbert presets ko`, `kerasbert presets --json`.
    """
    from kerasbert.presets import builtin_presets

    found = [preset for preset in builtin_presets().values() if _matches(preset, match)]
    if as_json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return
    if not found:
        Console(stderr=True).print(
            f"No preset has '{match}' in its name, family or languages; "
            "`kerasbert presets` lists them all.",
            highlight=False,
        )
        raise typer.Exit(2)
    table = Table("preset", "family", "languages", "parameters", "licence", "handle")
    for preset in found:
        table.add_row(
            preset["name"],
            preset["family"],
            " ".join(preset["languages"]),
            f"{preset['parameters']:,}",
            preset["license"] or "see its page",
            preset["handle"],
        )
    # A pipe has no width to fit: every row stays whole.
    console = Console()
    Console(width=console.width if console.is_terminal else 200).print(table)


def _matches(preset, match):
    match = match.lower()
    return (
        match in preset["name"].lower() or match in preset["family"] or match in preset["languages"]
    )


def main():
    """Run the command line."""
    app()
