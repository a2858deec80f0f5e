"""`rampcli pretrain`: trains a recipe, or prints its plan or its configuration."""

import gc
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from rampcli.cli.options import (
    Cfg,
    ConfigDir,
    DryRun,
    Factory,
    OnePhase,
    OneStage,
    Overrides,
    Retune,
)
from rampcli.cli.plan import print_plan
from rampcli.errors import visible

if TYPE_CHECKING:
    from rampcli.planning.run_plan import Resolved
    from rampcli.runs.manifest import Checkpoint


def pretrain(
    factory: Factory,
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    dry_run: DryRun = False,
    cfg: Cfg = False,
    one_stage: OneStage = False,
    one_phase: OnePhase = False,
    retune: Retune = False,
) -> None:
    """Train a recipe through its ramp. Run the same command again to resume."""
    from rampcli.cli.composing import compose_beside_recipe
    from rampcli.config.rl import refuse_rl

    words = overrides or []
    resolved = compose_beside_recipe(
        factory, words, config_dir=config_dir, retunes=retune, resumes=True
    )
    refuse_rl(
        resolved.config, "this is a run of reinforcement learning", remedy="rampcli rl, or rl=none"
    )
    show_or_train(
        resolved, words, cfg=cfg, dry_run=dry_run, one_stage=one_stage, one_phase=one_phase
    )


def show_or_train(
    resolved: "Resolved",
    words: Sequence[str],
    *,
    cfg: bool,
    dry_run: bool,
    one_stage: bool,
    one_phase: bool = False,
    as_json: bool = False,
) -> None:
    """Prints a configuration or its plan, if asked to; otherwise trains, and ends the command."""
    if cfg:
        from rampcli.report.explain import with_provenance

        typer.echo(visible(with_provenance(resolved), keeps="\n"), nl=False)
    elif dry_run:
        from rampcli.launch.start_checks import check_files

        newest, notes = check_files(resolved)
        resolved = replace(resolved, notes=(*resolved.notes, *notes))
        print_plan(resolved, as_json=as_json)
        if not as_json:
            from rampcli.cli.jobs import print_scripts

            _print_notes_on_start(resolved, newest)

            print_scripts(resolved, one_stage=one_stage, one_phase=one_phase)
    else:
        from rampcli.cli.training import train

        gc.enable()  # a command turns it off, and this one lives long
        command = ["rampcli", *sys.argv[1:]]
        outcome = train(
            resolved,
            one_stage=one_stage,
            one_phase=one_phase,
            command=command,
            overrides=words,
        )
        raise typer.Exit(outcome.exit_code)


def _print_notes_on_start(resolved: "Resolved", newest: "Checkpoint | None") -> None:
    """Prints why this machine would not start the run, if so, and what may not fit on its disk."""
    from rampcli.cli.console import build_console, say
    from rampcli.launch.start_checks import disk_warnings, refusals

    refused = [
        f"a start on this machine would be refused: {error.message}"
        for error in refusals(resolved, newest)
    ]
    say(build_console(), *(f"note: {note}" for note in (*refused, *disk_warnings(resolved))))
