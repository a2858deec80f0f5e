"""How much of a step of reinforcement learning the overlap of rollout and training saves."""

from collections.abc import Mapping, Sequence
from math import gcd
from statistics import median
from typing import Any

from rampcli.batch.division import divisors
from rampcli.batch.overlap import overlapped_s, saved_at_best
from rampcli.batch.pairs import PAIRS_KEY, PROMPTS_KEY, PairBatch
from rampcli.planning.run_plan import ResolvedPhase, run_dir_of
from rampcli.runs.directory import RunDirectory
from rampcli.runs.rows import read_rows
from rampcli.settings.phase_keys import phase_key
from rampcli.settings.rl import RLConfig

TIMED_STEPS = 20
"""Last steps of a run that times are taken from."""


def overlap_lines(phase: ResolvedPhase, batch: PairBatch) -> list[str]:
    """Returns what overlap saves in a step of a phase: at best, and by its times so far."""
    generators, devices = phase.config.rl.rollout_ranks, phase.config.trainer.devices
    rollouts = f"{batch.rollouts} rollout{'s' if batch.rollouts > 1 else ''} per rank and step"
    if generators == 0:
        lines = ["rollout and training take turns on all processes"]
    else:
        verb = "generates" if generators == 1 else "generate"
        best = _saved_at_best(batch.rollouts, phase, batch)
        saved = f"up to {best:.0%} of a step" if best else f"nothing: {_why_nothing(phase, batch)}"
        lines = [
            f"{generators} of {devices} processes {verb} while the others train; with {rollouts},"
            f" that saves {saved}"
        ]
    stages = [stage.stage for stage in phase.plan.extents]
    rows = [
        row
        for row in read_rows(RunDirectory(run_dir_of(phase.config)).metrics)
        if row["stage"] in stages and "rollout_s" in row and row.get("pairs") == batch.pairs
    ][-TIMED_STEPS:]
    if rows:
        lines += _measured_lines(rows, phase, batch)
    return lines


def overlap_result(metrics: Mapping[str, Any]) -> str | None:
    """Returns the time of the last steps of a run next to the predicted one, if they overlapped.

    Args:
        metrics: columns of metrics.jsonl, as `read_run` returns them.
    """
    ranks = metrics.get("rollout_ranks", ())
    rows = [row for row, count in enumerate(ranks) if count > 0][-TIMED_STEPS:]
    if not rows:
        return None
    taken, predicted, rollout_s, training_s = (
        median(metrics[name][row] for row in rows)
        for name in ("step_time_s", "predicted_s", "rollout_s", "training_s")
    )
    return (
        f"a step took {taken:.3g} s, and {predicted:.3g} s are predicted for {rollout_s:.3g} s of"
        f" rollout that overlap with {training_s:.3g} s of training"
    )


def _saved_at_best(rollouts: int, phase: ResolvedPhase, batch: PairBatch) -> float:
    """Returns the share of a step that overlap saves at best, with some rollouts per rank."""
    return saved_at_best(
        micro_batches=rollouts,
        data_ranks=batch.data_parallel_size,
        generators=phase.config.rl.rollout_ranks,
    )


def _why_nothing(phase: ResolvedPhase, batch: PairBatch) -> str:
    """Returns why overlap saves nothing, and the largest micro batch with which it does."""
    reason = "training starts once all are generated"
    # A divisor of the prompts that every stage generates together divides each of its batches.
    together = gcd(*(stage.micro_batch_size for stage in phase.plan.stages))
    per_rank = batch.prompts // batch.data_parallel_size
    for prompts in reversed(divisors(together, most=together)):
        if best := _saved_at_best(per_rank // prompts, phase, batch):
            (word,) = phase.overrides({PAIRS_KEY: prompts * batch.generations})
            return f"{reason}; {word} saves up to {best:.0%} of a step"
    return f"{reason}; overlap needs a larger {phase_key(phase.plan.name, PROMPTS_KEY)}"


def _measured_lines(
    rows: Sequence[dict[str, Any]], phase: ResolvedPhase, batch: PairBatch
) -> list[str]:
    """Returns the time of a step of the run, and what is expected with overlap if it is less.

    Work is assumed to divide evenly over the processes.
    """
    # Ranks that take turns all generate.
    rollout_s = median(
        row["rollout_s"] * (row.get("rollout_ranks") or row["world_size"]) for row in rows
    )
    training_s = median(row["training_s"] * row["world_size"] for row in rows)
    generators, trainers = phase.config.rl.rollout_ranks, phase.plan.stages[-1].world_size
    if generators == 0:
        generators, trainers = 1, max(1, trainers - 1)
    expected = overlapped_s(
        rollout_s / generators,
        training_s / trainers,
        micro_batches=batch.rollouts,
        data_ranks=batch.data_parallel_size,
        generators=generators,
    )
    taken = median(row["step_time_s"] for row in rows)
    if expected >= taken:
        return []
    return [
        f"a step of this run has taken {taken:.3g} s (median of the last {len(rows)});"
        f" {expected:.3g} s are expected with trainer.devices={generators + trainers}"
        f" {RLConfig.rollout_ranks}={generators}"
    ]
