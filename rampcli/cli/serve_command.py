"""The command `rampcli serve`. It imports what it needs when it runs."""

from pathlib import Path
from typing import Annotated

import typer

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
    from rampcli.cli.serving import serve_runs

    serve_runs(runs_dir, host=host, port=port)
