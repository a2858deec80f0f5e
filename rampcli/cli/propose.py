"""`rampcli propose`: a batch for a run, from what was measured, beside others."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rampcli.cli.options import AsJson
from rampcli.errors import UsageError, set_to, typeable, visible

if TYPE_CHECKING:
    from rampcli.cbs.measured import Measurements
    from rampcli.cbs.proposal import Candidate
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
    run = _planned(directories)
    measurements = read_measurements(directories)
    found = _candidates(run, measurements, start=start, largest=largest, exponent=exponent)
    lines = list(verdict_lines(run, found, measurements))
    commands = {
        one.name: _command(one, directories[0])
        for one in found
        if one.words and not isinstance(one.found, UsageError)
    }
    if as_json:
        typer.echo(json.dumps(_to_json(run, measurements, found, lines, commands), indent=1))
        return
    length = run.plan.sequence_length
    measured = measurement_table(measurements, sequence_length=length)
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


def _planned(runs: Sequence["RunDirectory"]) -> "Resolved":
    """Returns the plan of the first run, with the throughput that the runs have measured.

    Its settings are those of a recipe, which a proposal changes.

    Raises:
        UsageError: the run has no end, or is one of reinforcement learning; or another run had
            another model or other data.
    """
    from rampcli.cbs.proposal import differing_keys
    from rampcli.cli.composing import with_measured
    from rampcli.config import snapshot
    from rampcli.config.layers import as_recipe, sources_named
    from rampcli.config.phases import refuse_phases, refuse_rl
    from rampcli.planning.run_plan import run_plan
    from rampcli.runs.measured import has_throughput
    from rampcli.settings.trainer import TrainerConfig

    configs = [snapshot.read(run.config) for run in runs]
    for config in configs:
        refuse_phases(config, "rampcli propose", remedy="runs without phases")
    run = run_plan(configs[0])
    refuse_rl(
        run.config,
        "a batch is proposed for pretraining, and this is a run of reinforcement learning",
        remedy="the directory of a run of rampcli pretrain",
    )
    for other, config in zip(runs[1:], configs[1:], strict=True):
        if keys := differing_keys(run.config, config):
            raise UsageError(
                f"{other.path} measured something else: {keys[0]} is another one than in"
                f" {runs[0].path}",
                keys=(keys[0],),
                remedy="runs of the same model on the same data",
            )
    if run.plan.end_sample is None:
        with sources_named(run.config):
            raise UsageError(
                "a batch is proposed for a run with an end",
                keys=(TrainerConfig.max_samples,),
                remedy=set_to(TrainerConfig.max_samples, "10M"),
            )
    if timed := [one.path for one in runs if has_throughput(one.path)]:
        run = with_measured(run, timed)
    return run_plan(as_recipe(run.config))


def _candidates(
    run: "Resolved",
    measurements: "Measurements",
    *,
    start: int | None,
    largest: int | None,
    exponent: float | None,
) -> list["Candidate"]:
    """Returns the run as it is, and the batches to compare with it."""
    from rampcli.cbs.proposal import (
        AS_IT_IS,
        SEESAW,
        SMALL,
        batch_words,
        coupling_words,
        largest_batch,
        plan_candidate,
        thresholds_by_name,
    )
    from rampcli.cli.seesaw import growth_of

    end, measured = run.plan.end_sample, measurements.critical()
    assert end is not None
    smallest = min(stage.global_batch_size for stage in run.plan.ramp.stages)
    if start is not None and start > end:
        raise UsageError(
            f"--start {start} is more than the {end:,} samples of the run",
            remedy=f"--start {smallest}",
        )
    start = start or smallest
    if largest is not None and largest < start:
        raise UsageError(
            f"--largest {largest} is below the first batch of {start:,}",
            remedy=f"--largest {start}",
        )
    most = largest_batch(run, measured, start=start, limit=largest)
    schedules = thresholds_by_name(measured, start=start, largest=most, end_sample=end)
    names: dict[Any, list[str]] = {}
    for name, thresholds in schedules.items():
        names.setdefault(thresholds, []).append(name)
    if exponent is None and measurements.branches:
        exponent = measurements.branches[-1].exponent
    couplings = coupling_words(run.config, exponent)
    found = [plan_candidate(AS_IT_IS, [], run, measured)]
    for thresholds, alike in names.items():
        words, name = batch_words(thresholds, run), ", ".join(alike)
        one = plan_candidate(name, words, run, measured, couplings=couplings)
        if one.words:
            found.append(one)
        else:
            found[0] = replace(found[0], name=f"{found[0].name}, {name}")
    small = plan_candidate(SMALL, batch_words(schedules[SMALL], run), run, measured)
    if not isinstance(small.found, UsageError):
        try:
            stairs = growth_of(small.found, SEESAW_FACTOR).words
        except UsageError as error:
            found.append(replace(small, name=SEESAW, words=(), found=error))
        else:
            words = [*small.words, *stairs]
            found.append(plan_candidate(SEESAW, words, run, measured, is_retuned=False))
    return found


def _command(candidate: "Candidate", run: "RunDirectory") -> str:
    """Returns the command that trains a candidate in a run directory of its own."""
    name = f"{run.path.name}_{candidate.name.rpartition(', ')[2].replace(' ', '_').lower()}"
    words = [f"name={name}", f"run_dir={run.path.parent / name}", *candidate.words]
    typed = " ".join(map(typeable, (str(run.config), *words)))
    return f"rampcli pretrain --factory {typed}"


def _to_json(
    run: "Resolved",
    measurements: "Measurements",
    candidates: Sequence["Candidate"],
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
