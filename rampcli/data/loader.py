"""Which rank reads which samples of a global batch, before they are asked for."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rampcli.batch.plan import BatchPlan
from rampcli.data.blend import Blend
from rampcli.data.corpus import IGNORED, Samples
from rampcli.data.hosts import Reading

Indices = NDArray[np.int64]

STEPS_AHEAD = 2
"""Global batches that are read before they are asked for."""
PLACES_AT_ONCE = 1024
"""Samples whose windows are found together: finding one takes as long as finding a hundred."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Tokens, labels, and the tokens' positions where documents are told apart; each int64 [micro_batch_size, sequence_length]."""

    tokens: Tensor
    labels: Tensor
    positions: Tensor | None = None


@dataclass(frozen=True, slots=True)
class RankBatch:
    """One rank's share of a global batch: its micro batches, the samples that they hold, and how many labels the loss counts."""

    micro_batches: list[MicroBatch]
    samples: Indices
    valid_tokens: int


class Loader:
    """Reads one data-parallel rank's samples, in the order of the blend, and reads ahead of the step that is computed.

    Args:
        blend: the samples; None where another process reads for this one.
        reading: whom this process reads for.
        device: where the samples go.
    """

    def __init__(self, blend: Blend | None, *, reading: Reading, device: torch.device) -> None:
        self.blend = blend
        self.reading = reading
        self.device = device
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="loader")
        self._ahead: dict[tuple[int, BatchPlan], Future[list[list[Samples]]]] = {}
        self._found: dict[tuple[int, BatchPlan], tuple[Indices, Indices]] = {}

    def read(self, first_sample: int, plan: BatchPlan) -> RankBatch:
        """This rank's share of the global batch of samples first_sample .. first_sample + plan.global_batch_size.

        Micro batch m of rank r holds consecutive samples, rank after rank within m, so that the samples of a global batch do not
        depend on how it is split.

        Raises:
            RampcliError: as the corpora do.
        """
        if (
            first_sample,
            plan,
        ) not in self._ahead:  # the first step, or one of another plan than was foreseen
            for unwanted in self._ahead.values():
                unwanted.cancel()
            self._ahead.clear()
        for step in range(1 + STEPS_AHEAD):  # the steps that follow will be like this one
            wanted = (first_sample + step * plan.global_batch_size, plan)
            if wanted not in self._ahead:
                self._ahead[wanted] = self._thread.submit(self._read, *wanted)
        shares = self._ahead.pop((first_sample, plan)).result()
        samples = samples_of([self.reading.rank], first_sample, plan).ravel()
        mine = self.reading.deal(
            shares, micro_batches=plan.accumulate_grad_batches, samples=plan.micro_batch_size
        )
        return RankBatch(
            [_on(self.device, each) for each in mine],
            samples,
            sum(each.valid_tokens for each in mine),
        )

    def _read(self, first_sample: int, plan: BatchPlan) -> list[list[Samples]]:
        """The shares of the ranks that this process reads for, in micro batches: larger arrays would be fresh memory every time."""
        if self.blend is None:
            return []
        if (first_sample, plan) not in self._found:
            steps = max(1, PLACES_AT_ONCE // plan.global_batch_size)
            firsts = [first_sample + step * plan.global_batch_size for step in range(steps)]
            found = self.blend.places(
                np.stack([samples_of(self.reading.ranks, first, plan) for first in firsts])
            )
            self._found = {
                (first, plan): (which, windows)
                for first, which, windows in zip(firsts, *found, strict=True)
            }
        found = self._found.pop((first_sample, plan))
        which, windows = (
            each.reshape(
                len(self.reading.ranks), plan.accumulate_grad_batches, plan.micro_batch_size
            )
            for each in found
        )
        return [
            [self.blend.read_places(*places) for places in zip(*share, strict=True)]
            for share in zip(which, windows, strict=True)
        ]


def samples_of(ranks: Sequence[int], first_sample: int, plan: BatchPlan) -> Indices:
    """The samples of some data-parallel ranks in a global batch, [ranks, samples of each]."""
    shape = (plan.accumulate_grad_batches, plan.data_parallel_size, plan.micro_batch_size)
    samples = np.arange(first_sample, first_sample + plan.global_batch_size).reshape(shape)
    return samples.swapaxes(0, 1)[list(ranks)].reshape(len(ranks), -1)


class ValidationLoader:
    """Reads one data-parallel rank's share of the first samples of a blend.

    Args:
        blend, reading, device: as for `Loader`.
    """

    def __init__(self, blend: Blend | None, *, reading: Reading, device: torch.device) -> None:
        self.blend = blend
        self.reading = reading
        self.device = device

    def read(self, samples: int, plan: BatchPlan) -> Iterator[MicroBatch]:
        """This rank's share of the first `samples`; every rank gets as many micro batches, the last ones with ignored labels."""
        per_round = plan.micro_batch_size * plan.data_parallel_size
        for first in range(0, samples, per_round):
            ranks = self.reading.ranks if self.blend else ()
            shares = [
                [self._share(first + rank * plan.micro_batch_size, samples, plan)] for rank in ranks
            ]
            (mine,) = self.reading.deal(shares, micro_batches=1, samples=plan.micro_batch_size)
            yield _on(self.device, mine)

    def _share(self, first: int, samples: int, plan: BatchPlan) -> Samples:
        assert self.blend is not None
        mine = first + np.arange(plan.micro_batch_size)
        share = self.blend.read(np.minimum(mine, samples - 1))
        labels = np.where(
            (mine < samples)[:, None], share.labels, IGNORED
        )  # a new array: labels may be the tokens' memory
        return Samples(share.tokens, labels, share.positions, int((labels != IGNORED).sum()))


def _on(device: torch.device, samples: Samples) -> MicroBatch:
    def moved(part: Indices) -> Tensor:
        tensor = torch.from_numpy(part)
        # From pinned memory a copy does not wait, and the step that comes before goes on.
        return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)

    positions = None if samples.positions is None else moved(samples.positions)
    return MicroBatch(moved(samples.tokens), moved(samples.labels), positions)
