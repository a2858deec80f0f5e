"""`rampcli report` and `rampcli compare`."""

from pathlib import Path
from typing import Annotated

import typer

from rampcli.cli.options import AsJson

Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="Run directory, or the name of a run below runs/.", show_default=False
    ),
]
Runs = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN",
        help="Run directories, or names of runs below runs/. Several are compared.",
        show_default=False,
    ),
]
Html = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write the live page of the runs to one file.",
        show_default=False,
    ),
]
Plot = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Plot batch, loss and throughput to an .svg or .png file.",
        show_default=False,
    ),
]


def report(runs: Runs, html: Html = None, plot: Plot = None, as_json: AsJson = False) -> None:
    """Show what runs have trained and where their time went.

    Also works for a run that is training, has crashed or was interrupted.
    """
    from rampcli.cli.reporting import print_report

    print_report(runs, html=html, plot=plot, as_json=as_json)


def compare(
    first: Run, second: Run, html: Html = None, plot: Plot = None, as_json: AsJson = False
) -> None:
    """Compare two runs: their results, and the settings in which they differ."""
    from rampcli.cli.reporting import print_report

    print_report([first, second], html=html, plot=plot, as_json=as_json)
