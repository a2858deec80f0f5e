"""Rows of events.jsonl that observers write."""

from typing import Any

from rampcli.checkpoint.state import TrainingState
from rampcli.runs.directory import RunDirectory


def record_event(run: RunDirectory, kind: str, state: TrainingState, **facts: Any) -> None:
    """Appends an event to events.jsonl, with the step and the samples consumed at that time."""
    run.append_event(kind, step=state.step, consumed_samples=state.consumed_samples, **facts)
