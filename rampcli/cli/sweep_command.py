"""The command `rampcli sweep` and its options. It imports what it needs when it runs."""

import gc
import sys
from pathlib import Path
from typing import Annotated

import typer

from rampcli.cli.options import AsJson, ConfigDir, Factory


def sweep(
    factory: Factory,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=A,B,C",
            help="Settings. Those with several values vary: A,B,C or range(8,33,8).",
            show_default=False,
        ),
    ] = None,
    config_dir: ConfigDir = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check and print all runs without starting one.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Plot the loss over a value that varies to an .svg or .png file.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a recipe with every combination of values. Run the same command again to resume.

    The runs are in runs/NAME_sweep, or in the folder that run_dir= names.
    """
    from rampcli.cli.sweeping import sweep as train_all

    gc.enable()
    code = train_all(
        factory,
        overrides or [],
        config_dir=config_dir,
        dry_run=dry_run,
        command=["rampcli", *sys.argv[1:]],
        as_json=as_json,
        plot=plot,
    )
    raise typer.Exit(code)
