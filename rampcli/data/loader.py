"""Which rank reads which samples of a global batch."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rampcli.batch.plan import BatchPlan
from rampcli.data.corpus import IGNORED, Corpus
from rampcli.data.order import SampleOrder


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Tokens and labels, each int64 [micro_batch_size, sequence_length]."""

    tokens: Tensor
    labels: Tensor

    @property
    def valid_tokens(self) -> int:
        """Labels that the loss counts."""
        return int((self.labels != IGNORED).sum())


@dataclass(frozen=True, slots=True)
class RankBatch:
    """One rank's share of a global batch: its micro batches, and the samples that they hold."""

    micro_batches: list[MicroBatch]
    samples: NDArray[np.int64]

    @property
    def valid_tokens(self) -> int:
        """Labels that the loss counts, over all micro batches of this rank."""
        return sum(micro_batch.valid_tokens for micro_batch in self.micro_batches)


class Loader:
    """Reads one data-parallel rank's samples, in the order that `SampleOrder` gives."""

    def __init__(self, corpus: Corpus, *, seed: int, rank: int, device: torch.device) -> None:
        self.corpus = corpus
        self.order = SampleOrder(windows=corpus.windows, seed=seed)
        self.rank = rank
        self.device = device

    def read(self, first_sample: int, plan: BatchPlan) -> RankBatch:
        """This rank's share of the global batch of samples first_sample .. first_sample + plan.global_batch_size.

        Micro batch m of rank r holds consecutive samples, rank after rank within m, so that the samples of a global batch do not
        depend on how it is split.
        """
        shape = (plan.accumulate_grad_batches, plan.data_parallel_size, plan.micro_batch_size)
        samples = np.arange(first_sample, first_sample + plan.global_batch_size).reshape(shape)[:, self.rank]
        windows = [self.order.windows_of(row) for row in samples]
        return RankBatch([_micro_batch(*self.corpus.read(row), self.device) for row in windows], samples.ravel())


class ValidationLoader:
    """Reads one data-parallel rank's share of the first windows of a corpus."""

    def __init__(self, corpus: Corpus, *, rank: int, device: torch.device) -> None:
        self.corpus = corpus
        self.rank = rank
        self.device = device

    def read(self, samples: int, plan: BatchPlan) -> Iterator[MicroBatch]:
        """This rank's share of the first `samples` windows; every rank gets as many micro batches, the last ones with ignored labels."""
        per_round = plan.micro_batch_size * plan.data_parallel_size
        for first in range(0, samples, per_round):
            mine = first + self.rank * plan.micro_batch_size + np.arange(plan.micro_batch_size)
            tokens, labels = self.corpus.read(np.minimum(mine, samples - 1))
            # A new array: labels may share their memory with tokens.
            yield _micro_batch(tokens, np.where((mine < samples)[:, None], labels, IGNORED), self.device)


def _micro_batch(tokens: NDArray[np.int64], labels: NDArray[np.int64], device: torch.device) -> MicroBatch:
    return MicroBatch(torch.from_numpy(tokens).to(device), torch.from_numpy(labels).to(device))
