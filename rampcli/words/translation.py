"""Words of other systems: their meaning in layers of settings, and a plan written in them."""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from rampcli.batch.plan import GLOBAL_KEY, MICRO_KEY
from rampcli.batch.ramp import RAMP_KEY
from rampcli.batch.run_settings import DECREASE_KEY
from rampcli.batch.step_schedule import to_entries
from rampcli.batch.training_plan import PhasePlan, StagePlan
from rampcli.errors import UsageError, shown
from rampcli.words.formats import FileFormat


class CombinedWord(NamedTuple):
    """A word whose meaning depends on other settings.

    Attributes:
        example: a value, as it is typed.
        meaning: its system, what it means there, and what it becomes here.
        key: our key that it sets if no other word takes part, or None.
        replaces: what a phase leaves out of the run's settings by setting the word.
    """

    type: type
    example: str
    meaning: str
    key: str | None = None
    replaces: tuple[str, ...] = ()


class Layers(Protocol):
    """The layers of a run or a phase (`rampcli.config.layers.Stack`).

    Each setting and each word that is given has an entry.
    """

    def entry(self, key: str) -> Any:
        """Returns the entry that applies: its `value`, its `place`, and the word it is set `by`."""

    def precedence(self, key: str) -> int:
        """Returns how near to the user a key is set; 0 for a default."""

    def values(self) -> dict[str, Any]:
        """Returns the value of each setting and word."""

    def decided(self, key: str, by: str, value: Any, *, words: Sequence[str] = ()) -> Self:
        """Returns the layers with a value that a key has because words are given."""


L = TypeVar("L", bound=Layers)


def given(layers: Layers, words: Iterable[str]) -> dict[str, Any]:
    """Returns the values of those words that are given."""
    values = layers.values()
    return {word: values[word] for word in words if values.get(word) is not None}


