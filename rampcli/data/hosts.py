"""Which processes read, and how the others get what was read for them (MaxText's `expansion_factor_real_data`)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from rampcli.batch.loading import reading_hosts
from rampcli.config.schema import Config
from rampcli.data.corpus import IGNORED, Samples


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """Whom this process reads for.

    Attributes:
        rank: this process's data-parallel rank.
        ranks: the data-parallel ranks that it reads for; none where another process reads for it.
        group: the processes with these ranks in this order, the reader first; None where each reads for itself.
        planes: arrays of a `Samples`: with positions, or without.
        sequence_length: of the samples.
    """

    rank: int
    ranks: tuple[int, ...]
    group: dist.ProcessGroup | None = None
    planes: int = 2
    sequence_length: int = 0

    @property
    def reads(self) -> bool:
        """Whether this process opens the corpora."""
        return bool(self.ranks)

    def deal(
        self, shares: Sequence[Sequence[Samples]], *, micro_batches: int, samples: int
    ) -> Sequence[Samples]:
        """This process's own share of what its group's reader has read, in micro batches; every process of the group takes part.

        Args:
            shares: of all processes of the group, where this one is the reader.
            micro_batches: of one share.
            samples: of one micro batch.
        """
        if self.group is None:
            return shares[0]
        mine = torch.empty(
            micro_batches, self.planes, samples, self.sequence_length, dtype=torch.int32
        )
        dealt = (
            [torch.from_numpy(np.stack([_planes(each) for each in share])) for share in shares]
            if self.reads
            else None
        )
        dist.scatter(mine, dealt, group=self.group, group_src=0)
        return [_samples(each) for each in mine.long().numpy()]


def _planes(samples: Samples) -> NDArray[np.int32]:
    planes = [
        plane for plane in (samples.tokens, samples.labels, samples.positions) if plane is not None
    ]
    return np.stack(planes).astype(np.int32)


def _samples(planes: NDArray[np.int64]) -> Samples:
    tokens, labels, *positions = planes
    return Samples(
        tokens, labels, positions[0] if positions else None, int((labels != IGNORED).sum())
    )


def build_reading(config: Config, data_ranks: Sequence[int]) -> Reading:
    """Who reads on this rank; every rank of the process group takes part.

    Args:
        config: whose expansion factor says how many hosts read; a host has `trainer.devices` processes.
        data_ranks: the data-parallel rank of each process.

    Raises:
        UsageError: the hosts do not divide by the factor.
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
    group, _ = dist.new_subgroups_by_enumeration(groups, backend="gloo")  # type: ignore[no-untyped-call]  # on the hosts: what is read is in their memory
    served = next(ranks for ranks in groups if me in ranks)
    return Reading(
        rank=data_ranks[me],
        ranks=tuple(data_ranks[rank] for rank in served) if readers[me] == me else (),
        group=group,
        planes=3 if config.data.document_mask else 2,
        sequence_length=config.data.sequence_length,
    )


def readers_of(world_size: int, *, devices: int, expansion_factor: float | None) -> list[int]:
    """The process that reads for each process: of the host that reads for its host, the one with the same place on it.

    Raises:
        UsageError: the hosts do not divide by the factor.
    """
    hosts = reading_hosts(-(-world_size // devices), expansion_factor)
    return [hosts[rank // devices] * devices + rank % devices for rank in range(world_size)]
