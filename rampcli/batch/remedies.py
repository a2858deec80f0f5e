"""Finds the smallest changes that make every batch size of a schedule fit its nodes."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from rampcli.batch.division import divisors
from rampcli.batch.layout import Layout
from rampcli.batch.micro_batch import UNLIMITED
from rampcli.batch.node_policies import NODE_POLICIES, POLICY_KEY
from rampcli.batch.plan import NUM_NODES_KEY
from rampcli.batch.ramp import RAMP_KEY
from rampcli.errors import Assignments, set_to

MOST_SCHEDULED = 10_000
"""Batch sizes to schedule while searching for one remedy, so that it takes less than a second."""


def suggest_changes(sizes: Sequence[int], layout: Layout) -> Iterator[Assignments]:
    """Yields the smallest change of each kind after which every batch size fits.

    The kinds are the micro batch, the increment of a ramp, the number of nodes and the node policy.

    Args:
        sizes: batch sizes of the schedule, in ascending order.
        layout: what they do not fit.
    """
    tries = MOST_SCHEDULED // len(sizes)
    rule = layout.micro_batch_rule
    smaller = range(rule.size - 1, 0, -1) if rule.size < UNLIMITED else ()
    for micro in islice(smaller, tries):
        if replace(layout, micro_batch_rule=replace(rule, size=micro)).fits(sizes):
            yield rule.unit.set_micro_batch(micro)
            break
    if layout.ramp is not None:
        yield from _suggest_increment(layout.ramp, sizes[-1], layout)
    for nodes in islice(_near(layout.fleet.num_nodes), tries):
        if replace(layout, fleet=replace(layout.fleet, num_nodes=nodes)).fits(sizes):
            yield set_to(NUM_NODES_KEY, nodes)
            break
    for policy in NODE_POLICIES.values():
        if policy is not layout.policy and replace(layout, policy=policy).fits(sizes):
            yield set_to(POLICY_KEY, policy.name)
            break


def _suggest_increment(ramp: Sequence[int], target: int, layout: Layout) -> Iterator[Assignments]:
    start, increment, samples = ramp
    others = [
        other for other in divisors(target - start, most=target - start) if other != increment
    ]
    nearest = sorted(others, key=lambda other: abs(other - increment))
    ramps = ((other, range(start, target + 1, other)) for other in nearest)
    for other, sizes in _affordable(ramps):
        if layout.fits(sizes):
            yield set_to(RAMP_KEY, [start, other, samples])
            return


def suggest_targets(sizes: Sequence[int], layout: Layout) -> Iterator[Assignments]:
    """Yields the nearest targets of a ramp, below and above, with which every batch size fits.

    The arguments are those of `suggest_changes`.
    """
    assert layout.ramp is not None
    start, increment, _ = layout.ramp
    below = range(sizes[-1] - increment, start, -increment)
    above = range(sizes[-1] + increment, 2 * sizes[-1] + 1, increment)
    found: list[int] = []
    for targets in (below, above):
        ramps = ((target, range(start, target + 1, increment)) for target in targets)
        fitting = (target for target, others in _affordable(ramps) if layout.fits(others))
        found += islice(fitting, 1)
    if found:
        yield set_to(layout.micro_batch_rule.unit.global_key, *found)


def _affordable(ramps: Iterable[tuple[int, range]]) -> Iterator[tuple[int, range]]:
    """Yields ramps as long as their batch sizes together do not exceed `MOST_SCHEDULED`."""
    scheduled = 0
    for changed, sizes in ramps:
        scheduled += len(sizes)
        if scheduled > MOST_SCHEDULED:
            return
        yield changed, sizes


def _near(nodes: int) -> Iterator[int]:
    """Yields other numbers of nodes up to twice as many, the nearest first."""
    for distance in range(1, nodes + 1):
        yield from (n for n in (nodes - distance, nodes + distance) if n > 0)
