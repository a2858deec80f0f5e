"""Settings for dividing a run into stages, launching it and saving it."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from rampcli.batch.node_policies import NODE_POLICIES
from rampcli.batch.ramp import SEMANTICS
from rampcli.config.fields import setting, with_choices
from rampcli.launchers import LAUNCHERS, declarations

T = TypeVar("T")


@dataclass(kw_only=True, slots=True)
class RampupConfig:
    """How a ramp is read, and what happens between its stages."""

    semantics: str = setting(
        "megatron",
        "System whose rule turns `model.rampup_batch_size` into batch sizes.",
        choices=SEMANTICS,
    )
    at_boundary: Literal["restart", "continue"] = setting(
        "restart",
        "What happens between stages. `restart`: new processes start. `continue`: the same"
        " processes carry on if their number stays the same.",
        former={"stop": "restart"},
    )
    node_policy: str = setting(
        "nemo",
        "How the number of nodes of each batch size is chosen. `nemo`: as NeMo's launcher does."
        " `best`: in the least time. `fixed`: always `trainer.num_nodes`.",
        choices=NODE_POLICIES,
    )
    decrease_batch_size_if_needed: bool = setting(
        False,
        "Round a batch size that fits no number of nodes down to whole micro batches on every"
        " rank, instead of refusing it.",
    )
    micro_batch: Literal["fixed", "largest"] = setting(
        "fixed",
        "Micro batch of each batch size. `fixed`: `data.micro_batch_size`. `largest`: the largest"
        " one up to `data.micro_batch_size` that divides the batch on its nodes.",
    )
    efficiency: str | None = setting(
        None,
        "Measured throughput of one GPU by micro batch size and micro batches per rank and step,"
        " `'1x1:9000 1x4:11500 8x1:14000'`; or by the latter alone, `'1:9000 4:11500'`, for one"
        " micro batch size. `null`: the same for all.",
        unit="micro batch size x micro batches : tokens/s",
        example="1:9000 4:11500",
    )
    restart_s: float = setting(
        60.0,
        "Time to start the processes of a stage, for `best` and for the hours in a plan.",
        unit="seconds",
        at_least=0,
    )


@dataclass(kw_only=True, slots=True)
class ThroughputConfig:
    """Throughput of one GPU, for the hours in a plan.

    `rampup.efficiency` takes precedence, then the first of these that is set. These are for a GPU
    that does not wait for others of a pipeline; a plan adds that time.
    """

    samples_per_s_per_gpu: float | None = setting(
        None, "Throughput of one GPU. `null`: estimated from `mfu`.", unit="samples/s", above=0
    )
    mfu: float | None = setting(
        None,
        "Share of `trainer.peak_tflops` that training reaches. `null`: no estimate.",
        above=0,
        at_most=1,
    )


@dataclass(kw_only=True, slots=True)
class CheckpointConfig:
    """When checkpoints are saved, and how many are kept."""

    every_steps: int | None = setting(
        None,
        "Interval between checkpoints. Processes also save before they end: at a boundary with new"
        " processes, on a signal and at the end of the run. `null`: only then.",
        unit="optimiser steps",
        at_least=1,
    )
    keep_last: int = setting(2, "Number of checkpoints to keep.", unit="checkpoints", at_least=1)
    async_: bool = setting(
        False,
        "Continue training while a checkpoint is written. Needs memory on each host for a copy of"
        " what its processes save.",
    )


def with_launchers(schema: type[T]) -> type[T]:
    """Adds the section of each launcher to a class that becomes a dataclass."""
    for name, declaration in declarations().items():
        if (section := declaration.section) is not None:
            schema.__annotations__[name] = section
            setattr(schema, name, field(default_factory=section))
    return schema


@dataclass(kw_only=True, slots=True)
@with_launchers
class LaunchConfig:
    """How workers start, stop and resume."""

    launcher: str = setting(
        "local",
        with_choices("Where workers run.", declarations()),
        choices=LAUNCHERS,
    )
    max_restarts: int = setting(
        3, "Restarts of crashed workers in a stage, each from the last checkpoint.", at_least=0
    )
    backoff_s: float = setting(
        1.0,
        "Wait before the first restart. It doubles with each further one, up to a minute.",
        unit="seconds",
        at_least=0,
    )
    grace_s: float = setting(
        30.0,
        "Time that workers have to save when they are asked to stop. Then they are killed.",
        unit="seconds",
        above=0,
    )
    elastic: bool = setting(
        False,
        "With `local`: continue a stage on fewer nodes when one is lost, and on more when it"
        " returns.",
    )
    min_nodes: int = setting(
        1, "With `elastic`: the run waits while fewer nodes are left.", unit="nodes", at_least=1
    )

    if TYPE_CHECKING:

        def __getattr__(self, launcher: str) -> Any:
            """Returns the section of a launcher."""
