"""How many nodes each batch size runs on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rampcli.batch.plan import ParallelSizes
from rampcli.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    """What there is to run on: at most `num_nodes` nodes of `devices` processes each, and how the model is split over them."""

    num_nodes: int
    devices: int
    parallel: ParallelSizes

    def __post_init__(self) -> None:
        for key, value in (("trainer.num_nodes", self.num_nodes), ("trainer.devices", self.devices)):
            if value < 1:
                raise UsageError(f"{key}={value} is less than one", keys=(key,), remedy=f"{key}=1 or more")


def fixed_nodes(sizes: Sequence[int], *, micro_batch_size: int, fleet: Fleet) -> dict[int, int]:  # noqa: ARG001
    """Every batch size on all the nodes; whether it divides there is checked stage by stage."""
    return dict.fromkeys(sizes, fleet.num_nodes)


def nemo_nodes(sizes: Sequence[int], *, micro_batch_size: int, fleet: Fleet) -> dict[int, int]:
    """The schedule of NeMo-Framework-Launcher (`_find_optimal_nodes` in `nemo_launcher/core/stages.py`).

    The last size gets all the nodes; going down, each gets the largest number of nodes, no more than the size above it, that
    divides it. As there, context parallelism does not count and the batch must divide by micro x GPUs whatever the tensor and
    pipeline parallelism; a number of nodes too small to hold the model once, on which the original divides by zero, is passed over.

    Raises:
        UsageError: a size that no number of nodes divides.
    """
    model_ranks = fleet.parallel.tensor * fleet.parallel.pipeline
    nodes = fleet.num_nodes
    schedule = {sizes[-1]: nodes}
    for size in reversed(sizes[:-1]):
        feasible = [
            n
            for n in range(1, nodes + 1)
            if (data_parallel_size := fleet.devices * n // model_ranks) > 0
            and size % (micro_batch_size * data_parallel_size) == 0
            and size % (micro_batch_size * fleet.devices * n) == 0
        ]
        if not feasible:
            raise UsageError(
                f"batch size {size} of the ramp divides on no number of nodes from 1 to {nodes}"
                f" with {fleet.devices} processes each and data.micro_batch_size={micro_batch_size}",
                keys=("model.rampup_batch_size", "data.micro_batch_size", "trainer.num_nodes", "trainer.devices"),
                remedy=f"batch sizes that are multiples of {micro_batch_size * fleet.devices}, or a smaller data.micro_batch_size",
            )
        nodes = max(feasible)
        schedule[size] = nodes
    return dict(reversed(schedule.items()))


NODE_POLICIES: dict[str, Callable[..., dict[int, int]]] = {"nemo": nemo_nodes, "fixed": fixed_nodes}


@dataclass(frozen=True, kw_only=True)
class NodeSchedule:
    """Nodes by global batch size."""

    nodes_by_batch_size: dict[int, int]

    @classmethod
    def for_ramp(cls, sizes: Sequence[int], *, policy: str, micro_batch_size: int, fleet: Fleet) -> "NodeSchedule":
        """Schedule every size of a ramp, smallest first.

        Raises:
            UsageError: an unknown policy, or a size that no number of nodes divides.
        """
        if policy not in NODE_POLICIES:
            known = ", ".join(NODE_POLICIES)
            raise UsageError(f"rampup.node_policy={policy} is not a node policy", keys=("rampup.node_policy",), remedy=f"one of {known}")
        return cls(nodes_by_batch_size=NODE_POLICIES[policy](sizes, micro_batch_size=micro_batch_size, fleet=fleet))

    def nodes_for(self, global_batch_size: int) -> int:
        """Nodes that a batch size of the ramp runs on."""
        return self.nodes_by_batch_size[global_batch_size]
