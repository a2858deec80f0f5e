"""Batch sizes per device, as MaxText counts them. A fraction that MaxText truncates is refused."""

from fractions import Fraction

from rampcli.batch.plan import FLEET_KEYS
from rampcli.batch.quantities import decimal, is_decimal
from rampcli.errors import UsageError, set_to

PER_DEVICE = "per_device_batch_size"


def to_samples(
    word: str, per_device: Fraction, *, num_devices: int, model_parallel_size: int = 1
) -> int:
    """Returns the samples on all devices.

    Args:
        word: MaxText's name for the size, for the error message.
        model_parallel_size: devices that share one sample; suggested sizes are whole on them.

    Raises:
        UsageError: the size is not above zero, or the samples are not whole.
    """
    samples = num_devices * per_device
    if samples > 0 and samples.denominator == 1:
        return int(samples)
    problem = (
        "is not above zero"
        if samples <= 0
        else f"x {num_devices} devices is {decimal(samples)} samples, which is not whole"
    )
    sizes = nearest_per_device(per_device * model_parallel_size, model_parallel_size)
    raise UsageError(
        f"{word}={decimal(per_device)} {problem}",
        keys=(word, *FLEET_KEYS),
        remedy=set_to(word, *sizes),
    )


def nearest_per_device(per_rank: Fraction, model_parallel_size: int) -> list[str]:
    """Returns the nearest sizes per device, as decimals.

    They are whole on every data-parallel rank and can be written as decimals.

    Args:
        per_rank: samples per data-parallel rank.
        model_parallel_size: devices of a data-parallel rank.
    """
    below = max(1, int(per_rank))
    counts = (*range(below, 0, -1), *range(below + 1, below + 1 + model_parallel_size))
    sizes = [Fraction(count, model_parallel_size) for count in counts]
    exact = [size for size in sizes if is_decimal(size)]
    lower = [size for size in exact if size * model_parallel_size <= below]
    upper = [size for size in exact if size * model_parallel_size > below]
    return [decimal(size) for size in lower[:1] + upper[:1]]
