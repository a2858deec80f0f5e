"""`rampcli doctor`: checks whether this machine has what a launch needs."""

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
from rampcli.launch.doctor.check import Check, Status
from rampcli.launch.doctor.machine import check_machine

STYLES = {
    Status.ok: "green",
    Status.warning: "yellow",
    Status.failure: "bold red",
    Status.not_needed: "dim",
}


def run_checks(
    factory: str | None, words: Sequence[str], *, config_dir: Path | None, as_json: bool
) -> bool:
    """Prints all checks as a table or as JSON, and returns whether none of them failed.

    Args:
        factory: recipe of the run that is to start here; None checks what any run needs.
        words: overrides of the recipe.
        config_dir: folder of further config groups.
        as_json: print JSON.

    Raises:
        UsageError: there are overrides but no recipe, or the configuration is invalid.
    """
    if factory is None and (words or config_dir is not None):
        given = f"--config-dir {config_dir}" if not words else words[0]
        raise UsageError(f"{given} needs a recipe", remedy="--factory llama3_tiny")
    resolved = (
        None
        if factory is None
        else compose_words(factory, words, config_dir=config_dir, resumes=True)
    )
    checks = check_machine(resolved)
    ok = all(check.status is not Status.failure for check in checks)
    if as_json:
        typer.echo(json.dumps({"checks": [asdict(check) for check in checks], "ok": ok}, indent=1))
    else:
        _print_checks(checks)
    return ok


def _print_checks(checks: Sequence[Check]) -> None:
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
    problems = ", ".join(
        f"{counts[status]} {status}{'s' if counts[status] > 1 else ''}"
        for status in (Status.failure, Status.warning)
        if counts[status]
    )
    say(console, f"\n{problems or 'no problems found'}")