def contradiction(layers: Layers, key: str, value: Any, words: Sequence[str]) -> UsageError:
    """Returns the error for a key that is given beside words that give it another value."""
    product = " x ".join(f"{word}={shown(layers.entry(word).value)}" for word in words)
    return UsageError(
        f"{product} sets {key}={shown(value)}, but {shown(layers.entry(key).value)} is given",
        keys=(*words, key),
        remedy="one of them",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A planned batch to translate.

    Attributes:
        rampup_batch_size: `[start, increment, samples]`, or None.
        step_batch_size_schedule: text of the setting, or None.
        data_parallel_shard_size: ranks that share one copy of the weights, or None for all.
        num_pipeline_microbatches: parts of a stage's micro batch, or None if not given.
        expansion_factor_real_data: hosts per reading host, or None if not given.
    """

    plan: PhasePlan
    rampup_batch_size: list[int] | None = None
    step_batch_size_schedule: str | None = None
    data_parallel_shard_size: int | None = None
    num_pipeline_microbatches: int | None = None
    expansion_factor_real_data: float | None = None

    @property
    def ramp(self) -> list[int] | None:
        """The ramp, or None if the batch never changes."""
        return None if len(self.plan.ramp.thresholds) == 1 else self.rampup_batch_size

    @property
    def steps(self) -> str | None:
        """Thresholds of a step schedule in samples, or None without one."""
        has_steps = self.step_batch_size_schedule is not None
        return to_entries(self.plan.ramp.thresholds) if has_steps else None

    @property
    def stage(self) -> StagePlan:
        """The largest stage, on all the nodes if the run ends before the largest batch."""
        plan = self.plan
        stage = max(plan.stages, key=lambda stage: stage.global_batch_size)
        if plan.ramp.decreased or stage.global_batch_size >= max(plan.ramp.scheduled_sizes()):
            return stage
        nodes = plan.fleet.num_nodes
        return replace(
            stage,
            num_nodes=nodes,
            world_size=nodes * plan.fleet.devices,
            data_parallel_size=plan.fleet.data_parallel_size(nodes),
        )

    @property
    def micro_batch_size(self) -> int:
        """The largest micro batch that divides those of all stages, for systems that have one."""
        return gcd(*(stage.micro_batch_size for stage in self.plan.stages))

    def values(self) -> dict[str, object]:
        """Returns the batch by our keys, for systems with one micro batch."""
        plan, parallel = self.plan, self.plan.fleet.parallel
        return {
            MICRO_KEY: self.micro_batch_size,
            GLOBAL_KEY: plan.global_batch_size,
            RAMP_KEY: self.ramp,
            DECREASE_KEY: bool(plan.ramp.decreased) or None,
            "data.sequence_length": plan.sequence_length,
            "parallel.tensor_parallel_size": parallel.tensor,
            "parallel.pipeline_parallel_size": parallel.pipeline,
            "parallel.context_parallel_size": parallel.context,
            "trainer.num_nodes": self.stage.num_nodes,
            "trainer.devices": plan.fleet.devices,
            "trainer.max_steps": plan.steps,
            "trainer.max_samples": plan.samples,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Translation:
    """A batch in another system's words.

    Attributes:
        unsaid: differences that these words cannot express, one sentence each.
    """

    words: tuple[str, ...]
    unsaid: tuple[str, ...] = ()

    def __str__(self) -> str:
        return shlex.join(self.words)


def to_assignments(values: Mapping[str, object]) -> tuple[str, ...]:
    """Returns `name=value` words, without the values that are None."""
    return tuple(f"{name}={shown(value)}" for name, value in values.items() if value is not None)


def to_flags(values: Mapping[str, object]) -> tuple[str, ...]:
    """Returns `--name value` words, without the values that are None. A true one is `--name`."""
    words: list[str] = []
    for name, value in values.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not None:
            words += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    return tuple(words)


def differences(
    source: Source,
    system: str,
    *,
    semantics: str = "megatron",
    has_steps: bool = False,
    has_micro_batches: bool = False,
    decreases: bool = False,
) -> tuple[str, ...]:
    """Returns what a system's words cannot express, one sentence each.

    Args:
        has_micro_batches: its stages may have different micro batches.
        decreases: it can decrease batches to fit one number of nodes.
    """
    plan = source.plan
    sizes = sorted({stage.micro_batch_size for stage in plan.stages})
    found = []
    if source.steps is not None and not has_steps:
        found.append(f"{system} has no step schedule; in samples it is {source.steps}")
    if source.ramp is not None and plan.semantics != semantics:
        found.append(
            f"{system} ramps by {semantics} semantics, so its stages begin at other samples"
        )
    if len(sizes) > 1 and not has_micro_batches:
        found.append(
            f"{system} has one micro batch, here {source.micro_batch_size};"
            f" these stages have {sizes[0]} to {sizes[-1]}"
        )
    if plan.ramp.decreased and not decreases:
        found.append(f"{system} cannot decrease batches that do not fit")
    elif plan.ramp.decreased and any(
        stage.num_nodes != plan.fleet.num_nodes for stage in plan.stages
    ):
        found.append(
            f"{system} decreases a batch to fit all the GPUs of a job;"
            " here each stage has its own nodes"
        )
    return tuple(found)


@dataclass(frozen=True, kw_only=True, slots=True)
class System:
    """Another system: what its words mean here, and how a plan is written for it.

    Attributes:
        spellings: our key for each word that means exactly one of our keys.
        combined: the words whose meaning depends on other settings.
        decides: our key for each combined word that can decide one, alone or with others.
        checks: functions that refuse words in layers, before any are translated.
        settles: functions that give our keys what words in layers mean, with notes. They are called
            in turn.
        files: how its files of settings are read; None if they are not.
        write: returns a plan in its words; None if it has no words for a plan.
        refused: why each other word is refused, and what to do instead: a key that takes the same
            value, or prose.
        derived: meaning of each number that it derives and nobody sets, and the keys to set
            instead.
        remarks: facts about spellings that the descriptions of their keys do not give.
    """

    spellings: Mapping[str, str] = field(default_factory=dict)
    combined: Mapping[str, CombinedWord] = field(default_factory=dict)
    decides: Mapping[str, str] = field(default_factory=dict)
    checks: tuple[Callable[[Any], None], ...] = ()
    settles: tuple[Callable[[Any], tuple[Any, tuple[str, ...]]], ...] = ()
    files: FileFormat | None = None
    write: Callable[[Source], Translation] | None = None
    refused: Mapping[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    derived: Mapping[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    remarks: Mapping[str, str] = field(default_factory=dict)
