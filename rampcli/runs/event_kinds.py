"""The kinds of events in events.jsonl: the columns that readers rely on, and how each is shown."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rampcli.files.records import COUNT, POSITIVE

TEXT_OR_NULL, NUMBER_OR_NULL = (str, None), (float, None)
LOSSES_OF_AVERAGES = {
    "ema_loss": "of the averaged weights",
    "merge_loss": "of the merged weights",
}
"""Columns of a validation with the losses of averages of the weights, and what views call them."""
EVALUATED = ("greedy", "greedy_solved", "sampled", "sampled_solved")
"""Results of an evaluation: the mean reward of held-out prompts, and the share that is solved."""
PLACE_SHAPE = {"step": COUNT, "consumed_samples": COUNT}
"""Shape of the columns that say after how many steps and samples an event happened."""
CHANGE = "{setting} changes from {old} to {new}"


class TimePart(StrEnum):
    """A part of the time between the first launch of a run and its last sign of life."""

    TRAINING = "training"
    VALIDATION = "validation"
    SAMPLES = "text samples"
    CHECKPOINTS = "checkpoints"
    COMPILATION = "compilation"
    START = "start and end"
    BOUNDARIES = "stage boundaries"
    RESTARTS = "restarts"
    LOST = "lost work"
    STOPPED = "stopped"


@dataclass(frozen=True, kw_only=True, slots=True)
class EventKind:
    """What readers know about a kind of event.

    Attributes:
        columns: shape of the columns that readers rely on (notation of `rampcli.files.records`).
        keeps_newest: the newest event says where a run stands, so it is found without reading all.
        interrupts: column with seconds in which training waited, and the part of the time of a run
            that they belong to; None if it did not wait.
        medians: columns with seconds whose median a report shows.
        text: text of its mark on the page, with the columns of the event and `step` in braces. None
            if it has no mark.
        mark: kind of its mark, if that is another kind.
        is_logged: the page lists it.
        is_warning: its `reason` is a warning, wherever a run is shown.
    """

    columns: dict[str, Any] = field(default_factory=dict)
    keeps_newest: bool = False
    interrupts: tuple[str, TimePart] | None = None
    medians: tuple[str, ...] = ()
    text: str | None = None
    mark: str | None = None
    is_logged: bool = False
    is_warning: bool = False


OTHER = EventKind()
"""An event that readers only count."""
WARNING = EventKind(
    columns={"reason": str}, keeps_newest=True, text="{reason}", is_logged=True, is_warning=True
)
EVENTS = {
    "branch": EventKind(columns=PLACE_SHAPE | {"run": str}),
    "launch": EventKind(columns={"num_nodes?": POSITIVE}, keeps_newest=True),
    "start": EventKind(
        columns={"step": COUNT, "device?": str, "device_name?": TEXT_OR_NULL},
        keeps_newest=True,
        text="",
    ),
    "stage": EventKind(keeps_newest=True),
    "boundary": EventKind(columns={"lost_s": float}, keeps_newest=True, medians=("lost_s",)),
    "validation": EventKind(
        columns=PLACE_SHAPE
        | {
            "corpus?": str,
            "loss": NUMBER_OR_NULL,
            "bits_per_byte?": NUMBER_OR_NULL,
            "validation_s?": float,
            "groups?": [[NUMBER_OR_NULL]],
        }
        | {f"{name}?": NUMBER_OR_NULL for name in LOSSES_OF_AVERAGES},
        keeps_newest=True,
        interrupts=("validation_s", TimePart.VALIDATION),
        text="validation after step {step:,}",
    ),
    "evaluation": EventKind(
        columns=PLACE_SHAPE
        | dict.fromkeys(EVALUATED, NUMBER_OR_NULL)
        | {"unscored?": COUNT, "reason?": TEXT_OR_NULL, "evaluation_s?": float},
        keeps_newest=True,
        interrupts=("evaluation_s", TimePart.VALIDATION),
        text="evaluation after step {step:,}",
        mark="validation",
    ),
    "samples": EventKind(
        columns=PLACE_SHAPE | {"texts": [{"prompt": str, "text": str}], "samples_s": float},
        interrupts=("samples_s", TimePart.SAMPLES),
    ),
    "profile": EventKind(
        columns={
            "step": COUNT,
            "rank": COUNT,
            "steps": [COUNT],
            "files": [str],
            "exchange_share?": NUMBER_OR_NULL,
            "operators": [
                {"name": str, "calls": COUNT, "self_cpu_s": float, "self_device_s?": float}
            ],
        }
    ),
    "compile": EventKind(interrupts=("compile_s", TimePart.COMPILATION)),
    "checkpoint": EventKind(
        interrupts=("stall_s", TimePart.CHECKPOINTS),
        medians=("save_s", "stall_s"),
        text="checkpoint of step {step:,}",
    ),
    "skip": EventKind(text="{reason}", is_logged=True),
    "lost": EventKind(
        columns={"step": COUNT, "steps": COUNT, "lost_s": float, "last_step_at": NUMBER_OR_NULL},
        text="{steps:,} steps are repeated ({lost_s:,.1f} s)",
        is_logged=True,
    ),
    "change": EventKind(
        columns=PLACE_SHAPE | {"setting": str, "old": str, "new": str},
        text=CHANGE,
        is_logged=True,
    ),
    "average": EventKind(columns=PLACE_SHAPE | {"reason": str}, text="{reason}", is_logged=True),
    "schedule": WARNING,
    "stop": EventKind(columns={"step": COUNT, "status": str, "save_s": float}),
    "fault": WARNING,
    "slow_data": WARNING,
    "flat_rewards": WARNING,
    "spare_ranks": WARNING,
    "tracker_off": WARNING,
    "unused_weights": WARNING,
}
NEWEST = tuple(kind for kind, of_kind in EVENTS.items() if of_kind.keeps_newest)
WARNINGS = tuple(kind for kind, of_kind in EVENTS.items() if of_kind.is_warning)
