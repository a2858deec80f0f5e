"""Arguments and options that several commands take."""

from typing import Annotated, Any

import typer

from rampcli.cli.pictures import check_picture

Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Settings that override the recipe."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check and print the plan without starting the run.")
]
Retune = Annotated[
    bool,
    typer.Option(
        "--retune",
        help="If the batch is not the recipe's, adapt the learning rate and other settings that"
        " are tied to it.",
    ),
]
OneStage = Annotated[bool, typer.Option("--one-stage", help="Stop at the next stage boundary.")]
OnePhase = Annotated[bool, typer.Option("--one-phase", help="Stop at the end of the phase.")]
Run = Annotated[
    str, typer.Argument(metavar="RUN", help="Run directory, or name of a run below runs/.")
]


def plot_of(what: str) -> Any:
    """Returns the option `--plot FILE`, which draws something to a file."""
    text = f"Plot {what} to an .svg or .png file."
    return typer.Option(metavar="FILE", help=text, callback=check_picture)
