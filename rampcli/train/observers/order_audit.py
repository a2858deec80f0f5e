"""The order audit: a hash of the samples that were really read, in the order of the steps."""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed.device_mesh import DeviceMesh

from rampcli.checkpoint.state import TrainingState
from rampcli.parallel.ranks import gather_tensors
from rampcli.train.observers.observer import LoopObserver
from rampcli.train.step import TakenStep


@dataclass
class OrderAudit(LoopObserver):
    """Keeps `state.order_hash` up to date. Every rank has one: they exchange their samples.

    It must come before observers that write the hash.

    Attributes:
        data: mesh of the data-parallel ranks.
    """

    data: DeviceMesh
    device: torch.device

    def after_step(self, state: TrainingState, step: TakenStep) -> None:
        """Adds the samples of all ranks to the hash."""
        state.order_hash = self._chain(state.order_hash, step.batch.samples)

    def _chain(self, order_hash: str | None, samples: NDArray[np.int64]) -> str:
        """Returns the hash of an earlier hash and of the samples that all ranks read, sorted."""
        mine = torch.from_numpy(samples).to(self.device)
        samples_of_all_ranks = torch.cat(gather_tensors(mine, self.data.get_group())).cpu().numpy()
        content = np.sort(samples_of_all_ranks).astype("<i8").tobytes()
        return hashlib.sha256((order_hash or "").encode() + content).hexdigest()
