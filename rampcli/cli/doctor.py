"""`rampcli doctor`: checks whether this machine has what a launch needs."""

import gc
import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from rampcli.cli.base import Base
from rampcli.cli.options import AsJson, Overrides
from rampcli.errors import UsageError, visible

if TYPE_CHECKING:
    from rampcli.launch.doctor.check import Check


def doctor(
    base: Base,
    overrides: Overrides = None,
    gpu: Annotated[bool, typer.Option("--gpu")] = False,
    as_json: AsJson = False,
) -> None:
    """Check that this machine is ready to train.

    With a recipe, checks what that run needs; otherwise, what any run needs. With --gpu, trains
    small and large models on the GPUs of this machine, and compares them with the CPU and with the
    estimates of plans.

    Args:
        gpu: Also train on the GPUs for about ten minutes, and write a report.
    """
    from rampcli.cli.composing import compose_words
    from rampcli.launch.doctor.check import Status
    from rampcli.launch.doctor.machine import check_machine

    words = overrides or []
    if gpu:
        if base.is_given() or words:
            raise UsageError(
                "--gpu checks this machine with runs of its own, and takes no recipe or settings",
                remedy="rampcli doctor --gpu",
            )
        gc.enable()  # a command turns it off, and this one lives long
        from rampcli.cli.doctor_gpu import check_gpus

        raise typer.Exit(check_gpus(as_json=as_json))
    if not base.has_start(words) and (words or base.is_given()):
        given = f"--config-dir {base.config_dir}" if not words else words[0]
        raise UsageError(f"{given} needs a recipe", remedy="--factory llama3_tiny")
    checks = check_machine(
        compose_words(base, words, resumes=True) if base.has_start(words) else None
    )
    ok = all(check.status is not Status.failure for check in checks)
    if as_json:
        typer.echo(json.dumps({"checks": [each.to_json() for each in checks], "ok": ok}, indent=1))
    else:
        _print_checks(checks)
    if not ok:
        raise typer.Exit(1)


def _print_checks(checks: Sequence["Check"]) -> None:
    from rich.table import Table
    from rich.text import Text

    from rampcli.cli.console import build_console, say
    from rampcli.launch.doctor.check import STATUS_STYLES

    table = Table(box=None, show_header=False, pad_edge=False)
    for check in checks:
        lines = check.finding if check.remedy is None else f"{check.finding}\ntry: {check.remedy}"
        table.add_row(
            check.name,
            Text(check.status, style=STATUS_STYLES[check.status]),
            Text(visible(lines, keeps="\n")),
        )
    counts = Counter(check.status.value for check in checks)
    problems = ", ".join(
        f"{counts[status]} {status}{'s' if counts[status] > 1 else ''}"
        for status in ("failure", "warning")
        if counts[status]
    )
    console = build_console()
    console.print(table)
    say(console, f"\n{problems or 'no problems found'}")
