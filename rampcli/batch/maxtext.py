"""MaxText's batch: sizes per device, batches to load and to train on, pipeline microbatches.

Numbers follow MaxText's `types.py` and `rampup_batch.py`, except that a fraction which MaxText truncates is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import gcd
from typing import Any

from rampcli.batch.division import nearest_multiples
from rampcli.batch.plan import ACCUMULATE_KEY, GLOBAL_KEY, MICRO_KEY
from rampcli.batch.ramp import RAMP_KEY, SEMANTICS_KEY
from rampcli.errors import UsageError

PER_DEVICE = "per_device_batch_size"
ENABLE = "enable_rampup_batch_size"
START = "per_device_batch_size_start"
INCREMENT = "per_device_batch_size_increment"
RAMP_SAMPLES = "global_rampup_samples"
RAMP_WORDS = (START, INCREMENT, RAMP_SAMPLES)
WORDS = (PER_DEVICE, ENABLE, *RAMP_WORDS)
"""MaxText's words that count per device, or belong to those that do; the others are plain spellings (`rampcli.batch.spellings`)."""

ACCUMULATION_WORD = "gradient_accumulation_steps"
EXPANSION_KEY = "data.expansion_factor_real_data"
PIPELINE_KEY = "parallel.num_pipeline_microbatches"
STAGES_KEY = "parallel.pipeline_parallel_size"
FLEET_KEYS = ("trainer.num_nodes", "trainer.devices")
SUGGESTED = (MICRO_KEY, SEMANTICS_KEY, "rampup.node_policy", PIPELINE_KEY)
"""What these words only suggest: said outright, a setting of these holds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedBatch:
    """What one optimiser step loads and what it trains on, in samples (MaxText's `global_batch_size_to_load` and `..._to_train_on`)."""

    global_batch_to_load: int
    global_batch_to_train: int
    micro_batch_to_train: int

    @classmethod
    def of(
        cls,
        *,
        per_device_batch_size: Fraction,
        expansion_factor: Fraction | None,
        num_devices: int,
        gradient_accumulation_steps: int = 1,
    ) -> "LoadedBatch":
        """Batches to load and to train on.

        Args:
            per_device_batch_size: samples per device per forward/backward; below 1, data are loaded as if it were 1.
            expansion_factor: more than 1: one host in so many reads, for all; below 1: a larger job's data on fewer hosts.
            num_devices: all of them.
            gradient_accumulation_steps: forward/backward passes per optimiser step.

        Raises:
            UsageError: a batch would not be whole.
        """
        expansion = (
            expansion_factor
            if expansion_factor is not None and expansion_factor > 0
            else Fraction(1)
        )
        train = num_devices * per_device_batch_size
        load = num_devices * expansion * max(per_device_batch_size, Fraction(1))
        _check_whole(PER_DEVICE, per_device_batch_size, train, num_devices)
        if load.denominator > 1:
            raise UsageError(
                f"{EXPANSION_KEY}={_decimal(expansion)} x {_decimal(load / expansion)} samples is {_decimal(load)}, which is not whole",
                keys=(EXPANSION_KEY, *FLEET_KEYS),
                remedy=f"{EXPANSION_KEY}=1",
            )
        return cls(
            global_batch_to_load=int(load) * gradient_accumulation_steps,
            global_batch_to_train=int(train) * gradient_accumulation_steps,
            micro_batch_to_train=int(train),
        )


def loading_hosts(num_nodes: int, expansion_factor: Fraction | None) -> int:
    """Hosts that read data, of so many.

    Raises:
        UsageError: with an expansion factor above 1, the hosts do not divide by it.
    """
    if expansion_factor is None or expansion_factor <= 1:
        return num_nodes
    hosts = num_nodes / expansion_factor
    if hosts.denominator > 1:
        raise UsageError(
            f"{EXPANSION_KEY}={_decimal(expansion_factor)} lets one host in {_decimal(expansion_factor)} read,"
            f" and {num_nodes} node{'s do' if num_nodes > 1 else ' does'} not divide by it",
            keys=(EXPANSION_KEY, "trainer.num_nodes"),
            remedy=f"{EXPANSION_KEY}={max(f for f in range(1, num_nodes + 1) if num_nodes % f == 0 and f <= expansion_factor)}",
        )
    return int(hosts)


def reading_hosts(num_nodes: int, expansion_factor: float | None) -> list[int]:
    """The host that reads for each host: itself, or the first of its group where one reads for several.

    Raises:
        UsageError: with an expansion factor above 1, the hosts do not divide by it.
    """
    readers = loading_hosts(
        num_nodes, None if expansion_factor is None else Fraction(str(expansion_factor))
    )
    groups = [host * readers // num_nodes for host in range(num_nodes)]
    return [groups.index(group) for group in groups]


def check_pipeline(*, num_pipeline_microbatches: int | None, stages: int, num_layers: int) -> None:
    """Check a pipeline's arithmetic: layers over stages, and microbatches that fill it.

    Raises:
        UsageError: something does not divide.
    """
    if num_layers % stages:
        raise UsageError(
            f"model.num_layers={num_layers} does not divide into {STAGES_KEY}={stages}",
            keys=("model.num_layers", STAGES_KEY),
            remedy=f"{STAGES_KEY}={max(s for s in range(1, stages) if num_layers % s == 0)}",
        )
    if num_pipeline_microbatches is None:
        return
    if stages == 1:
        raise UsageError(
            f"{PIPELINE_KEY}={num_pipeline_microbatches}, and {STAGES_KEY}=1: there is no pipeline",
            keys=(PIPELINE_KEY, STAGES_KEY),
            remedy=f"{PIPELINE_KEY}=null",
        )
    if num_pipeline_microbatches % stages:
        offered = " or ".join(map(str, nearest_multiples(num_pipeline_microbatches, stages)))
        raise UsageError(
            f"{PIPELINE_KEY}={num_pipeline_microbatches} is not a multiple of {STAGES_KEY}={stages}",
            keys=(PIPELINE_KEY, STAGES_KEY),
            remedy=f"{PIPELINE_KEY}={offered}",
        )


def translate(
    words: Mapping[str, Any],
    *,
    num_devices: int,
    model_parallel_size: int,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """What MaxText's words mean in our settings, by canonical key.

    Per device means per device of all: with the model split over `m` of them, a data-parallel rank has `m` times as much. A ramp in these
    words runs on all devices throughout, as MaxText's does; the micro batch is the largest that divides every batch of it.

    Args:
        words: those of `WORDS` that were given; None where not.
        num_devices: all of them.
        model_parallel_size: devices that work together on a sample.
        settings: the canonical settings beside them.

    Raises:
        UsageError: a word is missing, or a batch would not be whole.
    """
    if num_devices < 1 or num_devices % max(
        1, model_parallel_size
    ):  # the plan refuses such a fleet, and by its own keys
        return {}
    per_device, accumulate = words.get(PER_DEVICE), settings[ACCUMULATE_KEY]
    meant: dict[str, Any] = {}
    target = settings[GLOBAL_KEY]
    if per_device is not None:
        target = _samples(PER_DEVICE, per_device, num_devices, model_parallel_size) * (
            accumulate or 1
        )
        meant[GLOBAL_KEY] = target
    ramp_words = [word for word in RAMP_WORDS if words.get(word) is not None]
    if words.get(ENABLE) is None and ramp_words:
        raise UsageError(
            f"{ramp_words[0]}={words[ramp_words[0]]} without {ENABLE}: MaxText would pass over it",
            keys=(ramp_words[0], ENABLE),
            remedy=f"{ENABLE}=true",
        )
    if words.get(ENABLE):
        ranks = num_devices // model_parallel_size
        return meant | _translate_ramp(
            words, target, num_devices=num_devices, data_ranks=ranks, settings=settings
        )
    if words.get(ENABLE) is False:
        meant[RAMP_KEY] = None
    if per_device is not None:
        per_rank = _fraction(per_device) * model_parallel_size
        if per_rank.denominator > 1:
            raise UsageError(
                f"{PER_DEVICE}={per_device} x {model_parallel_size} model-parallel devices is {_decimal(per_rank)} samples"
                " per data-parallel rank, which is not whole",
                keys=(
                    PER_DEVICE,
                    "parallel.tensor_parallel_size",
                    STAGES_KEY,
                    "parallel.context_parallel_size",
                ),
                remedy=f"{PER_DEVICE}={_nearest_per_device(per_rank, model_parallel_size)}",
            )
        meant[MICRO_KEY] = int(per_rank)
        if settings[STAGES_KEY] > 1:
            meant[PIPELINE_KEY] = settings[STAGES_KEY]
    return meant


def _translate_ramp(
    words: Mapping[str, Any],
    target: int | None,
    *,
    num_devices: int,
    data_ranks: int,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    examples = {PER_DEVICE: 12.0, START: 4.0, INCREMENT: 2.0, RAMP_SAMPLES: 500}
    wanted = [word for word in RAMP_WORDS if words.get(word) is None] + (
        [PER_DEVICE] if target is None else []
    )
    if wanted:
        raise UsageError(
            f"{ENABLE}=true, and {' and '.join(wanted)} {'is' if len(wanted) == 1 else 'are'} not given",
            keys=(ENABLE, *wanted),
            remedy=" ".join(f"{word}={examples[word]}" for word in wanted)
            + (" (MaxText's default)" if len(wanted) == 1 else " (MaxText's defaults)"),
        )
    if words[RAMP_SAMPLES] < 0:
        raise UsageError(
            f"{RAMP_SAMPLES}={words[RAMP_SAMPLES]} is below 0",
            keys=(RAMP_SAMPLES,),
            remedy=f"{RAMP_SAMPLES}=500",
        )
    if (settings[ACCUMULATE_KEY] or 1) > 1:
        raise UsageError(
            f"{ENABLE}=true counts without accumulation, and {ACCUMULATE_KEY}={settings[ACCUMULATE_KEY]}",
            keys=(ENABLE, ACCUMULATE_KEY),
            remedy=f"{ACCUMULATE_KEY}=null, or {RAMP_KEY} with rampup.semantics=maxtext",
        )
    start, increment = (
        _samples(word, words[word], num_devices, num_devices // data_ranks)
        for word in (START, INCREMENT)
    )
    unit = gcd(start, increment)
    if unit % data_ranks:
        raise UsageError(
            f"the ramp from {start} in steps of {increment} samples is not whole on each of {data_ranks} data-parallel ranks",
            keys=(START, INCREMENT, *FLEET_KEYS),
            remedy=f"{START} and {INCREMENT} in multiples of {_decimal(Fraction(data_ranks, num_devices))}",
        )
    return {
        RAMP_KEY: [start, increment, words[RAMP_SAMPLES]],
        "rampup.semantics": "maxtext",
        "rampup.node_policy": "fixed",
        MICRO_KEY: unit // data_ranks,
        ACCUMULATE_KEY: None,  # MaxText takes a step's samples in one go, whatever their number
    }


def _samples(word: str, per_device: float, num_devices: int, model_parallel_size: int) -> int:
    samples = num_devices * _fraction(per_device)
    _check_whole(word, _fraction(per_device), samples, num_devices, model_parallel_size)
    return int(samples)


def _check_whole(
    word: str,
    per_device: Fraction,
    samples: Fraction,
    num_devices: int,
    model_parallel_size: int = 1,
) -> None:
    if samples <= 0 or samples.denominator > 1:
        what = (
            "is not above zero"
            if samples <= 0
            else f"x {num_devices} devices is {_decimal(samples)} samples, which is not whole"
        )
        raise UsageError(
            f"{word}={_decimal(per_device)} {what}",
            keys=(word, *FLEET_KEYS),
            remedy=f"{word}={_nearest_per_device(per_device * model_parallel_size, model_parallel_size)}",
        )


def _nearest_per_device(per_rank: Fraction, model_parallel_size: int) -> str:
    """The per-device sizes next to it that are whole on every data-parallel rank, and can be written as a decimal."""
    below = max(1, int(per_rank))
    sizes = [
        Fraction(count, model_parallel_size)
        for count in (*range(below, 0, -1), *range(below + 1, below + 1 + model_parallel_size))
    ]
    exact = [size for size in sizes if _is_decimal(size)]
    lower, upper = (
        [s for s in exact if s * model_parallel_size <= below],
        [s for s in exact if s * model_parallel_size > below],
    )
    return " or ".join(_decimal(size) for size in lower[:1] + upper[:1])


def _fraction(number: float) -> Fraction:
    """The number as it was written: 0.1 is a tenth, not the nearest binary fraction."""
    return Fraction(str(number))


def _is_decimal(number: Fraction) -> bool:
    return Fraction(str(float(number))) == number


def _decimal(number: Fraction) -> str:
    if number.denominator == 1:
        return str(number.numerator)
    return str(float(number)) if _is_decimal(number) else str(number)
