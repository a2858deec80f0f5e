"""`rampcli phases`: trains on from a checkpoint of a run, in a phase with other settings."""

from typing import Annotated

import typer

from rampcli.cli.options import AsJson, DryRun, Run
from rampcli.errors import UsageError

NEW_PHASE = "next"
"""Default name of the new phase."""


def phases(
    run: Run,
    overrides: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE")] = None,
    begin: Annotated[str | None, typer.Option("--from", metavar="POSITION")] = None,
    phase: Annotated[str, typer.Option("--phase", metavar="NAME")] = NEW_PHASE,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Train on from a checkpoint of a run, in a new phase.

    This is a new run with other settings from there on. It reads the samples that follow. Run the
    same command again to resume it.

    Args:
        overrides: Settings of the new phase, and `until=POSITION`. What a phase cannot set, such as
            name=NEW, is a setting of the new run.
        begin: Begin after the last checkpoint up to this position: 7.5T tokens, samples:2B or
            steps:10000. Default: the newest.
        phase: Name of the new phase.
    """
    from rampcli.cli.console import build_console, say
    from rampcli.cli.continued_run import continue_run
    from rampcli.cli.pretrain import show_or_train
    from rampcli.runs.directory import find_run
    from rampcli.settings.rl import unit_of

    if as_json and not dry_run:
        raise UsageError("--json prints the plan of a dry run", remedy="--dry-run --json")
    continued = continue_run(find_run(run), overrides or [], begin=begin, phase=phase)
    if not as_json:
        first, unit = continued.first, unit_of(continued.resolved.config)
        tokens = "" if unit == "prompts" else f" and {first.tokens:,} tokens"
        say(
            build_console(),
            f"from step {first.steps:,} of {continued.old.path}, after {first.samples:,} {unit}"
            f"{tokens}; phase {continued.phase} begins there",
        )
    if not dry_run:
        continued.link()
    show_or_train(
        continued.resolved,
        overrides or [],
        dry_run=dry_run,
        one_stage=False,
        as_json=as_json,
    )
