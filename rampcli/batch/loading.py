"""Batches to load, and the hosts that read them (`data.expansion_factor_real_data`).

The arithmetic is that of MaxText's `types.py`.
"""

from rampcli.batch.division import divisors
from rampcli.batch.plan import FLEET_KEYS, NUM_NODES_KEY
from rampcli.batch.quantities import as_written, decimal
from rampcli.errors import UsageError, set_to

EXPANSION_KEY = "data.expansion_factor_real_data"


def samples_to_load(
    global_batch_size: int, *, num_devices: int, passes: int, expansion_factor: float | None
) -> int:
    """Returns the samples that an optimiser step loads: `global_batch_size_to_load` of MaxText.

    A pass loads at least one sample per device.

    Args:
        global_batch_size: samples that the step trains on.
        passes: passes in which the step loads its samples.
        expansion_factor: above 1, hosts per reading host; below 1, MaxText loads fewer samples than
            it trains on. None, 0 and negative values mean 1.

    Raises:
        UsageError: the samples are not whole.
    """
    expansion = as_written(expansion_factor if expansion_factor and expansion_factor > 0 else 1)
    unexpanded = max(global_batch_size // passes, num_devices)
    load = expansion * unexpanded
    if load.denominator > 1:
        raise UsageError(
            f"{EXPANSION_KEY}={decimal(expansion)} x {unexpanded} samples"
            f" is {decimal(load)}, which is not whole",
            keys=(EXPANSION_KEY, *FLEET_KEYS),
            remedy=set_to(EXPANSION_KEY, 1),
        )
    return int(load) * passes


def count_readers(num_nodes: int, expansion_factor: float | None) -> int:
    """Returns how many of `num_nodes` hosts read data.

    Raises:
        UsageError: the expansion factor is above 1 and does not divide the hosts.
    """
    if expansion_factor is None or expansion_factor <= 1:
        return num_nodes
    hosts = num_nodes / as_written(expansion_factor)
    if hosts.denominator > 1:
        factor = decimal(as_written(expansion_factor))
        largest = divisors(num_nodes, most=int(expansion_factor))[-1]
        raise UsageError(
            f"{EXPANSION_KEY}={factor} lets one host in {factor} read, but"
            f" {NUM_NODES_KEY}={num_nodes} is not a multiple of {factor}",
            keys=(EXPANSION_KEY, NUM_NODES_KEY),
            remedy=set_to(EXPANSION_KEY, largest),
        )
    return int(hosts)


def reader_of_each_host(num_nodes: int, expansion_factor: float | None) -> list[int]:
    """Returns, for each host, the host that reads for it.

    This is the host itself, or the first of its group if one host reads for several.

    Raises:
        UsageError: the expansion factor is above 1 and does not divide the hosts.
    """
    readers = count_readers(num_nodes, expansion_factor)
    groups = [host * readers // num_nodes for host in range(num_nodes)]
    return [groups.index(group) for group in groups]
