"""Serves the live page until Ctrl-C."""

import gc
from pathlib import Path

import typer

from rampcli.errors import UsageError, visible
from rampcli.serve.runs_folder import RunsFolder
from rampcli.serve.server import PageServer


def serve_runs(folder: Path, *, host: str, port: int | None) -> None:
    """Serves the runs of a folder, and prints the address of their page. Ctrl-C ends it.

    The folder need not exist yet: the page shows runs once they start.

    Raises:
        UsageError: the folder is a file, or the server cannot listen on the host and port.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", remedy="rampcli serve runs")
    gc.enable()  # unlike other commands, this one runs for days
    with PageServer(RunsFolder(folder), host=host, port=port) as server:
        typer.echo(visible(f"serving {folder} at {server.url}", keeps="\n"))
        if server.token is not None:
            typer.echo(
                "Anyone with this address can read the runs. The connection is not encrypted."
            )
        typer.echo("Ctrl-C ends it")
        server.serve_forever()
