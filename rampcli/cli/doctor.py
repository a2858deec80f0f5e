"""`rampcli doctor`: what a launch needs, and whether this machine has it."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import typer
from rich.table import Table
from rich.text import Text

from rampcli.cli.composing import compose_words
from rampcli.cli.console import build_console, say
from rampcli.errors import UsageError, visible
from rampcli.launch.checkup import Check, Status, check_up

STYLES = {
    Status.ok: "green",
    Status.warning: "yellow",
    Status.failure: "bold red",
    Status.not_needed: "dim",
}


def examine(
    factory: str | None, words: Sequence[str], *, config_dir: Path | None, as_json: bool
) -> bool:
    """Print what is found, for a person or as JSON; whether nothing fails.

    Args:
        factory: the recipe of a run that is to start here; None: any run.
        words: laid over it.

    Raises:
        UsageError: words without a recipe, or what is wrong with the run.
    """
    if factory is None and (words or config_dir is not None):
        given = f"--config-dir {config_dir}" if not words else words[0]
        raise UsageError(
            f"{given} is for a recipe, and none is named", remedy="--factory llama3_tiny"
        )
    resolved = (
        None
        if factory is None
        else compose_words(factory, words, config_dir=config_dir, resumes=True)
    )
    checks = check_up(resolved)
    well = all(check.status is not Status.failure for check in checks)
    if as_json:
        typer.echo(
            json.dumps({"checks": [asdict(check) for check in checks], "ok": well}, indent=1)
        )
    else:
        _tell(checks)
    return well


def _tell(checks: Sequence[Check]) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    for check in checks:
        lines = check.finding if check.remedy is None else f"{check.finding}\ntry: {check.remedy}"
        table.add_row(
            check.name,
            Text(check.status, style=STYLES[check.status]),
            Text(visible(lines, keeps="\n")),
        )
    console = build_console()
    console.print(table)
    counts = Counter(check.status for check in checks)
    found = [
        (counts[status], status) for status in (Status.failure, Status.warning) if counts[status]
    ]
    told = ", ".join(f"{count} {status}{'s' if count > 1 else ''}" for count, status in found)
    say(console, f"\n{told or 'nothing is missing'}")
