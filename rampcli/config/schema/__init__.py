"""The settings of a run, as mutable plain data, in one file per section.

Each setting has a description, a unit and a range; conf/ owns the numbers.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from rampcli.config.attributes import Traced
from rampcli.config.fields import section, setting
from rampcli.config.schema.average import AverageConfig
from rampcli.config.schema.checkpoint import CheckpointConfig
from rampcli.config.schema.data import DataConfig
from rampcli.config.schema.launch import LaunchConfig
from rampcli.config.schema.loss import LossConfig
from rampcli.config.schema.model import ModelConfig
from rampcli.config.schema.optim import OptimConfig, ScheduleConfig
from rampcli.config.schema.rampup import RampupConfig
from rampcli.config.schema.rl import RLConfig
from rampcli.config.schema.throughput import ThroughputConfig
from rampcli.config.schema.trainer import ParallelConfig, TrainerConfig
from rampcli.config.schema.watch import (
    GenerateConfig,
    LoggingConfig,
    NoiseScaleConfig,
    ProfileConfig,
)

__all__ = ["Config", "ModelConfig", "ParallelConfig"]


@dataclass(kw_only=True, slots=True)
class Config(Traced):
    """A run."""

    name: str = setting("run", "Name of the run, and of its run directory.")
    run_dir: str | None = setting(None, "Run directory. `null`: `runs/NAME`.")
    seed: int = setting(
        1234,
        "Seed of the initial weights, of the order of samples and of `data.source=mock`.",
        at_least=0,
        at_most=2**62,
    )
    resume: Literal["auto", "never", "must"] = setting(
        "auto",
        "Whether to resume from a checkpoint in the run directory. `auto`: if there is one."
        " `never`: refuse a run directory that has one. `must`: refuse one that has none.",
    )
    model: ModelConfig = section(ModelConfig)
    data: DataConfig = section(DataConfig)
    trainer: TrainerConfig = section(TrainerConfig)
    parallel: ParallelConfig = section(ParallelConfig)
    loss: LossConfig = section(LossConfig)
    optim: OptimConfig = section(OptimConfig)
    schedule: ScheduleConfig = section(ScheduleConfig)
    rl: RLConfig = section(RLConfig)
    rampup: RampupConfig = section(RampupConfig)
    throughput: ThroughputConfig = section(ThroughputConfig)
    checkpoint: CheckpointConfig = section(CheckpointConfig)
    average: AverageConfig = section(AverageConfig)
    launch: LaunchConfig = section(LaunchConfig)
    logging: LoggingConfig = section(LoggingConfig)
    generate: GenerateConfig = section(GenerateConfig)
    noise_scale: NoiseScaleConfig = section(NoiseScaleConfig)
    profile: ProfileConfig = section(ProfileConfig)
    phases: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Settings of each phase by its name, see `rampcli.config.phases`. A run may have none, and a
    recipe may set a list, in which each phase has its `name`."""
    words: dict[str, Any] = field(default_factory=dict)
    """MaxText's words whose meaning depends on other settings, as they were assigned."""
