"""Published batch ramps, from conf/ramps.yaml, and the words of `rampcli plan` that plan them."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from rampcli.batch.position import STEPS_UNIT
from rampcli.batch.ramp import RampSchedule, RampStage
from rampcli.batch.step_schedule import from_step_schedule, threshold_unit
from rampcli.errors import RampcliError, UsageError, shown, typeable
from rampcli.files import bundled, plain_yaml
from rampcli.settings.data import DataConfig
from rampcli.settings.model import ModelConfig
from rampcli.settings.optim import OptimConfig
from rampcli.settings.optimizers import OPTIMIZERS
from rampcli.settings.trainer import TrainerConfig

MOST_RAMPS_BYTES = 100_000
RAMP_RECIPE = "llama3_tiny"
"""Recipe of a ramp whose model is not described. Its plan shows batches and steps only."""


class UnpublishedError(RampcliError):
    """The steps of a ramp are not published, so it cannot be planned."""

    exit_code = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedRamp:
    """A published batch ramp. The fields are those of conf/ramps.yaml, which describes them."""

    name: str
    model: str
    sequence_length: int | None
    source: str
    certainty: str
    optimizer: str
    rate: str | None = None
    schedule: str | None = None
    ramp: list[int] | None = None
    batch: int | None = None
    unpublished: str | None = None
    end: Mapping[str, Any] | None = None
    recipe: str | None = None
    settings: Mapping[str, Any] | None = None

    @property
    def sizes(self) -> RampSchedule | None:
        """The batch over samples, or None if its steps are not published."""
        if self.unpublished is not None or self.sequence_length is None:
            return None
        if self.schedule is not None:
            return from_step_schedule(self.schedule, sequence_length=self.sequence_length)
        assert self.batch is not None
        return RampSchedule.from_rampup(self.ramp, global_batch_size=self.batch)

    @property
    def stages(self) -> tuple[RampStage, ...]:
        """The stages of the batch, in sequences, or none if its steps are not published."""
        return () if self.sizes is None else self.sizes.stages

    @property
    def known_optimizer(self) -> str | None:
        """The optimiser as a value of `optim.optimizer`, or None if it is not built in."""
        name = self.optimizer.lower()
        return name if name in OPTIMIZERS else None

    def at_length(self, sequence_length: int) -> "PublishedRamp":
        """Returns the ramp with samples of another length and as many tokens in each batch.

        The samples of a ramp-up are rounded down, as thresholds in tokens are.

        Raises:
            UsageError: a batch would not have whole samples.
        """
        if self.sequence_length in (None, sequence_length):
            return self
        assert self.sequence_length is not None
        old, new = self.sequence_length, sequence_length
        sizes = sorted({stage.global_batch_size for stage in self.stages})
        if sequence_length < 1 or any(size * old % new for size in sizes):
            near = sorted((old // 2, old, old * 2), key=lambda length: abs(length - new))
            fitting = [length for length in near if all(size * old % length == 0 for size in sizes)]
            raise UsageError(
                f"--sequence-length {new}: {sizes[0] * old:,} tokens, a batch of {self.name}, are"
                " not whole samples of this length",
                remedy=[f"--sequence-length {length}" for length in fitting[:2]]
                or f"--sequence-length {old}",
            )
        end = dict(self.end or {})
        if (samples := end.pop("max_samples", None)) is not None:
            end["max_tokens"] = samples * old
        changed = replace(self, sequence_length=new, end=end or None)
        if self.ramp is not None and self.batch is not None:
            ramp = [value * old // new for value in self.ramp]
            return replace(changed, ramp=ramp, batch=self.batch * old // new)
        assert self.schedule is not None
        unit = threshold_unit(self.schedule)
        if unit == STEPS_UNIT:
            starts = [stage.first_step for stage in self.stages]
        else:
            in_tokens = from_step_schedule(self.schedule, sequence_length=1)
            starts = [threshold.first_sample for threshold in in_tokens.thresholds]
        entries = " ".join(
            f"{start}:{stage.global_batch_size * old // new}"
            for start, stage in zip(starts, self.stages, strict=True)
        )
        return replace(changed, schedule=f"{unit}: {entries}")

    def words(self, *, nodes: int | None = None) -> list[str]:
        """Returns the arguments of `rampcli plan` that plan the ramp, quoted for a shell.

        Args:
            nodes: of the run, or None for those of the ramp's settings.
        """
        lengths = ("max_steps", "max_samples", "max_tokens")
        values: dict[str, Any] = {
            DataConfig.sequence_length: self.sequence_length,
            **(
                {ModelConfig.step_batch_size_schedule: self.schedule}
                if self.ramp is None
                else {
                    ModelConfig.rampup_batch_size: self.ramp,
                    ModelConfig.global_batch_size: self.batch,
                }
            ),
            **{
                f"trainer.{key}": value
                for key, value in (self.end or dict.fromkeys(lengths)).items()
            },
            DataConfig.micro_batch_size: 1,
            TrainerConfig.num_nodes: 1,
            TrainerConfig.devices: 8,
            **({OptimConfig.optimizer: self.known_optimizer} if self.known_optimizer else {}),
            **(self.settings or {}),
        }
        if nodes is not None:
            values[TrainerConfig.num_nodes] = nodes
        return [
            f"--factory {self.recipe or RAMP_RECIPE}",
            *(typeable(f"{key}={shown(value)}") for key, value in values.items()),
        ]


@cache
def published_ramps() -> dict[str, PublishedRamp]:
    """Returns the ramps of conf/ramps.yaml by name."""
    _, root = plain_yaml.read(bundled("conf") / "ramps.yaml", most_bytes=MOST_RAMPS_BYTES)
    return {
        name: PublishedRamp(name=name, **facts)
        for name, facts in plain_yaml.values_of(root).items()
    }


def published_ramp(name: str) -> PublishedRamp:
    """Returns a ramp by name.

    Raises:
        UsageError: there is no such ramp.
    """
    ramps = published_ramps()
    if name in ramps:
        return ramps[name]
    near = difflib.get_close_matches(name, ramps, n=3, cutoff=0.7)
    near += [one for one in ramps if name and name.lower() in one and one not in near]
    raise UsageError(
        f"there is no ramp {name}",
        remedy=" or ".join(f"rampcli ramps {one}" for one in near[:3]) or "rampcli ramps",
    )
