"""Observers of every rank: garbage collection, the timeout of a step, and the order audit."""

import gc
import hashlib
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import torch
from torch.distributed.device_mesh import DeviceMesh

from rampcli.batch.training_plan import TrainingPlan
from rampcli.checkpoint.state import TrainingState
from rampcli.parallel.mesh import Meshes
from rampcli.parallel.ranks import gather_tensors
from rampcli.settings.launch import LaunchConfig
from rampcli.train.observers.observer import LoopObserver
from rampcli.train.step import TakenStep


class GarbageCollection(LoopObserver):
    """Replaces Python's automatic collection, which would stop each rank in another step.

    All ranks wait for the slowest one in every step, so each of these stops would cost all of them.

    A micro batch leaves functions and other small objects behind, but no tensors.

    Args:
        every_micro_batches: collect at the end of a step after this many micro batches or more.
    """

    def __init__(self, every_micro_batches: int) -> None:
        self.every_micro_batches = every_micro_batches
        self._micro_batches = 0

    def at_start(self, state: TrainingState) -> None:  # noqa: ARG002, D102
        gc.collect()
        gc.freeze()  # model and optimiser live until the end, so the collector need not scan them
        gc.disable()

    def after_step(self, state: TrainingState, step: TakenStep) -> None:  # noqa: ARG002, D102
        self._micro_batches += step.batch.plan.accumulate_grad_batches
        if self._micro_batches >= self.every_micro_batches:
            self._micro_batches = 0
            gc.collect()

    def at_end(self, state: TrainingState, status: str, *, save_s: float) -> None:  # noqa: ARG002, D102
        gc.enable()


class StepTimeout(LoopObserver):
    """Sets the timeout of collectives after each step, on every rank.

    Between the last step of a stage and the first one of the next, ranks may compile, validate and
    end, so `launch.start_timeout_s` applies. No barrier is needed: a rank that has taken a step
    knows its gradient's norm, to which all ranks have contributed.
    """

    def __init__(self, plan: TrainingPlan, meshes: Meshes, launch: LaunchConfig) -> None:
        self.plan = plan
        self.meshes = meshes
        self.launch = launch
        self._current_s = launch.start_timeout_s

    def after_step(self, state: TrainingState, step: TakenStep) -> None:  # noqa: D102
        consumed = state.consumed_samples
        ends = self.plan.is_complete(consumed) or self.plan.stage_at(consumed) is not step.stage
        wanted_s = self.launch.start_timeout_s if ends else self.launch.step_timeout_s
        if wanted_s != self._current_s:
            self.meshes.set_timeout(timedelta(seconds=wanted_s))
            self._current_s = wanted_s


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
