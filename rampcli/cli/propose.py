"""`rampcli propose`: a batch for a run, from what was measured, beside others."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rampcli.cli.options import AsJson
from rampcli.errors import UsageError, set_to, typeable, visible

if TYPE_CHECKING:
    from rampcli.cbs.measured import Measurements
    from rampcli.cbs.proposal import Alternative
    from rampcli.planning.run_plan import Resolved
    from rampcli.runs.directory import RunDirectory

SEESAW_FACTOR = 2.0


def propose(
    runs: Annotated[list[str], typer.Argument(metavar="RUN")],
    start: Annotated[int | None, typer.Option(metavar="SAMPLES", min=1)] = None,
    largest: Annotated[int | None, typer.Option(metavar="SAMPLES", min=1)] = None,
    exponent: Annotated[float | None, typer.Option(metavar="E", min=0.0, max=2.0)] = None,
    as_json: AsJson = False,
) -> None:
    """Propose a batch for a run from what runs have measured.

    Compares a fixed small batch, a fixed large one, the proposed ramp and Seesaw. Nothing is
    changed. The command that is printed trains the proposal.

    Args:
        runs: Run directories, or names of runs below runs/. The batch is proposed for the first
            one; all of them say what was measured.
        start: First batch. Default: the run's smallest.
        largest: Largest batch to compare, except for Seesaw. Default: what was measured, or the
            run's largest if that is more.
        exponent: A batch that is k times as large has k^E times the learning rate. Default: that
            of the branches, or as the run couples them, or 0.5.
    """
    from rampcli.cbs.measured import read_measurements
    from rampcli.cbs.verdict import (
        candidate_table,
        law_table,
        measurement_table,
        verdict_lines,
    )
    from rampcli.cli.console import build_console, say
    from rampcli.runs.directory import find_run

    found_runs = [find_run(word) for word in runs]
    directories = list({one.path.resolve(): one for one in found_runs}.values())
    run, plans = _planned(directories)
    measurements = read_measurements(directories)
    found = _candidates(run, plans, measurements, start=start, largest=largest, exponent=exponent)
    lines = list(verdict_lines(run, found, measurements))
    commands = {
        one.name: _command(one, directories[0])
        for one in found
        if one.words and not isinstance(one.found, UsageError)
    }
    if as_json:
        typer.echo(json.dumps(_to_json(run, measurements, found, lines, commands), indent=1))
        return
    measured = measurement_table(measurements, plans)
    say(
        build_console(),
        "batches of published laws, as first guesses (in samples and tokens per step):",
        law_table(run),
        *(("", "measured:", measured) if measured.row_count else ()),
        "",
        candidate_table(found),
        "",
        *lines,
        *(f"{name}:\n  {visible(command)}" for name, command in commands.items()),
    )


def _planned(runs: Sequence["RunDirectory"]) -> tuple["Resolved", dict[Path, "Resolved"]]:
    """Returns the plan of the first run, with the throughput that the runs have measured, and all.

    Its settings are those of a recipe, which a proposal changes.

    Raises:
        UsageError: the run has no end, or is one of reinforcement learning; or another run had
            another model or other data in all of its phases.
    """
    from rampcli.cbs.proposal import differing_keys
    from rampcli.cli.composing import with_measured
    from rampcli.config import snapshot
    from rampcli.config.layers import as_recipe, sources_named
    from rampcli.config.phases import refuse_rl
    from rampcli.planning.run_plan import run_plan
    from rampcli.runs.measured import has_throughput
    from rampcli.settings.trainer import TrainerConfig

    plans = {one.path: run_plan(snapshot.read(one.config)) for one in runs}
    first, *others = plans
    run = plans[first]
    refuse_rl(
        run.config,
        "a batch is proposed for pretraining, and this is a run of reinforcement learning",
        remedy="the directory of a run of rampcli pretrain",
    )
    for other in others:
        differing = [
            differing_keys(one.config, theirs.config)
            for one in run.phases
            for theirs in plans[other].phases
        ]
        if all(differing):
            key = differing[0][0]
            raise UsageError(
                f"{other} measured something else: {key} is another one than in {first}",
                keys=(key,),
                remedy="runs of the same model on the same data",
            )
    if run.plan.end_sample is None:
        with sources_named(run.config):
            raise UsageError(
                "a batch is proposed for a run with an end",
                keys=(TrainerConfig.max_samples,),
                remedy=set_to(TrainerConfig.max_samples, "10M"),
            )
    if timed := [path for path in plans if has_throughput(path)]:
        run = with_measured(run, timed)
    return run_plan(as_recipe(run.config)), plans


def _candidates(
    run: "Resolved",
    plans: Mapping[Path, "Resolved"],
    measurements: "Measurements",
    *,
    start: int | None,
    largest: int | None,
    exponent: float | None,
) -> list["Alternative"]:
    """Returns the run as it is, and the batches to compare with it."""
    from rampcli.cbs.proposal import (
        AS_IT_IS,
        SEESAW,
        SMALL,
        batch_words,
        coupling_words,
        differing_keys,
        plan_alternative,
        schedules_by_name,
    )
    from rampcli.cli.seesaw import growth_of

    critical = [
        measurements.critical(
            lambda path, at, phase=phase: (  # type: ignore[misc]
                not differing_keys(phase.config, plans[path].at(max(0, at)).config)
            )
        )
        for phase in run.phases
    ]
    schedules = schedules_by_name(run, critical, start=start, largest=largest)
    names: dict[Any, list[str]] = {}
    for name, schedule in schedules.items():
        names.setdefault(schedule, []).append(name)
    if exponent is None and measurements.branches:
        exponent = measurements.branches[-1].exponent
    couplings = coupling_words(run.config, exponent)
    found = [plan_alternative(AS_IT_IS, [], run, critical)]
    for schedule, alike in names.items():
        words, name = batch_words(schedule, run), ", ".join(alike)
        one = plan_alternative(name, words, run, critical, couplings=couplings)
        if one.words:
            found.append(one)
        else:
            found[0] = replace(found[0], name=f"{found[0].name}, {name}")
    small = plan_alternative(SMALL, batch_words(schedules[SMALL], run), run, critical)
    if not isinstance(small.found, UsageError):
        try:
            stairs = growth_of(small.found, SEESAW_FACTOR).words
        except UsageError as error:
            found.append(replace(small, name=SEESAW, words=(), found=error))
        else:
            words = [*small.words, *stairs]
            found.append(plan_alternative(SEESAW, words, run, critical, is_retuned=False))
    return found


def _command(candidate: "Alternative", run: "RunDirectory") -> str:
    """Returns the command that trains a candidate in a run directory of its own."""
    name = f"{run.path.name}_{candidate.name.rpartition(', ')[2].replace(' ', '_').lower()}"
    words = [f"name={name}", f"run_dir={run.path.parent / name}", *candidate.words]
    typed = " ".join(map(typeable, (str(run.config), *words)))
    return f"rampcli pretrain --factory {typed}"


def _to_json(
    run: "Resolved",
    measurements: "Measurements",
    candidates: Sequence["Alternative"],
    lines: Sequence[str],
    commands: Mapping[str, str],
) -> dict[str, Any]:
    """Returns the proposal as plain data."""
    from rampcli.cbs.verdict import laws_of
    from rampcli.report.plan_json import plan_json

    return {
        "laws": laws_of(run),
        "branches": [asdict(one) | {"run": str(one.run)} for one in measurements.branches],
        "noise_scale": [asdict(one) | {"run": str(one.run)} for one in measurements.noise],
        "candidates": [
            {
                "name": one.name,
                "words": list(one.words),
                "command": commands.get(one.name),
                "plan": None if isinstance(one.found, UsageError) else plan_json(one.found),
                "error": one.found.message if isinstance(one.found, UsageError) else None,
                "beyond": one.beyond,
                "unknown": one.unknown,
            }
            for one in candidates
        ],
        "verdict": list(lines),
    }
