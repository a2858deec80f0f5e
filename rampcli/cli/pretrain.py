"""`rampcli pretrain`: trains a recipe, or prints its plan or its configuration."""

import gc
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from rampcli.cli.base import Base
from rampcli.cli.options import DryRun, OnePhase, OneStage, Overrides, Retune
from rampcli.cli.plan import print_plan

if TYPE_CHECKING:
    from rampcli.planning.run_plan import Resolved


def pretrain(
    base: Base,
    overrides: Overrides = None,
    dry_run: DryRun = False,
    one_stage: OneStage = False,
    one_phase: OnePhase = False,
    retune: Retune = False,
) -> None:
    """Train a recipe through its ramp. Run the same command again to resume."""
    from rampcli.cli.composing import compose_beside_recipe
    from rampcli.config.phases import refuse_rl

    words = overrides or []
    resolved = compose_beside_recipe(base, words, retunes=retune, resumes=True)
    refuse_rl(
        resolved.config, "this is a run of reinforcement learning", remedy="rampcli rl, or rl=none"
    )
    show_or_train(resolved, words, dry_run=dry_run, one_stage=one_stage, one_phase=one_phase)


def show_or_train(
    resolved: "Resolved",
    words: Sequence[str],
    *,
    dry_run: bool,
    one_stage: bool,
    one_phase: bool = False,
    as_json: bool = False,
) -> None:
    """Prints the plan of a run, if asked to; otherwise trains, and ends the command."""
    if not dry_run:
        from rampcli.cli.training import train

        gc.enable()  # a command turns it off, and this one lives long
        outcome = train(
            resolved,
            one_stage=one_stage,
            one_phase=one_phase,
            command=["rampcli", *sys.argv[1:]],
            overrides=words,
        )
        raise typer.Exit(outcome.exit_code)
    from rampcli.launch.start_checks import check_files, disk_warnings, refusals

    newest, notes = check_files(resolved)
    print_plan(replace(resolved, notes=(*resolved.notes, *notes)), as_json=as_json)
    if as_json:
        return
    from rampcli.cli.console import build_console, say
    from rampcli.cli.jobs import print_scripts

    refused = (
        f"a start on this machine would be refused: {error.message}"
        for error in refusals(resolved, newest)
    )
    say(build_console(), *(f"note: {note}" for note in (*refused, *disk_warnings(resolved))))
    print_scripts(resolved, one_stage=one_stage, one_phase=one_phase)
