"""Loaders: each rank reads its samples of a global batch, ahead of the training step.

With `data.expansion_factor_real_data`, only some hosts read, and send the others their samples.
"""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from rampcli.batch.loading import reader_of_each_host
from rampcli.batch.plan import BatchPlan
from rampcli.data.corpus import IGNORED, Samples
from rampcli.data.order import Blend, Indices
from rampcli.machine.activity import waiting
from rampcli.settings.config import Config

STEPS_AHEAD = 2
"""Global batches to prefetch."""
LOCATED_AT_ONCE = 4096
"""Samples whose windows are looked up together. Looking up one takes as long as a hundred."""


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


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Samples on the device, or in host memory before they are copied there.

    Attributes:
        tokens: int64 [micro_batch_size, sequence_length].
        labels: same shape.
        positions: same shape: positions within documents; None without a document mask.
    """

    tokens: Tensor
    labels: Tensor
    positions: Tensor | None = None

    @classmethod
    def of(cls, samples: Samples, device: torch.device) -> "MicroBatch":
        """Returns samples in host memory, which is pinned for a GPU."""
        parts = (samples.tokens, samples.labels, samples.positions)
        tensors = [None if part is None else torch.from_numpy(part) for part in parts]
        if device.type != "cpu":
            tensors = [None if part is None else part.pin_memory() for part in tensors]
        return cls(*tensors)  # type: ignore[arg-type]

    def to(self, device: torch.device) -> "MicroBatch":
        """Returns samples on the device. The host does not wait for copies from pinned memory."""
        parts = (self.tokens, self.labels, self.positions)
        moved = (None if part is None else part.to(device, non_blocking=True) for part in parts)
        return MicroBatch(*moved)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """One data-parallel rank's share of a global batch.

    Attributes:
        plan: how the global batch is divided.
        samples: indices of this rank's samples, [samples].
        micro_batches: the same on the device. Prompts are read when they are answered instead.
        valid_tokens: number of labels that the loss counts.
        began: when reading began, by `time.perf_counter`.
        data_time_s: seconds that training waited for the samples.
    """

    first_sample: int
    plan: BatchPlan
    samples: Indices
    micro_batches: list[MicroBatch] = field(default_factory=list)
    valid_tokens: int = 0
    began: float = field(default_factory=time.perf_counter)
    data_time_s: float = 0.0

    def samples_of_micro_batch(self, number: int) -> Indices:
        """Returns the samples of a micro batch, numbered from 0."""
        size = self.plan.micro_batch_size
        return self.samples[number * size : (number + 1) * size]


class Loader:
    """Reads one data-parallel rank's samples, in the order of the blend, and prefetches.

    Args:
        blend: the samples; None if another process reads for this one.
    """

    def __init__(self, blend: Blend | None, *, reading: Reading, device: torch.device) -> None:
        self.blend = blend
        self.reading = reading
        self.device = device
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="loader")
        self._ahead: dict[tuple[int, BatchPlan], Future[_Read]] = {}
        self._found: dict[tuple[int, BatchPlan], tuple[Indices, Indices]] = {}

    def read(self, first_sample: int, batch_plan: BatchPlan) -> Batch:
        """Returns this rank's share of the global batch that starts at `first_sample`.

        A global batch is split into micro batches, and each of these into consecutive samples for
        each rank in turn. So the samples of a global batch do not depend on how it is split.

        Raises:
            RampcliError: a corpus cannot be read, as in `Corpus.read`.
        """
        began = time.perf_counter()
        # On the first step and after a change of the split, no prefetched batch matches.
        if (first_sample, batch_plan) not in self._ahead:
            self.stop_reading_ahead()
        for step in range(1 + STEPS_AHEAD):
            wanted = (first_sample + step * batch_plan.global_batch_size, batch_plan)
            if wanted not in self._ahead:
                self._ahead[wanted] = self._thread.submit(self._read_ahead, *wanted)
        shares, placed = self._ahead.pop((first_sample, batch_plan)).result()
        samples = samples_of([self.reading.rank], first_sample, batch_plan).ravel()
        mine = self.reading.scatter(
            shares,
            micro_batches=batch_plan.accumulate_grad_batches,
            samples=batch_plan.micro_batch_size,
        )
        if placed is None:
            placed = [MicroBatch.of(each, self.device) for each in mine]
        return Batch(
            first_sample=first_sample,
            plan=batch_plan,
            samples=samples,
            micro_batches=[each.to(self.device) for each in placed],
            valid_tokens=sum(each.valid_tokens for each in mine),
            began=began,
            data_time_s=time.perf_counter() - began,
        )

    def stop_reading_ahead(self) -> None:
        """Drops samples that were read ahead, and waits for reads that are under way."""
        for unwanted in self._ahead.values():
            unwanted.cancel()
        wait(self._ahead.values())
        self._ahead.clear()

    def _read_ahead(self, first_sample: int, batch_plan: BatchPlan) -> "_Read":
        shares = self.read_micro_batches(first_sample, batch_plan)
        if self.reading.group is not None:
            return shares, None
        (mine,) = shares
        return shares, [MicroBatch.of(each, self.device) for each in mine]

    def read_micro_batches(self, first_sample: int, batch_plan: BatchPlan) -> list[list[Samples]]:
        """Reads the micro batches of each rank that this process reads for.

        Micro batches are separate arrays: the allocator does not reuse the memory of larger ones.
        """
        if self.blend is None:
            return []
        if (first_sample, batch_plan) not in self._found:
            steps = max(1, LOCATED_AT_ONCE // batch_plan.global_batch_size)
            firsts = [first_sample + step * batch_plan.global_batch_size for step in range(steps)]
            found = self.blend.locate(
                np.add.outer(firsts, samples_of(self.reading.ranks, 0, batch_plan))
            )
            self._found = {
                (first, batch_plan): (which, windows)
                for first, which, windows in zip(firsts, *found, strict=True)
            }
        found = self._found.pop((first_sample, batch_plan))
        which, windows = (
            each.reshape(
                len(self.reading.ranks),
                batch_plan.accumulate_grad_batches,
                batch_plan.micro_batch_size,
            )
            for each in found
        )
        return [
            [self.blend.read_windows(*places) for places in zip(*share, strict=True)]
            for share in zip(which, windows, strict=True)
        ]

    def read_first(self, samples: int, batch_plan: BatchPlan) -> Iterator[MicroBatch]:
        """Yields this rank's micro batches of the first `samples` samples of the blend.

        All ranks get the same number of micro batches. Samples beyond the end have ignored labels.
        """
        per_round = batch_plan.micro_batch_size * batch_plan.data_parallel_size
        for first in range(0, samples, per_round):
            ranks = self.reading.ranks if self.blend else ()
            shares = [
                [self._share(first + rank * batch_plan.micro_batch_size, samples, batch_plan)]
                for rank in ranks
            ]
            (mine,) = self.reading.scatter(
                shares, micro_batches=1, samples=batch_plan.micro_batch_size
            )
            yield MicroBatch.of(mine, self.device).to(self.device)

    def _share(self, first: int, samples: int, batch_plan: BatchPlan) -> Samples:
        assert self.blend is not None
        mine = first + np.arange(batch_plan.micro_batch_size)
        share = self.blend.read(np.minimum(mine, samples - 1))
        # np.where makes a new array, because labels may share the memory of tokens.
        labels = np.where((mine < samples)[:, None], share.labels, IGNORED)
        return replace(share, labels=labels)


def samples_of(ranks: Sequence[int], first_sample: int, batch_plan: BatchPlan) -> Indices:
    """Returns the samples of data-parallel ranks in a global batch, [ranks, samples of each]."""
    shape = (
        batch_plan.accumulate_grad_batches,
        batch_plan.data_parallel_size,
        batch_plan.micro_batch_size,
    )
    samples = np.arange(first_sample, first_sample + batch_plan.global_batch_size).reshape(shape)
    return samples.swapaxes(0, 1)[list(ranks)].reshape(len(ranks), -1)


_Read = tuple[list[list[Samples]], list[MicroBatch] | None]
"""Samples of `read_micro_batches`, and those of this rank as tensors if nothing is scattered."""
