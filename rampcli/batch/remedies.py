"""Stages that do not fit their nodes: which, why, and the smallest changes that make them fit."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from rampcli.batch.division import divisors
from rampcli.batch.nodes import POLICY_KEY, Clock, Fleet, Work, schedule_nodes
from rampcli.batch.plan import GLOBAL_KEY, MICRO_KEY
from rampcli.batch.ramp import RAMP_KEY, RampStage
from rampcli.batch.step_schedule import SCHEDULE_KEY
from rampcli.batch.throughput import Throughput
from rampcli.errors import UsageError

MOST_SCHEDULED = 10_000
"""Batch sizes that are scheduled in the search for one remedy: an answer has to come within a second."""
INDIFFERENT = Clock(
    throughput=Throughput(points=((1, 1.0),), basis=""),
    sequence_length=1,
    restart_s=0.0,
    restarts_always=True,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """How batches are laid over the fleet.

    Attributes:
        ramp: `[start, increment, samples]`, or None.
        target: the scheduled batch size at the end, in samples.
        accumulate_grad_batches: of the largest batch, where it was given.
        decreases: whether batch sizes that do not fit are made smaller.
        decreased_nodes: nodes of the batch sizes that were decreased to fit.
    """

    ramp: Sequence[int] | None
    target: int
    micro_batch_size: int
    fleet: Fleet
    node_policy: str
    accumulate_grad_batches: int | None = None
    decreases: bool = False
    decreased_nodes: dict[int, int] = field(default_factory=dict)

    def nodes(self, sizes: Sequence[int]) -> list[int | None]:
        """Nodes of every batch size, smallest first; None where it does not fit."""
        works = [Work(global_batch_size=size, samples=1) for size in sizes]
        return schedule_nodes(
            self.node_policy,
            works,
            sizes,
            micro_batch_size=self.micro_batch_size,
            fleet=self.fleet,
            clock=INDIFFERENT,
        )

    def fits(self, sizes: Sequence[int]) -> bool:
        """Whether every batch size does, and the largest with the accumulation that was given."""
        if (
            self.node_policy == "best"
        ):  # which nodes are best takes longer than whether there are any
            return all(
                self.fleet.nodes_that_divide(size, micro_batch_size=self.micro_batch_size)
                for size in sizes
            )
        accumulate = self.accumulate_grad_batches
        if accumulate is not None and sizes[-1] != self._unit(self.fleet.num_nodes) * accumulate:
            return False
        return None not in self.nodes(sizes)

    def decreasing(self, sizes: Sequence[int]) -> tuple["Layout", dict[int, int]]:
        """Batch sizes that fit nowhere, decreased where the least is lost: the layout, and the sizes that run instead.

        A size that would be decreased to nothing is left as it is, and has no nodes.
        """
        runs_on: dict[int, int] = {}
        decreased: dict[int, int] = {}
        candidates = (
            [self.fleet.num_nodes]
            if self.node_policy == "fixed"
            else self.fleet.nodes_that_hold_the_model()
        )
        for size, planned in zip(sizes, self.nodes(sizes), strict=True):
            nodes = max(candidates, key=lambda n: (self._whole(size, n), n))
            if planned is None and self._whole(size, nodes):
                decreased[size] = self._whole(size, nodes)
                if (
                    self.node_policy != "best"
                ):  # which chooses among all that divide the size that runs
                    runs_on[size] = nodes
        return replace(self, decreases=True, decreased_nodes=runs_on), decreased

    def scheduled_by(self, stage: RampStage) -> int:
        """The batch size that a stage gets its nodes by: for `best` the one that runs, for the others the one of the schedule."""
        return stage.global_batch_size if self.node_policy == "best" else stage.scheduled_batch_size

    def least_unit(self) -> int:
        """Samples that all ranks take at a time on the fewest nodes that the policy may choose."""
        nodes = self.fewest_nodes()
        return (
            self.micro_batch_size * self.fleet.devices * nodes
            if self.node_policy == "nemo"
            else self._unit(nodes)
        )

    def fewest_nodes(self) -> int:
        """The fewest nodes that the policy may choose."""
        return (
            self.fleet.num_nodes
            if self.node_policy == "fixed"
            else self.fleet.nodes_that_hold_the_model()[0]
        )

    def _unit(self, nodes: int) -> int:
        """Samples that all ranks take at a time."""
        return self.micro_batch_size * self.fleet.data_parallel_size(nodes)

    def _whole(self, size: int, nodes: int) -> int:
        return size - size % self._unit(nodes)


def refuse_stages(
    stages: Sequence[RampStage],
    nodes: Sequence[int | None],
    *,
    ahead: range,
    sizes: Sequence[int],
    already: set[int],
    layout: Layout,
) -> None:
    """Refuse stages that have no nodes.

    Args:
        stages: all of the run.
        nodes: theirs.
        ahead: the numbers of those that are still to come.
        sizes: all batch sizes of the schedule, smallest first.
        already: batch sizes that were refused before.
        layout: what they do not fit.

    Raises:
        UsageError: names the stages, their batch sizes and the smallest changes that make all sizes fit.
    """
    without = [
        (number, stages[number].scheduled_batch_size) for number in ahead if nodes[number] is None
    ]
    wrong = [(number, size) for number, size in without if size not in already]
    if not wrong:
        return
    fleet, micro = layout.fleet, layout.micro_batch_size
    keys = (
        _schedule_key(sizes, layout),
        MICRO_KEY,
        POLICY_KEY,
        "trainer.num_nodes",
        "trainer.devices",
    )
    if layout.decreases:
        unit = layout.least_unit()
        raise UsageError(
            f"batch size {wrong[0][1]} would be decreased to nothing: {MICRO_KEY}={micro} on {_nodes(layout.fewest_nodes())} takes {unit}",
            keys=keys,
            remedy=f"batch sizes of at least {unit}, or a smaller {MICRO_KEY}",
        )
    shown = ", ".join(f"{number} (batch size {size})" for number, size in wrong[:5]) + (
        ", ..." if len(wrong) > 5 else ""
    )
    plural = "s" if len(wrong) > 1 else ""
    if layout.node_policy == "fixed":
        ranks = fleet.data_parallel_size(fleet.num_nodes)
        why = f"into {MICRO_KEY}={micro} x {ranks} data-parallel ranks = {micro * ranks} on {_nodes(fleet.num_nodes)}"
    else:
        may = f"that {layout.node_policy} may choose, up to {fleet.num_nodes}"
        why = f"on any number of nodes {may}, with {fleet.devices} processes each and {MICRO_KEY}={micro}"
    raise UsageError(
        f"stage{plural} {shown} of the ramp {'do' if plural else 'does'} not divide {why}"
        if len(sizes) > 1
        else f"{GLOBAL_KEY}={sizes[0]} does not divide {why}",
        keys=keys,
        remedy=", or ".join(remedies(sizes, layout))
        or f"batch sizes that are multiples of {layout.least_unit()}",
    )


def _schedule_key(sizes: Sequence[int], layout: Layout) -> str:
    if len(sizes) == 1:
        return GLOBAL_KEY
    return RAMP_KEY if layout.ramp else SCHEDULE_KEY


def remedies(sizes: Sequence[int], layout: Layout) -> Iterator[str]:
    """The smallest change of each kind after which every size fits."""
    tries = MOST_SCHEDULED // len(sizes)
    micro_batch_sizes = islice(range(layout.micro_batch_size - 1, 0, -1), tries)
    for micro in _first(
        m for m in micro_batch_sizes if replace(layout, micro_batch_size=m).fits(sizes)
    ):
        yield f"{MICRO_KEY}={micro}"
    if layout.ramp is not None:
        start, increment, samples = layout.ramp
        ramps = (
            (other, range(start, layout.target + 1, other))
            for other in _other_increments(start, increment, layout.target)
        )
        for other in _first(
            other for other, its_sizes in _affordable(ramps) if layout.fits(its_sizes)
        ):
            yield f"'{RAMP_KEY}=[{start},{other},{samples}]'"
    for nodes in _first(
        n
        for n in islice(_near(layout.fleet.num_nodes), tries)
        if _with_nodes(layout, n).fits(sizes)
    ):
        yield f"trainer.num_nodes={nodes}"
    for policy in _first(
        p
        for p in ("nemo", "best")
        if p != layout.node_policy and replace(layout, node_policy=p).fits(sizes)
    ):
        yield f"{POLICY_KEY}={policy}"


def targets(layout: Layout) -> Iterator[str]:
    """The targets of a ramp next below and next above after which every size fits."""
    assert layout.ramp is not None
    start, increment, _ = layout.ramp
    found = []
    for direction in (-1, 1):
        near = range(
            layout.target + direction * increment,
            start if direction < 0 else 2 * layout.target + 1,
            direction * increment,
        )
        ramps = _affordable((target, range(start, target + 1, increment)) for target in near)
        found += _first(
            target for target, sizes in ramps if replace(layout, target=target).fits(sizes)
        )
    if found:
        yield f"{GLOBAL_KEY}={' or '.join(map(str, found))}"


def _first(candidates: Iterable[int] | Iterable[str]) -> list[int | str]:
    return list(islice(candidates, 1))


def _affordable(ramps: Iterable[tuple[int, range]]) -> Iterator[tuple[int, range]]:
    """The first ramps, as long as their batch sizes together are not too many to schedule."""
    scheduled = 0
    for other, sizes in ramps:
        scheduled += len(sizes)
        if scheduled <= MOST_SCHEDULED:
            yield other, sizes


def _other_increments(start: int, increment: int, target: int) -> list[int]:
    """Increments that lead from start to target, the nearest first."""
    rise = target - start
    others = [other for other in divisors(rise, most=rise) if other != increment] if rise else []
    return sorted(others, key=lambda other: abs(other - increment))


def _near(nodes: int) -> Iterator[int]:
    """Other numbers of nodes, the nearest first, up to twice as many."""
    for distance in range(1, nodes + 1):
        yield from (n for n in (nodes - distance, nodes + distance) if n > 0)


def _with_nodes(layout: Layout, nodes: int) -> Layout:
    return replace(layout, fleet=replace(layout.fleet, num_nodes=nodes))


def _nodes(count: int) -> str:
    return f"{count} node{'s' if count > 1 else ''}"
