"""Decides which process reads data for which (MaxText's `expansion_factor_real_data`)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from rampcli.batch.loading import reader_of_each_host
from rampcli.data.corpus import Samples
from rampcli.machine.activity import waiting
from rampcli.settings.config import Config


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """The ranks that this process reads data for.

    Attributes:
        rank: this process's data-parallel rank.
        ranks: data-parallel ranks that it reads for; empty if another process reads for it.
        group: processes that share a reader, in the order of their ranks, the reader first; None if
            every process reads for itself.
        planes: arrays that are exchanged per micro batch: tokens, labels and perhaps positions.
    """

    rank: int
    ranks: tuple[int, ...]
    group: dist.ProcessGroup | None = None
    planes: int = 2
    sequence_length: int = 0

    @property
    def reads(self) -> bool:
        """True if this process opens the corpora."""
        return bool(self.ranks)

    def scatter(
        self, shares: Sequence[Sequence[Samples]], *, micro_batches: int, samples: int
    ) -> Sequence[Samples]:
        """Sends each process of the group its share from the reader, and returns this one's.

        Every process of the group calls this. Tensors are sent, because objects would be pickled.

        Args:
            shares: on the reader, the micro batches of each process of the group.
        """
        if self.group is None:
            return shares[0]
        received = torch.empty(
            micro_batches, self.planes, samples, self.sequence_length, dtype=torch.int32
        )
        sent = (
            [torch.from_numpy(np.stack([_to_planes(each) for each in share])) for share in shares]
            if self.reads
            else None
        )
        with waiting:
            dist.scatter(received, sent, group=self.group, group_src=0)
        return [Samples(*planes) for planes in received.long().numpy()]


def _to_planes(samples: Samples) -> NDArray[np.int32]:
    planes = (samples.tokens, samples.labels, samples.positions)
    return np.stack([plane for plane in planes if plane is not None]).astype(np.int32)


def build_reading(config: Config, data_ranks: Sequence[int]) -> Reading:
    """Returns which ranks this process reads for; a collective call of all ranks.

    Args:
        config: sets the expansion factor; a host has `trainer.devices` processes.
        data_ranks: data-parallel rank of each process.

    Raises:
        UsageError: the expansion factor does not divide the hosts.
    """
    world_size, me, devices = len(data_ranks), dist.get_rank(), config.trainer.devices
    readers = readers_of(
        world_size, devices=devices, expansion_factor=config.data.expansion_factor_real_data
    )
    if readers == list(range(world_size)):
        return Reading(rank=data_ranks[me], ranks=(data_ranks[me],))
    groups = [
        [rank for rank in range(world_size) if readers[rank] == reader]
        for reader in sorted(set(readers))
    ]
    # gloo, because samples are in host memory.
    group, _ = dist.new_subgroups_by_enumeration(groups, backend="gloo")  # type: ignore[no-untyped-call]
    served = next(ranks for ranks in groups if me in ranks)
    return Reading(
        rank=data_ranks[me],
        ranks=tuple(data_ranks[rank] for rank in served) if readers[me] == me else (),
        group=group,
        planes=3 if config.data.document_mask else 2,
        sequence_length=config.data.sequence_length,
    )


def readers_of(world_size: int, *, devices: int, expansion_factor: float | None) -> list[int]:
    """Returns, for each process, the process that reads for it.

    Its reader has the same local rank, on the host that reads for its group of hosts.

    Raises:
        UsageError: the expansion factor does not divide the hosts.
    """
    hosts = reader_of_each_host(-(-world_size // devices), expansion_factor)
    return [hosts[rank // devices] * devices + rank % devices for rank in range(world_size)]
