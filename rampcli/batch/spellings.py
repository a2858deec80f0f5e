"""Who else's names reach our keys. A spelling is an alias: it is resolved once, into the canonical key, and goes no further."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rampcli.errors import UsageError

SPELLINGS: dict[str, str] = {
    # NeMo 2: the data module holds both batch sizes.
    "data.global_batch_size": "model.global_batch_size",
    # NeMo 1: the model holds both.
    "model.micro_batch_size": "data.micro_batch_size",
    "model.tensor_model_parallel_size": "parallel.tensor_parallel_size",
    "model.pipeline_model_parallel_size": "parallel.pipeline_parallel_size",
    "model.context_parallel_size": "parallel.context_parallel_size",
    # NeMo 2: MegatronStrategy.
    "trainer.strategy.tensor_model_parallel_size": "parallel.tensor_parallel_size",
    "trainer.strategy.pipeline_model_parallel_size": "parallel.pipeline_parallel_size",
    "trainer.strategy.context_parallel_size": "parallel.context_parallel_size",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """A value and how near to the user it was set: a higher layer wins over a lower one."""

    value: Any
    layer: int


def fold_spellings(given: Mapping[str, Given]) -> dict[str, str]:
    """Which spelling speaks for each canonical key: `{canonical: winning key}`, for the keys that an alias speaks for.

    Args:
        given: canonical keys and spellings by dotted key; a spelling that was not used has the value None.

    Raises:
        UsageError: two spellings of one number, set equally near to the user, differ; the message names both.
    """
    winners: dict[str, str] = {}
    for canonical in dict.fromkeys(SPELLINGS.values()):
        used = [key for key, home in SPELLINGS.items() if home == canonical and given[key].value is not None]
        nearest = max(given[key].layer for key in (canonical, *used))
        rivals = [key for key in (canonical, *used) if given[key].layer == nearest]
        for one, other in pairwise(rivals):
            if given[one].value != given[other].value:
                raise UsageError(
                    f"{other}={given[other].value} and {one}={given[one].value} are two spellings of one number and differ",
                    keys=(other, one),
                    remedy="one of them",
                )
        if canonical not in rivals:
            winners[canonical] = rivals[0]
    return winners
