"""Who else's names reach our keys. A spelling is an alias: it is resolved once, into the canonical key, and goes no further."""

from collections.abc import Mapping
from dataclasses import dataclass
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
    for spelling, canonical in SPELLINGS.items():
        if given[spelling].value is None:
            continue
        rival = winners.get(canonical, canonical)
        if given[spelling].layer == given[rival].layer and given[spelling].value != given[rival].value:
            raise UsageError(
                f"{spelling}={given[spelling].value} and {rival}={given[rival].value} are two spellings of one number and differ",
                keys=(spelling, rival),
                remedy="one of them",
            )
        if given[spelling].layer >= given[rival].layer:
            winners[canonical] = spelling
    return winners
