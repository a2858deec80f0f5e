"""What is true of a setting, declared with it: what it changes, and where it may be set."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Flag, auto
from typing import Any


class Impact(Flag):
    """What another value of a setting changes.

    Attributes:
        TENSORS: what the tensors of a checkpoint mean.
        SAMPLES: what a sample is, the order of the samples, and which of them a step takes.
        BATCH: how many samples a step takes.
        SPLIT: how a batch is divided into micro batches, and over nodes.
        LEARNING_RATE: the shape of the learning rate over the samples.
        UPDATES: how gradients become updates of the weights, besides the learning rate.
        LEARNING: what the run learns, in another way than by those above.
        VALIDATION: which losses are measured.
        HELD_OUT: which samples of the training corpora are held out for validation.
        LENGTH: where the run ends.
        SPEED: the time of a usual step on the same machines.
        MEMORY: the memory of a device in a step.
        MACHINES: on which machines the run trains, and on how many.
    """

    NOTHING = 0
    TENSORS = auto()
    SAMPLES = auto()
    BATCH = auto()
    SPLIT = auto()
    LEARNING_RATE = auto()
    UPDATES = auto()
    LEARNING = auto()
    VALIDATION = auto()
    HELD_OUT = auto()
    LENGTH = auto()
    SPEED = auto()
    MEMORY = auto()
    MACHINES = auto()


NOTHING = Impact.NOTHING
(TENSORS, SAMPLES, BATCH, SPLIT, LEARNING_RATE, UPDATES, LEARNING, *_others) = Impact
VALIDATION, HELD_OUT, LENGTH, SPEED, MEMORY, MACHINES = _others
COST = SPEED | MEMORY
IDENTITY = TENSORS | SAMPLES | BATCH
"""What a checkpoint's tensors and consumed samples mean. A resume must not change it."""
RESULT = IDENTITY | LEARNING_RATE | UPDATES | LEARNING
"""What decides what a run learns."""


@dataclass(frozen=True, slots=True)
class NotInRL:
    """Why reinforcement learning does not read a setting.

    Attributes:
        why: continues `KEY=VALUE does not apply to reinforcement learning`.
        instead: what to set instead, or None.
        unused: value that leaves it unused.
    """

    why: str
    instead: str | None = None
    unused: Any = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What is true of a setting.

    Attributes:
        not_in_phases: why a phase may not set it; None if it may.
        not_in_rl: why reinforcement learning does not read it; None if it does.
        one_of: what it says in one of several ways; None if there is no other way. Of settings that
            say one thing, the one that is set nearest to the user applies.
        replaces: settings of the run, and the values that they get in a phase that sets it. They
            say something else there, or the same in another way.
    """

    changes: Impact
    not_in_phases: str | None = None
    not_in_rl: NotInRL | None = None
    one_of: str | None = None
    replaces: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def unread_by_rl(self, why: str, instead: str | None = None, *, unused: Any = None) -> "Facts":
        """Returns the facts of a setting that only pretraining reads, see `NotInRL`."""
        return replace(self, not_in_rl=NotInRL(why, instead, unused))

    def one_way_of(self, what: str) -> "Facts":
        """Returns the facts of a setting that says something in one of several ways."""
        return replace(self, one_of=what)

    def replacing(self, settings: Mapping[str, Any] | Iterable[str]) -> "Facts":
        """Returns the facts of a setting that replaces others in a phase: by null, if not said."""
        values = settings if isinstance(settings, Mapping) else dict.fromkeys(settings)
        return replace(self, replaces=values)


ONE_RUN = "it holds for the whole run"
SAME_TENSORS = "checkpoints of one run have the same tensors"
SAME_SAMPLES = "it says what a sample is, in the whole run"
SAME_STATE = "the state of the optimiser goes on from phase to phase"


def any_phase(changes: Impact) -> Facts:
    """Returns the facts of a setting that each phase may set."""
    return Facts(changes)


def whole_run(changes: Impact, why: str = ONE_RUN) -> Facts:
    """Returns the facts of a setting that holds for the whole run, and why."""
    return Facts(changes, not_in_phases=why)
