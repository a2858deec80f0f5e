"""`rampcli tune --diagnose`: measures where the time of a step goes, and names the bottleneck."""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from rampcli.batch.plan import MICRO_KEY
from rampcli.batch.quantities import counted
from rampcli.cli.console import build_console, say
from rampcli.errors import RampcliError
from rampcli.machine.lifeline import exit_code_after
from rampcli.planning.run_plan import Resolved
from rampcli.report.tables import build_table
from rampcli.tune.diagnosis import SO_FAR, Diagnosis, PartName, StepPart, read_diagnosis
from rampcli.tune.median import FEWEST
from rampcli.tune.run import trials_here
from rampcli.tune.sizes import Candidate, own_candidate
from rampcli.tune.trial import OUT_OF_MEMORY, THRASHES, TIMED_OUT, Trial
from rampcli.tune.trial_files import Effort

SPREAD = 0.05
"""Measure until the intervals of the step's time and of its parts' shares are within this."""
TRIAL_REMEDIES = {
    OUT_OF_MEMORY: f"`rampcli tune`, which finds the {MICRO_KEY} that fits",
    TIMED_OUT: "--timeout with more seconds",
}


def diagnose(resolved: Resolved, *, effort: Effort, as_json: bool) -> int:
    """Measures where the time of the run's own step goes, prints it, and returns the exit code.

    Raises:
        RampcliError: the step cannot be taken on this machine, or it does not fit.
    """
    console, candidate = build_console(quiet=as_json), own_candidate(resolved)
    with trials_here(resolved, replace(effort, spread=SPREAD), diagnoses=True) as trials:
        say(console, f"diagnosing a step of {_described(candidate)}")
        trial = trials.attempt(candidate)
        if trial is None:
            _print_so_far(trials.folder_of(candidate), console)
            return exit_code_after(trials.signals)
        if trial.verdict in TRIAL_REMEDIES:
            raise RampcliError(
                f"{MICRO_KEY}={trial.micro_batch_size}: {trial.verdict} ({trial.reason})",
                keys=(MICRO_KEY,),
                remedy=TRIAL_REMEDIES[trial.verdict],
            )
        diagnosis = read_diagnosis(trials.folder_of(candidate))
    found = diagnosis.bottlenecks(resolved.config)
    if as_json:
        typer.echo(json.dumps(_to_json(diagnosis, candidate, trial, found), indent=1))
        return 0
    _print_parts(diagnosis, console)
    if trial.verdict == THRASHES:
        say(console, f"memory is short ({trial.reason}); try a smaller {MICRO_KEY}")
    say(console, *found.values())
    return 0


def _print_so_far(folder: Path, console: Console) -> None:
    """Prints what an interrupted diagnosis has measured."""
    try:
        diagnosis = read_diagnosis(folder, SO_FAR)
    except FileNotFoundError:
        say(console, "interrupted before the first round was complete")
        return
    _print_parts(diagnosis, console)
    rounds = counted(diagnosis.rounds, "round")
    few = f": intervals of fewer than {FEWEST} are too narrow" if diagnosis.rounds < FEWEST else ""
    say(console, f"interrupted after {rounds}{few}")


def _print_parts(diagnosis: Diagnosis, console: Console) -> None:
    say(console, diagnosis_table(diagnosis))
    missed = diagnosis.not_measured
    for reason in dict.fromkeys(missed.values()):
        parts = ", ".join(part for part, why in missed.items() if why == reason)
        say(console, f"not measured: {parts}, because {reason}")


def _described(candidate: Candidate) -> str:
    """Returns the step that is measured, in words."""
    stage, measured = candidate.stage, candidate.timed[-1]
    planned = stage.accumulate_grad_batches
    shorter = "" if measured == planned else f", in place of the run's {planned}"
    times = "micro batch" if measured == 1 else "micro batches"
    return (
        f"{measured} {times} of {candidate.micro_batch_size} per rank{shorter},"
        f" on {stage.world_size} rank{'s' if stage.world_size > 1 else ''}"
    )


def _to_json(
    diagnosis: Diagnosis, candidate: Candidate, trial: Trial, found: Mapping[PartName, str]
) -> dict[str, Any]:
    excess = diagnosis.excess_threads
    return {
        "micro_batch_size": trial.micro_batch_size,
        "accumulate_grad_batches": candidate.timed[-1],
        "world_size": trial.world_size,
        "device_name": trial.device_name,
        "thrashes": trial.reason,
        "step": asdict(diagnosis.step),
        "parts": [asdict(part) for part in diagnosis.parts],
        "excess_threads": excess and asdict(excess),
        **diagnosis.to_json(),
        "bottlenecks": [{"what": part, "message": message} for part, message in found.items()],
    }


def diagnosis_table(diagnosis: Diagnosis) -> Table:
    """Returns a table of the parts of a step, one per row, with 95% intervals of their shares."""
    step = diagnosis.step
    table = build_table("", "s/step", "share", "95% interval")
    table.add_row("the step", f"{step.s:.4f}", "100%", f"+- {step.spread:.0%}")
    for part in diagnosis.parts:
        table.add_row(f"  {part.what}", *_figures(part))
    if excess := diagnosis.excess_threads:
        label = f"saved by {excess.threads} of {diagnosis.threads} threads"
        table.add_row(label, *_figures(excess))
    return table


def _figures(part: StepPart) -> tuple[str, str, str]:
    return f"{part.s:.4f}", f"{part.share:.0%}", f"{part.low:.0%} to {part.high:.0%}"
