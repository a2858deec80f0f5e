"""The order audit: a hash of the samples that were really read, in the order of the steps."""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
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
        """Hashes the earlier hash and the samples that all ranks read, sorted."""
        mine = torch.from_numpy(step.batch.samples).to(self.device)
        samples_of_all_ranks = torch.cat(gather_tensors(mine, self.data.get_group())).cpu().numpy()
        content = np.sort(samples_of_all_ranks).astype("<i8").tobytes()
        before = (state.order_hash or "").encode()
        state.order_hash = hashlib.sha256(before + content).hexdigest()
