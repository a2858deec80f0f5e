"""Node policies: how many nodes each stage of a run gets (`rampup.node_policy`, `rampup.nodes`).

A new policy is a subclass of `NodePolicy` and an entry in `NODE_POLICIES`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import ClassVar

from rampcli.batch.division import divisors
from rampcli.batch.micro_batch import MicroBatchRule
from rampcli.batch.nodes import Fleet
from rampcli.batch.throughput import Clock, Throughput, Work, restarts_at
from rampcli.errors import UsageError, set_to, shown

POLICY_KEY = "rampup.node_policy"
NODES_KEY = "rampup.nodes"
DEFAULT_POLICY = "nemo"
UNTIMED = Clock(
    throughput=Throughput.constant(1.0, basis=""),
    sequence_length=1,
    restart_s=0.0,
    restarts_always=True,
)
"""Makes every GPU equally fast and restarts free: for questions about divisibility alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """Stages that need nodes.

    Attributes:
        works: stages that run, in order.
        sizes: batch sizes of the schedule in ascending order, including skipped ones.
        micro_batch_rule: how large the micro batch of a stage is.
        clock: duration of stages and restarts.
    """

    works: Sequence[Work]
    sizes: Sequence[int]
    micro_batch_rule: MicroBatchRule
    fleet: Fleet
    clock: Clock = UNTIMED

    def keep_if_divisible(self, nodes: Sequence[int | None]) -> list[int | None]:
        """Returns `nodes` with None for every stage whose batch they do not divide."""
        return [
            n
            if n is not None
            and self.fleet.divides(
                work.global_batch_size, n, micro_batch_size=self.micro_batch_rule.smallest_share
            )
            else None
            for n, work in zip(nodes, self.works, strict=True)
        ]


class NodePolicy(ABC):
    """Chooses how many nodes each stage runs on.

    A subclass defines `name` and `choose`. The other members describe the policy to the planner;
    their defaults suit a policy that may choose any number of nodes.

    Attributes:
        name: value of `rampup.node_policy`.
        rank: what `batch_unit` divides a batch by.
        largest_uses_all_nodes: the largest batch size always runs on all the nodes.
        chooses_by_running_size: nodes depend on the batch size that runs. Otherwise they depend on
            the scheduled one, which is larger if the batch was decreased.
        weighs_restarts: the choice depends on the clock.
    """

    name: ClassVar[str]
    rank: ClassVar[str] = "data-parallel rank"
    largest_uses_all_nodes: ClassVar[bool] = True
    chooses_by_running_size: ClassVar[bool] = False
    weighs_restarts: ClassVar[bool] = False

    @abstractmethod
    def choose(self, workload: Workload) -> list[int | None]:
        """Returns the nodes of each stage in order, or None if no allowed number divides it."""

    def has_nodes_for_all(self, workload: Workload) -> bool:
        """Returns whether every stage has nodes."""
        return None not in self.choose(workload)

    def allowed_nodes(self, fleet: Fleet) -> Sequence[int]:
        """Returns the node counts that the policy may choose, in ascending order."""
        return fleet.nodes_that_hold_the_model()

    def batch_unit(self, num_nodes: int, *, micro_batch_size: int, fleet: Fleet) -> int:
        """Returns the number of samples that a batch on `num_nodes` must be a multiple of."""
        return micro_batch_size * fleet.data_parallel_size(num_nodes)


class NemoPolicy(NodePolicy):
    """The nodes that NeMo's launcher gives each batch size.

    The launcher knows one micro batch. If micro batches vary,

    1. the nodes are those of the largest micro batch for which the launcher has nodes for every
       size, and
    2. each stage has the largest micro batch that divides its batch on these nodes.
    """

    name = "nemo"
    rank = "process"

    def choose(self, workload: Workload) -> list[int | None]:
        """Looks every stage up in the schedule; None if the batch does not divide there."""
        by_size = _schedule(workload)
        return workload.keep_if_divisible(
            [by_size[work.global_batch_size] for work in workload.works]
        )

    def batch_unit(self, num_nodes: int, *, micro_batch_size: int, fleet: Fleet) -> int:
        """Counts all processes as data-parallel ranks, as the launcher's own check does."""
        return micro_batch_size * num_nodes * fleet.devices


