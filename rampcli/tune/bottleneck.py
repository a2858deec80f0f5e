"""Names the bottlenecks of a step, and the settings that change them."""

from collections.abc import Callable
from dataclasses import dataclass

from rampcli.batch.plan import ACCUMULATE_KEY, GLOBAL_KEY, MICRO_KEY, SHARD_KEY
from rampcli.config.schema import Config
from rampcli.tune.diagnosis import (
    DATA,
    FIXED,
    GRADIENTS,
    NEIGHBOURS,
    THREADS,
    TOKENS,
    WAITING,
    WEIGHTS,
    Diagnosis,
    StepPart,
)

LEAST_SHARE = 0.1
"""A part of a step is a bottleneck if it certainly takes more than this share."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bottleneck:
    """A part of a step that takes much of its time, or `TOKENS` if no other part does.

    Attributes:
        message: its share, and what changes it.
    """

    what: str
    message: str


def bottlenecks(diagnosis: Diagnosis, config: Config) -> list[Bottleneck]:
    """Returns the parts that certainly take more than `LEAST_SHARE` of a step, largest first.

    Work that does not depend on the tokens comes last, because a part of it is always necessary.
    """
    parts = [*diagnosis.parts, *filter(None, [diagnosis.excess_threads])]
    large = [part for part in parts if part.low > LEAST_SHARE and part.what != TOKENS]
    large.sort(key=lambda part: (part.what == FIXED, -part.share))
    if large:
        return [Bottleneck(what=part.what, message=_message(part, config)) for part in large]
    return [Bottleneck(what=TOKENS, message=_no_bottleneck(diagnosis))]


def _no_bottleneck(diagnosis: Diagnosis) -> str:
    if not diagnosis.is_precise(spread=LEAST_SHARE):
        return (
            "no bottleneck was found, but times vary too much to exclude one: measure on an idle"
            " machine"
        )
    computing = sum(part.share for part in diagnosis.parts if part.what in (FIXED, TOKENS))
    return (
        f"computing takes {computing:.0%} of the step: no bottleneck outside the model"
        f"{' in what was measured' if diagnosis.not_measured else ''}"
    )


def _message(part: StepPart, config: Config) -> str:
    if part.what == THREADS:
        return (
            f"fewer threads are faster: {part.threads} would save {part.share:.0%} of the step:"
            f" OMP_NUM_THREADS={part.threads}"
        )
    return f"{part.what} takes {part.share:.0%} of the step: {REMEDIES[part.what](config)}"


def _of_gradients(config: Config) -> str:
    larger = f"raise {ACCUMULATE_KEY} with a larger {GLOBAL_KEY}, or raise {MICRO_KEY}"
    if config.trainer.accumulate_reduce == "each":
        return f"trainer.accumulate_reduce=last, or {larger}"
    return larger


REMEDIES: dict[str, Callable[[Config], str]] = {
    DATA: lambda _: (
        "`rampcli data build` makes files that are read fastest; or data.path on a"
        " faster disk, or more memory for the page cache"
    ),
    GRADIENTS: _of_gradients,
    WEIGHTS: lambda _: (
        f"a smaller {SHARD_KEY}, such as the devices of a node, or 1 for none; or raise {MICRO_KEY}"
    ),
    WAITING: lambda _: (
        "stop other programs on these hosts, or use fewer processes per host (trainer.devices)"
    ),
    NEIGHBOURS: lambda _: (
        "fewer processes per host (trainer.devices), or fewer threads each (OMP_NUM_THREADS)"
    ),
    FIXED: lambda _: f"a larger {MICRO_KEY}, which `rampcli tune` finds, or trainer.compile=true",
}
"""What changes the share of a part."""
