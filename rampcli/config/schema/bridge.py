"""Sections of Megatron Bridge. Their fields are spellings only."""

from dataclasses import dataclass

from rampcli.config.fields import spelling


@dataclass(kw_only=True, slots=True)
class TrainSpellings:
    """Megatron Bridge's `train`."""

    micro_batch_size: int | None = spelling()
    global_batch_size: int | None = spelling()
    rampup_batch_size: list[int] | None = spelling()
    step_batch_size_schedule: str | None = spelling()
    decrease_batch_size_if_needed: bool | None = spelling()
    train_iters: int | None = spelling()
    train_samples: int | None = spelling()


@dataclass(kw_only=True, slots=True)
class DatasetSpellings:
    """Megatron Bridge's `dataset`."""

    seq_length: int | None = spelling()
    sequence_length: int | None = spelling()


@dataclass(kw_only=True, slots=True)
class SchedulerSpellings:
    """Megatron Bridge's `scheduler`."""

    lr_warmup_iters: int | None = spelling()
    lr_warmup_samples: int | None = spelling()


@dataclass(kw_only=True, slots=True)
class OptimizerSpellings:
    """Megatron Bridge's `optimizer`."""

    lr: float | None = spelling()
    min_lr: float | None = spelling()
