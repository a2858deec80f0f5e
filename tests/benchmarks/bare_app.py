"""A minimal Typer and Hydra application: the baseline for rampcli's start-up time.

It composes the groups of this project and does nothing else.
"""

from pathlib import Path
from typing import Annotated

import typer

HERE = Path(__file__).resolve().parent
app = typer.Typer(no_args_is_help=True)


@app.command()
def pretrain(
    overrides: Annotated[list[str] | None, typer.Argument(help="Settings.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Start nothing.")] = False,
) -> None:
    """Composes and prints the settings."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    with initialize_config_dir(str(HERE), version_base="1.3"):
        config = compose(
            "bare_config",
            overrides=[f"hydra.searchpath=[file://{HERE.parents[1] / 'conf'}]", *(overrides or [])],
        )
    if dry_run:
        typer.echo(OmegaConf.to_yaml(config))


@app.command()
def plan(name: Annotated[str, typer.Argument(help="A name.")]) -> None:
    """Exists so that `pretrain` is a subcommand."""
    typer.echo(name)


if __name__ == "__main__":
    app()