def _schedule(workload: Workload) -> dict[int, int | None]:
    """Returns the nodes of each batch size, with the micro batch that `NemoPolicy` describes."""
    rule, fleet = workload.micro_batch_rule, workload.fleet
    smaller: list[int] = []
    if rule.varies:
        common, rest = divmod(gcd(*workload.sizes[:-1]), fleet.devices * rule.updates)
        smaller = [] if rest else divisors(common, most=rule.size - 1)
    schedules = (
        nemo_schedule(workload.sizes, micro_batch_size=size * rule.updates, fleet=fleet)
        for size in (rule.size, *reversed(smaller))
    )
    first = next(schedules)
    if not smaller or None not in first.values():
        return first
    return next((by_size for by_size in schedules if None not in by_size.values()), first)


def nemo_schedule(
    sizes: Sequence[int], *, micro_batch_size: int, fleet: Fleet
) -> dict[int, int | None]:
    """Returns the nodes of each batch size as NeMo-Framework-Launcher schedules them.

    The largest size gets all the nodes, unchecked. Going down, each size gets the most nodes that
    divide it, but no more than the next larger size. As in the original (`_find_optimal_nodes` in
    `nemo_launcher/core/stages.py`), skipped sizes count, context parallelism does not, and a batch
    must divide by micro batch x GPUs whatever the tensor and pipeline parallelism.

    The original crashes in two cases. Here, node counts too small to hold the model are left out,
    and a size that no node count divides gets None and does not limit the smaller sizes.

    Args:
        sizes: every batch size of the schedule, in ascending order.
        micro_batch_size: samples per data-parallel rank per forward/backward.
    """
    model_ranks = fleet.parallel.tensor * fleet.parallel.pipeline
    nodes = fleet.num_nodes
    by_size: dict[int, int | None] = {sizes[-1]: nodes}
    for size in reversed(sizes[:-1]):
        per_node, rest = divmod(size, micro_batch_size * fleet.devices)
        feasible = [
            n
            for n in (divisors(per_node, most=nodes) if not rest else [])
            if (ranks := fleet.devices * n // model_ranks) > 0
            and size % (micro_batch_size * ranks) == 0
        ]
        by_size[size] = max(feasible, default=None)
        nodes = by_size[size] or nodes
    return dict(reversed(by_size.items()))


class FixedPolicy(NodePolicy):
    """All the nodes for every stage."""

    name = "fixed"

    def choose(self, workload: Workload) -> list[int | None]:
        """Returns all the nodes for each stage, or None if its batch does not divide there."""
        return workload.keep_if_divisible([workload.fleet.num_nodes] * len(workload.works))

    def allowed_nodes(self, fleet: Fleet) -> list[int]:
        """Returns the full node count alone."""
        return [fleet.num_nodes]


@dataclass(frozen=True, slots=True)
class _Path:
    """The cheapest choice of nodes for all stages up to one that runs on `nodes`.

    Attributes:
        seconds: total so far, including restarts.
        node_seconds: total so far, without restarts.
        previous: the same for the stage before, or None for the first stage.
    """

    seconds: float
    node_seconds: float
    nodes: int
    previous: "_Path | None"

    @property
    def cost(self) -> tuple[float, float]:
        return self.seconds, self.node_seconds


class BestPolicy(NodePolicy):
    """The nodes that end the run soonest, restarts included; on a tie, the fewest node-seconds.

    Dynamic programming over the stages: the cheapest path to a stage on `n` nodes either stays on
    `n` nodes or, at the price of a restart, follows the cheapest path to the stage before. A last
    stage without an end outweighs all others, so it gets the nodes on which it is fastest. A batch
    that no number of nodes divides gets None and is left out of the totals.
    """

    name = "best"
    largest_uses_all_nodes = False
    chooses_by_running_size = True
    weighs_restarts = True

    def choose(self, workload: Workload) -> list[int | None]:
        """Returns the nodes on the cheapest path through all stages."""
        paths: dict[int, _Path] = {}
        placed = []
        for index, work in enumerate(workload.works):
            stage_s = _seconds_by_nodes(work, workload)
            if not stage_s:
                continue
            cheapest = min(paths.values(), key=lambda path: path.cost, default=None)
            paths = {
                n: _extend(n, seconds, paths.get(n), cheapest, workload.clock)
                for n, seconds in stage_s.items()
            }
            placed.append(index)
        nodes: list[int | None] = [None] * len(workload.works)
        path = min(paths.values(), key=lambda path: path.cost, default=None)
        while path is not None:
            nodes[placed.pop()] = path.nodes
            path = path.previous
        return nodes

    def has_nodes_for_all(self, workload: Workload) -> bool:
        """Checks divisibility alone, which is faster than finding the best nodes."""
        return all(
            workload.fleet.nodes_that_divide(
                work.global_batch_size, micro_batch_size=workload.micro_batch_rule.smallest_share
            )
            for work in workload.works
        )


def micro_batches_by_nodes(
    global_batch_size: int, *, rule: MicroBatchRule, fleet: Fleet
) -> dict[int, int]:
    """Returns the micro batch that a batch has on each number of nodes that divides it."""
    nodes = fleet.nodes_that_divide(global_batch_size, micro_batch_size=rule.smallest_share)
    micro = {n: rule.on(global_batch_size, fleet.data_parallel_size(n)) for n in nodes}
    return {n: size for n, size in micro.items() if size is not None}


def _seconds_by_nodes(work: Work, workload: Workload) -> dict[int, float]:
    """Returns the seconds of a stage on each number of nodes that divides it.

    An unknown throughput is taken to be that of the nearest known size.
    """
    fleet, rule = workload.fleet, workload.micro_batch_rule
    sizes = micro_batches_by_nodes(work.global_batch_size, rule=rule, fleet=fleet)
    stage_s = {
        n: workload.clock.stage_s(work, n, micro_batch_size=micro, fleet=fleet)
        for n, micro in sizes.items()
    }
    if stage_s and work.samples is None:
        return {min(stage_s, key=lambda n: (stage_s[n], n)): 0.0}
    return stage_s


def _extend(
    nodes: int, seconds: float, same: _Path | None, cheapest: _Path | None, clock: Clock
) -> _Path:
    """Returns the cheapest path that ends with a stage of `seconds` on `nodes`.

    Args:
        same: path up to the stage before on as many nodes, or None if these do not divide it.
        cheapest: cheapest path up to the stage before on any nodes, or None for the first stage.
        clock: duration of a restart.
    """
    if cheapest is None:
        return _Path(seconds, nodes * seconds, nodes, None)

    def end_s(path: _Path) -> float:
        restarts = restarts_at(path.nodes, nodes, always=clock.restarts_always)
        return path.seconds + (clock.restart_s if restarts else 0.0)

    candidates = [cheapest] if same is None else [cheapest, same]
    previous = min(candidates, key=lambda path: (end_s(path), path.node_seconds))
    return _Path(
        end_s(previous) + seconds, previous.node_seconds + nodes * seconds, nodes, previous
    )


NODE_POLICIES: dict[str, NodePolicy] = {
    policy.name: policy for policy in (NemoPolicy(), BestPolicy(), FixedPolicy())
}
"""Node policies by `rampup.node_policy`.

To add a node policy: a subclass of `rampcli/batch/node_policies.py:NodePolicy`, and an entry here.
"""


@dataclass(frozen=True, slots=True)
class ListedPolicy(NodePolicy):
    """The nodes that the user lists (`rampup.nodes`).

    Attributes:
        nodes: of each stage of the schedule, in order. Stages after the end of the run count.
    """

    name = "listed"
    largest_uses_all_nodes = False

    nodes: tuple[int, ...]

    def choose(self, workload: Workload) -> list[int | None]:
        """Returns the listed nodes of each stage.

        A stage has None if the run has fewer nodes, or if they do not divide its batch. The stages
        of the workload are the first ones of the schedule.
        """
        most = workload.fleet.num_nodes
        listed = self.nodes[: len(workload.works)]
        return workload.keep_if_divisible([n if n <= most else None for n in listed])


def policy_of(name: str, nodes: Sequence[int] | None) -> NodePolicy:
    """Returns the policy of a run.

    Args:
        name: name in `NODE_POLICIES`.
        nodes: of each stage, in place of a policy, or None.

    Raises:
        UsageError: both a list and another policy than the default are given.
    """
    if nodes is None:
        return NODE_POLICIES[name]
    if name != DEFAULT_POLICY:
        raise UsageError(
            f"the nodes are chosen twice: {NODES_KEY}={shown(list(nodes))} and {POLICY_KEY}={name}",
            keys=(NODES_KEY, POLICY_KEY),
            remedy=[set_to(NODES_KEY, None), set_to(POLICY_KEY, DEFAULT_POLICY)],
        )
    return ListedPolicy(tuple(nodes))
