"""The settings of a run, as mutable plain data, in files by subject.

Each setting has a description, a unit and a range; conf/ owns the numbers.
"""

from dataclasses import field
from typing import Any, Literal

from rampcli.settings.attributes import Traced
from rampcli.settings.average import AverageConfig
from rampcli.settings.data import DataConfig
from rampcli.settings.facts import NOTHING, SAMPLES, whole_run
from rampcli.settings.fields import Keyed, keyed, section, setting, settings_class
from rampcli.settings.launch import LaunchConfig
from rampcli.settings.model import ModelConfig
from rampcli.settings.optim import OptimConfig, ScheduleConfig
from rampcli.settings.parallel import ParallelConfig
from rampcli.settings.rampup import RampupConfig
from rampcli.settings.rl import RLConfig
from rampcli.settings.trainer import CheckpointConfig, LossConfig, ThroughputConfig, TrainerConfig
from rampcli.settings.watch import (
    GenerateConfig,
    LoggingConfig,
    NoiseScaleConfig,
    ProfileConfig,
)

__all__ = ["Config", "ModelConfig", "ParallelConfig"]


@keyed("")
@settings_class(kw_only=True)
class Config(Traced):
    """A run."""

    name: Keyed[str] = setting(
        "run", "Name of the run, and of its run directory.", whole_run(NOTHING)
    )
    run_dir: Keyed[str | None] = setting(
        None, "Run directory. `null`: `runs/NAME`.", whole_run(NOTHING)
    )
    seed: Keyed[int] = setting(
        1234,
        "Seed of the initial weights, of the order of samples and of `data.source=mock`.",
        whole_run(SAMPLES, "the order of the samples depends on it"),
        at_least=0,
        at_most=2**62,
    )
    resume: Keyed[Literal["auto", "never", "must"]] = setting(
        "auto",
        "Whether to resume from a checkpoint in the run directory. `auto`: if there is one."
        " `never`: refuse a run directory that has one. `must`: refuse one that has none.",
        whole_run(NOTHING),
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
    """Other systems' words whose meaning depends on other settings, as they were assigned."""
