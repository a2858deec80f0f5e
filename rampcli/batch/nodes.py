"""Nodes that stages can run on."""

from dataclasses import dataclass
from math import gcd

from rampcli.batch.division import divisors
from rampcli.batch.plan import ParallelSizes


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
