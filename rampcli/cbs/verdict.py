"""The proposal of a batch as tables and lines."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from rampcli.batch.noise_scale import MIN_MEASUREMENTS
from rampcli.batch.quantities import listed, shorten
from rampcli.cbs.laws import BATCH_LAWS
from rampcli.cbs.measured import Measurements
from rampcli.cbs.proposal import AS_IT_IS, PROPOSED, SMALL, Alternative
from rampcli.config.phases import phases_named
from rampcli.errors import UsageError
from rampcli.estimate.model_size import model_size
from rampcli.planning.run_plan import Resolved
from rampcli.report.plan_notes import throughput_notes
from rampcli.report.plan_tables import comparison_table
from rampcli.report.tables import build_table, share

LEAST_SAVING = 0.05
"""Share of the optimiser steps of the fixed small batch that a ramp must save to be proposed."""
MUON = (
    "published results on ramps with Muon contradict each other (arXiv 2505.02222 and 2510.09378):"
    " compare the proposed ramp with a fixed batch before you rely on it"
)


def measurement_table(measurements: Measurements, plans: Mapping[Path, Resolved]) -> Table:
    """Returns what branches have measured, then the noise scales, each in order of samples.

    Args:
        plans: of the runs that have measured them.
    """

    def tokens(run: Path, at: int, batch: float) -> str:
        return shorten(batch * plans[run].at(max(0, at)).plan.sequence_length)

    table = build_table(
        "samples", "measured", "batch", "tokens", "interval", "run", left=("measured", "run")
    )
    for branch in measurements.branches:
        at_least = ">= " if branch.is_lower_bound else ""
        table.add_row(
            f"{branch.consumed_samples:,}",
            f"branches, rate x k^{branch.exponent:g}{'' if branch.decays else ', constant'}",
            f"{at_least}{branch.critical_batch_size:,}",
            f"{at_least}{tokens(branch.run, branch.consumed_samples, branch.critical_batch_size)}",
            "-",
            branch.run.name,
        )
    for one in measurements.noise:
        at_least = "" if one.value is not None else ">= "
        batch = one.low if one.value is None else one.value
        interval = "-" if one.high is None else f"{shorten(one.low)} to {shorten(one.high)}"
        table.add_row(
            f"{one.consumed_samples:,}",
            "noise scale",
            f"{at_least}{shorten(batch)}",
            f"{at_least}{tokens(one.run, one.consumed_samples - 1, batch)}",
            interval,
            one.run.name,
        )
    return table


def law_table(run: Resolved) -> Table:
    """Returns the batches that published laws give for a run whose end is known."""
    length = run.plan.sequence_length
    table = build_table(
        "law", "batch", "tokens", "for this run", "source", left=("law", "for this run", "source")
    )
    for law in laws_of(run):
        table.add_row(
            law["name"],
            shorten(law["batch_tokens"] / length) if run.plan.has_one_length else "-",
            shorten(law["batch_tokens"]),
            "; ".join(law["outside"]) or "within its range",
            law["source"],
        )
    return table


def laws_of(run: Resolved) -> list[dict[str, Any]]:
    """Returns what published laws say about a run whose end is known, as plain data."""
    tokens = run.tokens
    assert tokens is not None
    parameters, optimizer = model_size(run.config).parameters, run.config.optim.optimizer
    return [
        {
            "name": law.name,
            "batch_tokens": law.batch_tokens(tokens),
            "source": law.source,
            "certainty": law.certainty,
            "outside": law.misfits(parameters=parameters, tokens=tokens, optimizer=optimizer),
        }
        for law in BATCH_LAWS
    ]


def candidate_table(candidates: Sequence[Alternative]) -> Table:
    """Returns the plans of the candidates, and how they lie to what was measured."""
    return comparison_table(
        [(one.name, one.found) for one in candidates],
        more={
            one.name: {"beyond": share(one.beyond), "unknown": share(one.unknown)}
            for one in candidates
        },
    )


def verdict_lines(
    run: Resolved, candidates: Sequence[Alternative], measurements: Measurements
) -> Iterator[str]:
    """Yields what is proposed and why, and what is uncertain."""
    by_name = {part: one for one in candidates for part in one.name.split(", ")}
    small, proposed = by_name[SMALL], by_name.get(PROPOSED)
    if proposed is None:
        yield (
            "proposal: none, because neither branches nor a noise scale are known:"
            " noise_scale.every_steps=16 measures the noise scale while a run trains, from"
            f" {MIN_MEASUREMENTS} measured steps on, and rampcli cbs RUN trains branches"
        )
    elif isinstance(proposed.found, UsageError):
        yield f"proposal: none, because its batches do not fit: {proposed.found.message}"
    elif all(len(one.plan.ramp.thresholds) == 1 for one in proposed.found.phases):
        by_batch: dict[str, list[str]] = {}
        for phase in proposed.found.phases:
            batch = f"{phase.plan.global_batch_size:,} samples"
            by_batch.setdefault(batch, []).append(phase.plan.name or "")
        if len(by_batch) == 1:
            (batches,) = by_batch
            reason = (
                "nothing measured reaches twice this batch"
                if proposed is small
                else "the first measurement allows it already"
            )
        else:
            batches = listed(
                [f"{size} in {phases_named(names)}" for size, names in by_batch.items()]
            )
            reason = "that is what was measured for each phase"
        yield f"proposal: no ramp, a fixed batch of {batches}: {reason}"
    else:
        saved = _saving(proposed, small)
        if saved is not None and saved < LEAST_SAVING:
            yield (
                f"proposal: no ramp: it would save {saved:.1%} of the steps of the fixed small"
                " batch"
            )
        else:
            steps = (
                "; what it saves is unknown, because the fixed small batch does not fit"
                if saved is None
                else f", {saved:.1%} fewer steps than the fixed small batch"
            )
            yield f"proposal: the ramp{steps}"
    if beyond := by_name[AS_IT_IS].beyond:
        yield (
            f"note: the run as it is trains {beyond:.1%} of its samples with a batch beyond the"
            " critical one"
        )
    if small_above := _below(small, measurements):
        yield (
            f"note: the fixed small batch is above the noise scale until sample {small_above:,};"
            " --start compares a smaller one"
        )
    if measurements.noise:
        yield (
            "note: the proposal follows the branches; the noise scale is shown beside them"
            if measurements.branches
            else "note: the noise scale is a guide: branches found critical batches above it (arXiv"
            " 2505.23971), and below it with a small model; rampcli cbs measures them"
        )
    for branch in measurements.branches:
        for note in branch.notes:
            yield f"note: branches after {branch.consumed_samples:,} samples: {note}"
    plans = [one.found for one in candidates if isinstance(one.found, Resolved)]
    ramps = [plan.plan for plan in plans if len(plan.plan.stages) > 1]
    if ramps and run.config.optim.optimizer == "muon":
        yield f"note: {MUON}"
    yield from (f"note: {note}" for note in throughput_notes(plans))
    if restarts := {plan.clock.restart_s for plan in ramps if plan.clock is not None}:
        yield f"note: hours count {restarts.pop():g} s for each restart between stages"
    for one in candidates:
        if isinstance(one.found, UsageError):
            yield f"note: {one.name} does not fit: {one.found.message}"


def _below(candidate: Alternative, measurements: Measurements) -> int | None:
    """Returns the samples until which the noise scale is wholly below a constant batch, if any."""
    if isinstance(candidate.found, UsageError):
        return None
    plan = candidate.found.plan
    below = [
        one
        for one in measurements.noise
        if one.high is not None
        and one.high < plan.stage_at(max(0, one.consumed_samples - 1)).global_batch_size
    ]
    return below[-1].consumed_samples if below else None


def _saving(one: Alternative, other: Alternative) -> float | None:
    """Returns the share of the optimiser steps of another candidate that one saves."""
    if isinstance(one.found, UsageError) or isinstance(other.found, UsageError):
        return None
    return 1 - (one.found.plan.end_step or 0) / (other.found.plan.end_step or 1)
