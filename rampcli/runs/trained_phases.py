"""What a run has trained in each of its phases, beside its plan."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rampcli.runs.event_kinds import LOSSES_OF_AVERAGES
from rampcli.runs.facts import RunFacts
from rampcli.runs.recorded_phases import phase_of, recorded_phases
from rampcli.runs.stages import TrainedStage


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedPhase:
    """A phase as it was planned and as it was trained. Unknown values are None.

    Attributes:
        name: its name.
        sequence_length: tokens per sample.
        global_batch_sizes: samples per step of each of its stages.
        steps, planned_steps: as trained and as planned.
        is_inherited: the run begins after it, at a checkpoint of another run.
        end_token: tokens of the run where the phase ends.
        loss: mean over its last steps, in nats per token; None before its end.
        validation_losses: of the validation after its last step: "loss" and the columns of
            `LOSSES_OF_AVERAGES`, each by corpus; "" is the only one. Corpora without a finite loss
            are left out.
    """

    name: str
    sequence_length: int
    global_batch_sizes: list[int]
    steps: int
    planned_steps: int | None
    is_inherited: bool
    end_token: int | None
    loss: float | None
    validation_losses: dict[str, dict[str, float]]


def trained_phases(
    facts: RunFacts, stages: Iterable[TrainedStage], events: Sequence[Mapping[str, Any]]
) -> list[TrainedPhase]:
    """Returns the phases of a run, or nothing if it has none.

    Args:
        facts: what the run has done.
        stages: from `trained_stages`.
        events: rows of events.jsonl.
    """
    by_phase: dict[str | None, list[TrainedStage]] = {}
    for stage in stages:
        by_phase.setdefault(phase_of(facts.plan, stage.stage), []).append(stage)
    return [
        _trained(phase, by_phase.get(phase["name"], []), facts, events)
        for phase in recorded_phases(facts.plan)
    ]


def _trained(
    phase: Mapping[str, Any],
    stages: Sequence[TrainedStage],
    facts: RunFacts,
    events: Sequence[Mapping[str, Any]],
) -> TrainedPhase:
    end = None if phase["samples"] is None else phase["first_sample"] + phase["samples"]
    has_ended = end is not None and end <= facts.consumed_samples
    # The next phase may have validated after the same step, on samples of its own.
    validations = [
        row
        for row in events
        if row["event"] == "validation"
        and row.get("phase") == phase["name"]
        and row["consumed_samples"] == end
    ]
    return TrainedPhase(
        name=phase["name"],
        sequence_length=phase["sequence_length"],
        global_batch_sizes=[stage.global_batch_size for stage in stages],
        steps=sum(stage.steps for stage in stages),
        planned_steps=phase["steps"],
        is_inherited=bool(stages) and all(stage.is_inherited for stage in stages),
        end_token=None if phase["tokens"] is None else phase["first_token"] + phase["tokens"],
        loss=stages[-1].figures["loss"] if stages and has_ended else None,
        validation_losses={
            column: _by_corpus(validations, column) for column in ("loss", *LOSSES_OF_AVERAGES)
        },
    )


def _by_corpus(validations: Iterable[Mapping[str, Any]], column: str) -> dict[str, float]:
    """Returns the newest loss of each corpus."""
    newest = {row.get("corpus") or "": row.get(column) for row in validations}
    return {corpus: loss for corpus, loss in newest.items() if loss is not None}
