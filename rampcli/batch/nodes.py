"""How many nodes each stage runs on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rampcli.batch.division import divisors
from rampcli.batch.plan import ParallelSizes
from rampcli.batch.throughput import Throughput
from rampcli.errors import UsageError

POLICY_KEY = "rampup.node_policy"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    """What there is to run on: at most `num_nodes` nodes of `devices` processes each, and how the model is split over them."""

    num_nodes: int
    devices: int
    parallel: ParallelSizes

    def __post_init__(self) -> None:
        for key, value in (
            ("trainer.num_nodes", self.num_nodes),
            ("trainer.devices", self.devices),
        ):
            if value < 1:
                raise UsageError(
                    f"{key}={value} is less than one", keys=(key,), remedy=f"{key}=1 or more"
                )

    def data_parallel_size(self, num_nodes: int) -> int:
        """Data-parallel ranks of so many nodes.

        Raises:
            UsageError: their processes are no multiple of the model-parallel ranks.
        """
        return self.parallel.data_parallel_size(num_nodes * self.devices)

    def nodes_that_hold_the_model(self) -> list[int]:
        """Numbers of nodes whose processes are a multiple of the model-parallel ranks."""
        return [
            n
            for n in range(1, self.num_nodes + 1)
            if n * self.devices % self.parallel.model_parallel_size == 0
        ]

    def divides(self, global_batch_size: int, num_nodes: int, *, micro_batch_size: int) -> bool:
        """Whether a batch is whole micro batches on every data-parallel rank of so many nodes."""
        data_ranks, rest = divmod(num_nodes * self.devices, self.parallel.model_parallel_size)
        return not rest and global_batch_size % (micro_batch_size * data_ranks) == 0

    def nodes_that_divide(self, global_batch_size: int, *, micro_batch_size: int) -> list[int]:
        """Numbers of nodes, rising, that divide a batch."""
        if global_batch_size % micro_batch_size:
            return []
        model_ranks = self.parallel.model_parallel_size
        most_ranks = self.num_nodes * self.devices // model_ranks
        data_ranks = (
            divisors(global_batch_size // micro_batch_size, most=most_ranks) if most_ranks else []
        )
        return [
            ranks * model_ranks // self.devices
            for ranks in data_ranks
            if ranks * model_ranks % self.devices == 0
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What a stage has to do: a batch size, and the samples of the stage; None where it has no end."""

    global_batch_size: int
    samples: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Clock:
    """How long stages and restarts take.

    Attributes:
        throughput: of one GPU.
        sequence_length: tokens per sample.
        restart_s: seconds from the last step of a stage's processes to the first step of the next ones.
        restarts_always: at every boundary, not only where the number of nodes changes.
    """

    throughput: Throughput
    sequence_length: int
    restart_s: float
    restarts_always: bool

    def stage_s(self, work: Work, nodes: int, *, micro_batch_size: int, fleet: Fleet) -> float:
        """Seconds of a stage on so many nodes; of one sample, where the stage has no end."""
        world_size = nodes * fleet.devices
        data_parallel_size = world_size // fleet.parallel.model_parallel_size
        return self.throughput.seconds(
            1 if work.samples is None else work.samples,
            sequence_length=self.sequence_length,
            world_size=world_size,
            micro_batches=work.global_batch_size // (micro_batch_size * data_parallel_size),
        )

    def restarts(self, nodes: Sequence[int]) -> int:
        """Boundaries at which processes start anew, for the nodes of the stages in order."""
        return sum(self.restarts_always or one != other for one, other in pairwise(nodes))


def fixed_nodes(
    works: Sequence[Work],
    sizes: Sequence[int],  # noqa: ARG001
    *,
    micro_batch_size: int,
    fleet: Fleet,
    clock: Clock,  # noqa: ARG001
) -> list[int | None]:
    """Every stage on all the nodes; None where its batch does not divide there."""
    return _checked(
        [fleet.num_nodes] * len(works), works, micro_batch_size=micro_batch_size, fleet=fleet
    )


def nemo_nodes(
    works: Sequence[Work],
    sizes: Sequence[int],
    *,
    micro_batch_size: int,
    fleet: Fleet,
    clock: Clock,  # noqa: ARG001
) -> list[int | None]:
    """Every stage on the nodes that NeMo's launcher gives its batch size; None where the batch is not whole micro batches there."""
    by_size = nemo_schedule(sizes, micro_batch_size=micro_batch_size, fleet=fleet)
    return _checked(
        [by_size[work.global_batch_size] for work in works],
        works,
        micro_batch_size=micro_batch_size,
        fleet=fleet,
    )


def _checked(
    nodes: Sequence[int | None], works: Sequence[Work], *, micro_batch_size: int, fleet: Fleet
) -> list[int | None]:
    """The nodes that divide their stage's batch, and None for the others."""
    return [
        n
        if n is not None
        and fleet.divides(work.global_batch_size, n, micro_batch_size=micro_batch_size)
        else None
        for n, work in zip(nodes, works, strict=True)
    ]


