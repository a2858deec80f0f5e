"""`rampcli doctor --gpu`: runs the checks of the GPUs, and shows and records their results."""

import json
import signal
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.text import Text

from rampcli.batch.quantities import counted
from rampcli.cli.console import build_console, say
from rampcli.errors import EXIT_CTRL_C, EXIT_TERMINATED, UsageError, visible
from rampcli.launch.doctor.check import STATUS_STYLES, Check, Status
from rampcli.launch.doctor.gpu_checks import checks_of, run_checks
from rampcli.launch.doctor.gpu_runs import GpuReport, GpuTest, Processes, Sizes
from rampcli.launch.doctor.machine import check_machine
from rampcli.machine.gpus import visible_gpus
from rampcli.machine.lifeline import StopSignals, catch_stop_signals
from rampcli.settings.trainer import Accelerator

PROBLEMS = (Status.failure, Status.not_run)


def check_gpus(
    *,
    gpus: int | None = None,
    accelerator: Accelerator = "gpu",
    sizes: Sizes | None = None,
    as_json: bool = False,
) -> int:
    """Runs all checks and returns the exit code.

    Args:
        gpus: number of GPUs to use; None means all that are visible.
        accelerator: `cpu` tries the checks themselves, with a process in place of each GPU.
        sizes: how large the checks are.

    Raises:
        UsageError: there is no GPU.
    """
    count = len(visible_gpus()) if gpus is None else gpus
    if not count:
        raise UsageError(
            "--gpu measures GPUs, and this machine has none that are visible",
            remedy="rampcli doctor, which checks what runs on the CPU need",
        )
    console = build_console(quiet=as_json)
    machine = check_machine()
    report, results = GpuReport(), list[Check]()
    names = [check.name for check in machine] + [check.name for check in checks_of(count)]
    width = max(map(len, names))

    def begin(name: str) -> None:
        console.print(Text(f"{name:{width}}  "), end="")

    def end(check: Check) -> None:
        results.append(check)
        report.update(results)
        remedy = "" if check.remedy is None else f"\n{'':{width}}  try: {check.remedy}"
        finding = visible(f"  {check.finding}{remedy}", keeps="\n")
        text = Text.assemble((f"{check.status:10}", STATUS_STYLES[check.status]), finding)
        console.print(text, soft_wrap=True)

    with (
        catch_stop_signals() as signals,
        tempfile.TemporaryDirectory(prefix=".rampcli_doctor_", dir=Path.cwd()) as folder,
    ):
        for check in machine:
            begin(check.name)
            end(check)
        test = GpuTest(
            processes=Processes(folder=Path(folder), accelerator=accelerator, signals=signals),
            gpus=count,
            sizes=sizes or Sizes(),
            statuses={check.name: check.status for check in machine},
        )
        for result in run_checks(test, begin):
            end(result)
    ok = not any(result.status in PROBLEMS for result in results)
    if as_json:
        checks = [each.to_json() | {"seconds": round(each.seconds, 1)} for each in results]
        typer.echo(json.dumps({"checks": checks, "ok": ok, "file": str(report.path)}, indent=1))
    say(console, f"\n{'all checks are ok' if ok else _problems(results)}; report: {report.path}")
    return _exit_code(signals, ok=ok)


def _problems(results: Sequence[Check]) -> str:
    counts = Counter(each.status for each in results)
    parts = []
    if counts[Status.failure]:
        parts.append(counted(counts[Status.failure], "failure"))
    if counts[Status.not_run]:
        parts.append(f"{counts[Status.not_run]} not run")
    return ", ".join(parts)


def _exit_code(signals: StopSignals, *, ok: bool) -> int:
    if signals.signal is None:
        return 0 if ok else 1
    return EXIT_CTRL_C if signals.signal == signal.SIGINT else EXIT_TERMINATED
