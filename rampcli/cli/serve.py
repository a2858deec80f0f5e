"""`rampcli serve`: serves the live page until Ctrl-C."""

import gc
from pathlib import Path
from typing import Annotated

import typer

from rampcli.errors import UsageError, visible
from rampcli.runs.directory import RUNS


def serve(
    runs_dir: Annotated[
        Path,
        typer.Argument(metavar="RUNS_DIR", help="Folder of runs, or a single run directory."),
    ] = Path(RUNS),
    host: Annotated[
        str,
        typer.Option(
            metavar="HOST",
            help="Address to listen on. If other machines can reach it, the page needs a token.",
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            metavar="PORT",
            help="Port to listen on. Default: 7267, or a free one if that is in use.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Serve a live page with the charts of all runs. Ctrl-C ends it."""
    from rampcli.serve.runs_folder import RunsFolder
    from rampcli.serve.server import PageServer

    # The folder need not exist yet: the page shows runs once they start.
    if runs_dir.exists() and not runs_dir.is_dir():
        raise UsageError(f"{runs_dir} is not a folder", remedy="rampcli serve runs")
    gc.enable()  # unlike other commands, this one runs for days
    with PageServer(RunsFolder(runs_dir), host=host, port=port) as server:
        typer.echo(visible(f"serving {runs_dir} at {server.url}", keeps="\n"))
        if server.token is not None:
            typer.echo(
                "Anyone with this address can read the runs. The connection is not encrypted."
            )
        typer.echo("Ctrl-C ends it")
        server.serve_forever()