def nemo_schedule(
    sizes: Sequence[int], *, micro_batch_size: int, fleet: Fleet
) -> dict[int, int | None]:
    """The schedule of NeMo-Framework-Launcher (`_find_optimal_nodes` in `nemo_launcher/core/stages.py`), by batch size.

    The largest size gets all the nodes, unchecked; going down, each gets the largest number of nodes, no more than the size above it,
    that divides it. As there, skipped sizes count, context parallelism does not, and a batch must divide by micro x GPUs whatever the
    tensor and pipeline parallelism. Where the original crashes, we go on: a number of nodes too small to hold the model once is passed
    over, and a size that nothing divides gets None and leaves the sizes below it alone.
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


@dataclass(frozen=True, slots=True)
class _Way:
    """The best way to end a stage on `nodes`: its seconds and node-seconds so far, and the way before it."""

    seconds: float
    node_seconds: float
    nodes: int
    before: "_Way | None"

    @property
    def cost(self) -> tuple[float, float]:
        return self.seconds, self.node_seconds


def best_nodes(
    works: Sequence[Work],
    sizes: Sequence[int],  # noqa: ARG001
    *,
    micro_batch_size: int,
    fleet: Fleet,
    clock: Clock,
) -> list[int | None]:
    """The nodes that end the run soonest, restarts counted; of those, the ones that take the fewest node-seconds.

    Dynamic programming over the stages: the best way to end a stage on `n` nodes follows from the best ways to end the one before,
    either on `n` nodes too or, at the price of a restart, on any. A last stage without an end outweighs all others: it gets the
    nodes on which it is fastest. A batch that no number of nodes divides gets None and counts for nothing.
    """
    ways: dict[int, _Way] = {}
    planned = []
    for index, work in enumerate(works):
        feasible = fleet.nodes_that_divide(
            work.global_batch_size, micro_batch_size=micro_batch_size
        )
        stage_s = {
            n: clock.stage_s(work, n, micro_batch_size=micro_batch_size, fleet=fleet)
            for n in feasible
        }
        if not stage_s:
            continue
        if work.samples is None:
            stage_s = {min(stage_s, key=lambda n: (stage_s[n], n)): 0.0}
        cheapest = min(ways.values(), key=lambda way: way.cost, default=None)
        ways = {
            n: _end_stage(n, seconds, ways.get(n), cheapest, clock)
            for n, seconds in stage_s.items()
        }
        planned.append(index)
    nodes: list[int | None] = [None] * len(works)
    way = min(ways.values(), key=lambda way: way.cost, default=None)
    while way is not None:
        nodes[planned.pop()] = way.nodes
        way = way.before
    return nodes


def _end_stage(
    nodes: int, seconds: float, same: _Way | None, cheapest: _Way | None, clock: Clock
) -> _Way:
    """The best way to end a stage that takes `seconds` on `nodes`: after the one before ended on as many, or as cheaply as it can."""
    if cheapest is None:
        return _Way(seconds, nodes * seconds, nodes, None)
    candidates = [(clock.restart_s, cheapest)]
    if same is not None:
        candidates.append((clock.restart_s if clock.restarts_always else 0.0, same))
    restart_s, before = min(
        candidates,
        key=lambda candidate: (candidate[0] + candidate[1].seconds, candidate[1].node_seconds),
    )
    return _Way(
        before.seconds + restart_s + seconds, before.node_seconds + nodes * seconds, nodes, before
    )


NodePolicy = Callable[..., list[int | None]]
NODE_POLICIES: dict[str, NodePolicy] = {
    "nemo": nemo_nodes,
    "best": best_nodes,
    "fixed": fixed_nodes,
}


def schedule_nodes(
    policy: str,
    works: Sequence[Work],
    sizes: Sequence[int],
    *,
    micro_batch_size: int,
    fleet: Fleet,
    clock: Clock,
) -> list[int | None]:
    """Nodes for each stage in order; None where its batch divides on no number of nodes that the policy may choose.

    Args:
        policy: a name in `NODE_POLICIES`.
        works: the stages that run.
        sizes: every batch size of the schedule once, smallest first, skipped ones too.
        micro_batch_size: samples per data-parallel rank per forward/backward.
        fleet: the nodes there are.
        clock: how long stages and restarts take; only `best` asks it.

    Raises:
        UsageError: an unknown policy.
    """
    if policy not in NODE_POLICIES:
        raise UsageError(
            f"{POLICY_KEY}={policy} is not a node policy",
            keys=(POLICY_KEY,),
            remedy=f"one of {', '.join(NODE_POLICIES)}",
        )
    return NODE_POLICIES[policy](
        works, sizes, micro_batch_size=micro_batch_size, fleet=fleet, clock=clock
    )
