"""What a run writes down about itself: metrics.jsonl, events.jsonl and state.json, all by rank 0."""

import hashlib
import math
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed.device_mesh import DeviceMesh

from rampcli.batch.plan import BatchPlan
from rampcli.batch.training_plan import StagePlan, TrainingPlan
from rampcli.checkpoint.save import TrainingState
from rampcli.config.model_size import flops_per_token
from rampcli.config.schema import Config
from rampcli.parallel.ranks import from_rank_0
from rampcli.run_directory import COMPLETE, RunDirectory, read_rows
from rampcli.train.observers.boundary import Arrival, boundary_costs
from rampcli.train.step import StepResult

WAITS_OVER_STEPS = 50
MOST_WAITED = 0.05
"""Of the time of so many steps."""
REMEDIES_FOR_WAITS = (
    "`rampcli data build` makes files that are read fastest, a local disk or more memory for the page cache helps, and so do more hosts"
    " that read where data.expansion_factor_real_data is above 1"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTimes:
    """Seconds of one optimiser step, waiting for its samples included, and of that alone."""

    step_time_s: float
    data_time_s: float


class DataWaits:
    """Notices once that steps wait for their samples."""

    def __init__(self) -> None:
        self._recent: deque[StepTimes] | None = deque(maxlen=WAITS_OVER_STEPS)
        self._is_first = True

    def share(self, times: StepTimes) -> float | None:
        """The share of the last steps' time that went into waiting, the first time that it is too much."""
        if (
            self._recent is None or self._is_first
        ):  # the first step has nothing that it could have been read during
            self._is_first = False
            return None
        self._recent.append(times)
        share = sum(step.data_time_s for step in self._recent) / sum(
            step.step_time_s for step in self._recent
        )
        if len(self._recent) < WAITS_OVER_STEPS or share <= MOST_WAITED:
            return None
        self._recent = None
        return share


class Journal:
    """Writes rows and states; on ranks other than 0 it writes nothing."""

    def __init__(self, run: RunDirectory, plan: TrainingPlan, config: Config) -> None:
        self.run = run
        self.plan = plan
        self.writes = dist.get_rank() == 0
        self.world_size = dist.get_world_size()
        peak_tflops = config.trainer.peak_tflops
        self.peak_flops_per_s = (
            None if peak_tflops is None else peak_tflops * 1e12 * self.world_size
        )
        self.waits = DataWaits()
        self.flops_per_token = flops_per_token(
            config.model, sequence_length=config.data.sequence_length
        )

    def step(
        self,
        state: TrainingState,
        stage: StagePlan,
        batch: BatchPlan,
        result: StepResult,
        times: StepTimes,
        *,
        lr: float,
    ) -> None:
        """Add a row to metrics.jsonl for a step that is done; `state` counts it already."""
        if not self.writes:
            return
        tokens_per_s = batch.global_batch_size * self.plan.sequence_length / times.step_time_s
        self.run.append_row(
            self.run.metrics,
            {
                "step": state.step,
                "stage": stage.stage,
                "consumed_samples": state.consumed_samples,
                "consumed_tokens": state.consumed_samples * self.plan.sequence_length,
                "global_batch_size": batch.global_batch_size,
                "accumulate_grad_batches": batch.accumulate_grad_batches,
                "world_size": self.world_size,
                "loss": finite(result.loss),
                "grad_norm": finite(result.grad_norm),
                "lr": lr,
                "step_time_s": round(times.step_time_s, 6),
                "data_time_s": round(times.data_time_s, 6),
                "samples_per_s": round(batch.global_batch_size / times.step_time_s, 3),
                "tokens_per_s": round(tokens_per_s, 1),
                "mfu": None
                if self.peak_flops_per_s is None
                else tokens_per_s * self.flops_per_token / self.peak_flops_per_s,
                "order_hash": state.order_hash,
            },
        )

        if (share := self.waits.share(times)) is not None:
            reason = f"{share:.0%} of the last {WAITS_OVER_STEPS} steps' time was spent waiting for data; {REMEDIES_FOR_WAITS}"
            self.event("slow_data", state, reason=reason)

    def event(self, kind: str, state: TrainingState, **facts: Any) -> None:
        """Add a row to events.jsonl."""
        if self.writes:
            self.run.append_event(
                kind, step=state.step, consumed_samples=state.consumed_samples, **facts
            )

    def arrived(self, state: TrainingState, arrival: Arrival) -> None:
        """The first step of these processes is done: say what it cost to get there from the processes before a boundary."""
        if not self.writes:
            return
        now = time.time()
        if costs := boundary_costs(
            self.run, step=state.step - 1, arrival=arrival, first_step_at=now
        ):
            self.event("boundary", state, **costs)

    def has_validated(self, step: int) -> bool:
        """Whether there is a validation after `step`; every rank asks."""
        rows = read_rows(self.run.events) if self.writes else iter(())
        return bool(
            from_rank_0(any(row["event"] == "validation" and row["step"] == step for row in rows))
        )

    def status(self, status: str, state: TrainingState) -> None:
        """Replace state.json; the command that goes on is the one that started the run."""
        if not self.writes:
            return
        before = (self.run.read_state() or {}).get("next") or {}
        stage = self.plan.stage_at(state.consumed_samples)
        ahead = {
            "stage": stage.stage,
            "global_batch_size": stage.global_batch_size,
            "num_nodes": stage.num_nodes,
            "command": before.get("command"),
        }
        self.run.write_state(
            {
                "status": status,
                "step": state.step,
                "consumed_samples": state.consumed_samples,
                "stage": stage.stage,
                "next": None if status == COMPLETE else ahead,
            }
        )


def finite(value: float) -> float | None:
    """A value as JSON has it, which knows neither NaN nor infinity."""
    return value if math.isfinite(value) else None


def chain_order_hash(
    before: str | None, samples: NDArray[np.int64], data: DeviceMesh, *, device: torch.device
) -> str:
    """Chain the samples that all data-parallel ranks really read in a step, sorted, to the hash of the steps before it."""
    mine = torch.from_numpy(samples).to(device)
    gathered = [torch.empty_like(mine) for _ in range(data.size())]
    dist.all_gather(gathered, mine, group=data.get_group())
    everyones = torch.cat(gathered).cpu().numpy()
    return hashlib.sha256(
        (before or "").encode() + np.sort(everyones).astype("<i8").tobytes()
    ).hexdigest()
