"""The `doctor` command."""

import sys
from typing import Annotated

import typer

from kerasbert.base.strict_json import to_json
from kerasbert.cli.app import BackendOption, JsonOption, app, command


@app.command()
def doctor(
    export: Annotated[
        bool, typer.Option("--export/--no-export", help="Check exports too, which take longest.")
    ] = True,
    as_json: JsonOption = False,
    backend: BackendOption = None,
):
    """Show what is installed and check that it works, as a page for a bug report.

    It takes about a minute, needs no network and leaves no files. The exit code is 1 if a check
    failed.

    \b
    Examples:
      kerasbert doctor
      kerasbert doctor --backend torch --no-export
    """
    output = sys.stdout  # `command` redirects it, but each result is printed at once.

    def say(line):
        if not as_json:
            print(line, file=output, flush=True)

    with command(backend, "Stopped."):
        from kerasbert.measuring import doctor as checks

        found, results = checks.facts(), []
        for name, version in found.items():
            say(f"{name:16} {version}")
        for row in checks.doctor(export):
            results.append(row)
            note = f": {row['note']}" if row["note"] else ""
            say(f"{row['result']}  {row['check']} ({row['seconds']:.1f} s){note}")
    failed = sum(row["result"] == "fail" for row in results)
    if as_json:
        print(to_json({"installed": found, "checks": results}, indent=1, ensure_ascii=False))
    else:
        print(f"{failed} of {len(results)} checks failed." if failed else "All that can run works.")
    raise typer.Exit(1 if failed else 0)
