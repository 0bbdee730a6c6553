"""The `play` command."""

import webbrowser
from typing import Annotated

import typer

from kerasbert.base.errors import need_packages
from kerasbert.cli.app import BackendOption, app, command, start_keras
from kerasbert.play.loaded import DEFAULTS, Loaded


@app.command()
def play(
    presets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PRESET...",
            help="Names, handles or directories; defaults to those shipped with kerasbert.",
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any free port.")] = 8765,
    open_page: Annotated[
        bool, typer.Option("--open", help="Open the page in the browser.")
    ] = False,
    share_folder: Annotated[
        str | None,
        typer.Option(help="Write a page with saved answers, for any static host, and exit."),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(help="With --share-folder, a text that replaces the examples."),
    ] = None,
    backend: BackendOption = None,
):
    """Try models on a local web page.

    \b
    Examples:
      kerasbert play
      kerasbert play spam/model bert_base_en_uncased --open
      kerasbert play my_tagger --share-folder site
    """
    loaded = Loaded(presets or DEFAULTS, lambda: start_keras(backend))
    if share_folder is not None:
        with command(backend):
            from kerasbert.play.share import share_folder as share

            loaded.load()
            for state in loaded.states():
                if state["state"] == "failed":
                    raise ValueError(f"Cannot load '{state['name']}': {state['error']}")
            share(loaded, share_folder, text, lambda line: typer.echo(line, err=True))
        print(f"A page -> {share_folder}")
        return
    with command(starts=False, stopped="Stopped."):
        if text:
            raise ValueError("--text requires --share-folder; on the page, type your texts.")
        need_packages("kerasbert play", "play", "starlette", "uvicorn")
        from kerasbert.play.server import serve

        def ready(address):
            typer.echo(f"{address} (only on this machine; Ctrl-C stops it)")
            if open_page:
                webbrowser.open(address)

        serve(loaded, port, ready)
