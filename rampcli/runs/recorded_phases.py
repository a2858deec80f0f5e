"""The phases of a run as its plan.json has them: lengths of samples, and tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

Plan = Mapping[str, Any]
"""Contents of plan.json."""


def recorded_phases(plan: Plan | None) -> Sequence[Mapping[str, Any]]:
    """Returns the phases of a run, or nothing if it has none or no plan."""
    phases: Sequence[Mapping[str, Any]] = (plan or {}).get("phases", ())
    return phases


def phase_of(plan: Plan | None, stage: int) -> str | None:
    """Returns the name of a stage's phase, or None for a run without phases."""
    names = [one["name"] for one in recorded_phases(plan) if one["first_stage"] <= stage]
    return names[-1] if names else None


def length_at(plan: Plan | None, consumed_samples: int) -> int | None:
    """Returns the tokens of the last of the samples consumed, or None if they are unknown."""
    if phase := _phase_at(plan, consumed_samples):
        return int(phase["sequence_length"])
    return (plan or {}).get("sequence_length")


def tokens_at(plan: Plan | None, consumed_samples: int) -> int | None:
    """Returns the tokens in the first samples of a run, or None if they are unknown."""
    if phase := _phase_at(plan, consumed_samples):
        inside = consumed_samples - phase["first_sample"]
        return int(phase["first_token"] + inside * phase["sequence_length"])
    length = (plan or {}).get("sequence_length")
    return None if length is None else consumed_samples * int(length)


def has_several_lengths(*plans: Plan | None) -> bool:
    """Returns whether samples differ in length within or between runs, some of which have phases.

    Runs whose length is unknown do not count.
    """
    parts = [one for plan in plans for one in recorded_phases(plan) or [plan or {}]]
    lengths = {one.get("sequence_length") for one in parts} - {None}
    return any(map(recorded_phases, plans)) and len(lengths) > 1


def _phase_at(plan: Plan | None, consumed_samples: int) -> Mapping[str, Any] | None:
    """Returns the phase whose step ended at `consumed_samples`, or None without phases."""
    phases = recorded_phases(plan)
    begun = [one for one in phases if one["first_sample"] < consumed_samples]
    return next(iter((*begun[::-1], *phases)), None)
