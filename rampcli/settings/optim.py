"""The settings of the optimiser and of the learning rate."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from rampcli.schedule.couplings import BETA2_COUPLINGS, WEIGHT_DECAY_COUPLINGS
from rampcli.schedule.learning_rate import BATCH_COUPLINGS, DECAY_STYLES
from rampcli.settings.facts import (
    COST,
    LEARNING,
    RATE,
    SAME_STATE,
    SPEED,
    TENSORS,
    any_phase,
    whole_run,
)
from rampcli.settings.fields import Extensible, setting, with_choices
from rampcli.settings.optimizers import OPTIMIZERS


@dataclass(kw_only=True, slots=True)
class OptimConfig(Extensible):
    """The optimiser and the learning rate. At most one of the two warm-ups is set."""

    of_extensions: ClassVar = whole_run(LEARNING | COST, SAME_STATE)
    optimizer: str = setting(
        "adamw",
        "Optimiser. `muon`: Muon for the layers' matrices, scaled to AdamW's learning rate, and"
        " AdamW for the rest.",
        whole_run(TENSORS | COST, SAME_STATE),
        choices=OPTIMIZERS,
        extensible=True,
    )
    lr: float = setting(1e-3, "Highest learning rate.", any_phase(RATE), at_least=0)
    min_lr: float = setting(
        0.0, "Learning rate at the end of the decay.", any_phase(RATE), at_least=0
    )
    warmup_samples: int | None = setting(
        None,
        "Length of the linear warm-up in samples. `null`: not set.",
        any_phase(RATE),
        unit="samples",
        at_least=0,
    )
    warmup_steps: int | None = setting(
        None,
        "Length of the linear warm-up in steps; the plan converts it to samples. `null`: not set.",
        any_phase(RATE),
        unit="optimiser steps",
        at_least=0,
    )
    weight_decay: float = setting(
        0.1,
        "Weight decay of matrices and embeddings; other parameters have none.",
        any_phase(LEARNING),
        at_least=0,
    )
    beta1: float = setting(
        0.9, "AdamW's first decay rate.", any_phase(LEARNING), at_least=0, below=1
    )
    beta2: float = setting(
        0.95, "AdamW's second decay rate.", any_phase(LEARNING), at_least=0, below=1
    )
    eps: float = setting(1e-8, "AdamW's epsilon.", any_phase(LEARNING), above=0)
    muon_momentum: float = setting(
        0.95, "Muon's momentum.", any_phase(LEARNING), at_least=0, below=1
    )
    muon_iterations: int = setting(
        5,
        "Newton-Schulz iterations of Muon. Fewer take less time, orthogonalise less exactly and"
        " make smaller steps.",
        whole_run(LEARNING | SPEED, SAME_STATE),
        unit="iterations",
        at_least=1,
        at_most=100,
    )
    skip_step_sigma: float | None = setting(
        None,
        "Skip a step whose loss or gradient norm is more than this many standard deviations above"
        " the mean of the last 128 steps. `null`: skip none.",
        any_phase(LEARNING | SPEED),
        above=0,
    )


@dataclass(kw_only=True, slots=True)
class ScheduleConfig(Extensible):
    """How the learning rate decays over the samples, after a linear warm-up to `optim.lr`."""

    of_extensions: ClassVar = any_phase(RATE)
    decay_style: str = setting(
        "cosine",
        with_choices("Shape of the decay.", DECAY_STYLES),
        any_phase(RATE),
        choices=DECAY_STYLES,
        extensible=True,
    )
    begin: Literal["continue", "restart"] | None = setting(
        None,
        "How a phase's own schedule begins. `continue`: at the rate at which the phase before it"
        " ended; a warm-up of the phase leads from there to `optim.lr`. `restart`: at `optim.lr`,"
        " or at 0 with a warm-up of the phase. `null`: `restart` if the phase sets `optim.lr`, else"
        " `continue`.",
        any_phase(RATE),
        example="restart",
    )
    wsd_decay_samples: int | None = setting(
        None,
        "Length of the final decay of `wsd`. `null`: the last tenth of the run.",
        any_phase(RATE),
        unit="samples",
        at_least=1,
    )
    batch_coupling: str | float = setting(
        "none",
        with_choices(
            "How a batch below the largest scales the learning rate, where r is the batch divided"
            " by the largest. A number e: by r to the power of e.",
            BATCH_COUPLINGS,
        ),
        any_phase(LEARNING),
        choices=BATCH_COUPLINGS,
        at_least=0,
        at_most=2,
    )
    lr_factors: list[float] | None = setting(
        None,
        "Factor of the learning rate in each stage of the batch schedule, in order, in place of"
        " `schedule.batch_coupling`. `null`: the coupling.",
        any_phase(LEARNING),
        # Values that are coupled to a factor in this range stay finite.
        at_least=1e-3,
        at_most=1000,
    )
    beta2_coupling: str = setting(
        "none",
        with_choices(
            "How `optim.beta2` follows the batch, where r is the batch divided by the largest.",
            BETA2_COUPLINGS,
        ),
        any_phase(LEARNING),
        choices=BETA2_COUPLINGS,
    )
    weight_decay_coupling: str = setting(
        "none",
        with_choices(
            "How `optim.weight_decay` follows the batch, where r is the batch divided by the"
            " largest.",
            WEIGHT_DECAY_COUPLINGS,
        ),
        any_phase(LEARNING),
        choices=WEIGHT_DECAY_COUPLINGS,
    )
