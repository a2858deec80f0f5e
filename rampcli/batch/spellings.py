"""Who else's names reach our keys. A spelling is an alias: it is resolved once, into the canonical key, and goes no further."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rampcli.errors import Report, UsageError

SPELLINGS: dict[str, str] = {
    # NeMo 2: the data module holds the batch sizes.
    "data.global_batch_size": "model.global_batch_size",
    "data.rampup_batch_size": "model.rampup_batch_size",
    # NeMo 1: the model holds all.
    "model.micro_batch_size": "data.micro_batch_size",
    "model.tensor_model_parallel_size": "parallel.tensor_parallel_size",
    "model.pipeline_model_parallel_size": "parallel.pipeline_parallel_size",
    "model.context_parallel_size": "parallel.context_parallel_size",
    # NeMo 2: MegatronStrategy.
    "trainer.strategy.tensor_model_parallel_size": "parallel.tensor_parallel_size",
    "trainer.strategy.pipeline_model_parallel_size": "parallel.pipeline_parallel_size",
    "trainer.strategy.context_parallel_size": "parallel.context_parallel_size",
    # MaxText; its words that count per device are in rampcli.batch.maxtext.
    "gradient_accumulation_steps": "trainer.accumulate_grad_batches",
    "expansion_factor_real_data": "data.expansion_factor_real_data",
    "num_pipeline_microbatches": "parallel.num_pipeline_microbatches",
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
        UsageError: spellings of one number, set equally near to the user, differ; the message names both.
    """
    report = Report()
    winners: dict[str, str] = {}
    for canonical in dict.fromkeys(SPELLINGS.values()):
        used = [
            key
            for key, home in SPELLINGS.items()
            if home == canonical and given[key].value is not None
        ]
        nearest = max(given[key].layer for key in (canonical, *used))
        rivals = [key for key in (canonical, *used) if given[key].layer == nearest]
        for one, other in pairwise(rivals):
            with report.noting():
                check_same(other, given[other].value, one, given[one].value)
        if canonical not in rivals:
            winners[canonical] = rivals[0]
    report.close()
    return winners


def check_same(one: str, value: Any, other: str, other_value: Any) -> None:
    """Compare two spellings of one number.

    Raises:
        UsageError: they differ.
    """
    if value != other_value:
        message = (
            f"{one}={value} and {other}={other_value} are two spellings of one number and differ"
        )
        raise UsageError(message, keys=(one, other), remedy="one of them")
