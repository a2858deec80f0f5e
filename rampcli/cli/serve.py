"""`rampcli serve`: serves the live page until Ctrl-C."""

import gc
from pathlib import Path
from typing import Annotated

import typer

from rampcli.errors import UsageError, visible


def serve(
    runs_dir: Annotated[Path | None, typer.Argument(metavar="RUNS_DIR")] = None,
    host: Annotated[str, typer.Option(metavar="HOST")] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(min=1, max=65535, metavar="PORT")] = None,
) -> None:
    """Serve a live page with the charts of all runs. Ctrl-C ends it.

    Args:
        runs_dir: Folder of runs, or a single run directory. Default: runs.
        host: Address to listen on. If other machines can reach it, the page needs a token.
        port: Port to listen on. Default: 7267, or a free one if that is in use.
    """
    from rampcli.runs.directory import RUNS
    from rampcli.serve.runs_folder import RunsFolder
    from rampcli.serve.server import PageServer

    folder = runs_dir or Path(RUNS)
    if not folder.exists() and (below := Path(RUNS) / folder).is_dir():
        folder = below  # the name of a run, as other commands take it
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", remedy="rampcli serve runs")
    gc.enable()  # unlike other commands, this one runs for days
    with PageServer(RunsFolder(folder), host=host, port=port) as server:
        typer.echo(visible(f"serving {folder} at {server.url}", keeps="\n"))
        if not folder.exists():
            note = f"note: {folder} does not exist yet; the page shows its runs once they start"
            typer.echo(visible(note))
        if server.token is not None:
            typer.echo(
                "Anyone with this address can read the runs. The connection is not encrypted."
            )
        typer.echo("Ctrl-C ends it")
        server.serve_forever()
