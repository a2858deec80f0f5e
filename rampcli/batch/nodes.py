"""Nodes that stages can run on, and how long a stage takes there."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd

from rampcli.batch.division import divisors
from rampcli.batch.pipeline import bubble
from rampcli.batch.plan import ParallelSizes
from rampcli.batch.throughput import Throughput


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    """The nodes available to a run, and how the model is split over their processes.

    Attributes:
        num_nodes: most nodes that a stage may run on.
        devices: processes per node.
        parallel: tensor, pipeline and context parallelism.
    """

    num_nodes: int
    devices: int
    parallel: ParallelSizes

    def data_parallel_size(self, num_nodes: int) -> int:
        """Returns the number of data-parallel ranks on `num_nodes` nodes.

        Raises:
            UsageError: the processes are not a multiple of the model-parallel size.
        """
        return self.parallel.data_parallel_size(num_nodes * self.devices)

    def nodes_that_hold_the_model(self) -> range:
        """Returns the node counts whose processes are a multiple of the model-parallel size."""
        model_ranks = self.parallel.model_parallel_size
        fewest = model_ranks // gcd(model_ranks, self.devices)
        return range(fewest, self.num_nodes + 1, fewest)

    def divides(self, global_batch_size: int, num_nodes: int, *, micro_batch_size: int) -> bool:
        """Returns whether a batch splits into whole micro batches on `num_nodes` nodes."""
        data_ranks, rest = divmod(num_nodes * self.devices, self.parallel.model_parallel_size)
        return not rest and global_batch_size % (micro_batch_size * data_ranks) == 0

    def nodes_that_divide(self, global_batch_size: int, *, micro_batch_size: int) -> list[int]:
        """Returns the node counts that divide a batch, in ascending order."""
        if global_batch_size % micro_batch_size:
            return []
        model_ranks = self.parallel.model_parallel_size
        most_ranks = self.num_nodes * self.devices // model_ranks
        data_ranks = divisors(global_batch_size // micro_batch_size, most=most_ranks)
        return [
            ranks * model_ranks // self.devices
            for ranks in data_ranks
            if ranks * model_ranks % self.devices == 0
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """The work of a stage: its batch size and its samples, or None if it has no end."""

    global_batch_size: int
    samples: int | None


def restarts_at(before: int, after: int, *, always: bool) -> bool:
    """Returns whether processes restart where one stage ends and the next begins.

    Args:
        before: nodes, or processes, of the stage that ends.
        after: the same of the stage that begins.
        always: processes restart at every boundary (`rampup.at_boundary=restart`).
    """
    return always or before != after


def count_restarts(sizes: Sequence[int], *, always: bool) -> int:
    """Returns how often processes restart, given the nodes or processes of stages in order."""
    return sum(restarts_at(one, other, always=always) for one, other in pairwise(sizes))


@dataclass(frozen=True, kw_only=True, slots=True)
class Clock:
    """How long stages and restarts take.

    Attributes:
        throughput: of one GPU.
        sequence_length: tokens per sample.
        restart_s: seconds from a stage's last step to the first step of the next processes.
        restarts_always: restart at every boundary, not only if the number of nodes changes.
    """

    throughput: Throughput
    sequence_length: int
    restart_s: float
    restarts_always: bool

    def stage_s(self, work: Work, nodes: int, *, micro_batch_size: int, fleet: Fleet) -> float:
        """Returns the seconds of a stage, or of one sample if the stage has no end.

        They contain the bubble of a pipeline.
        """
        world_size = nodes * fleet.devices
        data_parallel_size = world_size // fleet.parallel.model_parallel_size
        micro_batches = work.global_batch_size // (micro_batch_size * data_parallel_size)
        rate = self.throughput.tokens_per_s_per_gpu(
            micro_batches, micro_batch_size=micro_batch_size
        )
        samples = 1 if work.samples is None else work.samples
        seconds = samples * self.sequence_length / (world_size * rate)
        if self.throughput.has_bubble:
            return seconds
        return seconds / (1 - bubble(fleet.parallel, accumulate_grad_batches=micro_batches))
