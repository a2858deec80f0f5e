"""The story of training."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from rampcli.batch.plan import BatchPlan
from rampcli.batch.training_plan import StagePlan, TrainingPlan
from rampcli.checkpoint.save import Checkpoints, TrainingState
from rampcli.config.choices import OnNonfinite
from rampcli.config.schema import Config
from rampcli.data.loader import Loader, RankBatch, ValidationLoader
from rampcli.errors import RampcliError
from rampcli.parallel.mesh import DATA
from rampcli.run_directory import COMPLETE, PREEMPTED, STAGE_BOUNDARY
from rampcli.schedule.learning_rate import LearningRate
from rampcli.train.compiling import compile_passes
from rampcli.train.observers.boundary import Arrival
from rampcli.train.observers.journal import Journal, StepTimes, chain_order_hash, finite
from rampcli.train.observers.outliers import Outliers, not_finite
from rampcli.train.passes import Passes
from rampcli.train.step import StepResult, follow_gradient, validate
from rampcli.train.stopping import StopAgreed, StopRequest


@dataclass(kw_only=True, slots=True)
class Trainer:
    """Trains a model through the stages of a plan, from where `state` stands."""

    config: Config
    plan: TrainingPlan
    learning_rate: LearningRate
    passes: Passes
    optimizers: Sequence[torch.optim.Optimizer]
    loader: Loader
    validation_loader: ValidationLoader
    checkpoints: Checkpoints
    journal: Journal
    outliers: Outliers
    device: torch.device
    state: TrainingState
    stop: StopRequest
    arrival: Arrival | None = None
    micro_batch_s: float = 0.0
    compiled_for: int | None = None
    """The micro batch size that the layers were compiled for, where they are."""

    def run(self, arrival: Arrival) -> str:
        """Train until the run is complete, a stage ends that needs other processes, or a signal asks to stop; says which."""
        self.arrival = arrival
        try:
            status = self._train()
        except StopAgreed:
            status = PREEMPTED
        self._end(status)
        return status

    def _train(self) -> str:
        self._compile(self._batch_plan())
        if self._owes_validation():
            self._validate(self._batch_plan())
        while not self.plan.is_complete(self.state.consumed_samples):
            stage = self.plan.stage_at(self.state.consumed_samples)
            batch_plan = self._batch_plan()
            self._compile(batch_plan)
            self.journal.event(
                "stage", self.state, stage=stage.stage, world_size=dist.get_world_size()
            )
            while self.plan.stage_at(
                self.state.consumed_samples
            ) is stage and not self.plan.is_complete(self.state.consumed_samples):
                began = time.perf_counter()
                batch = self.loader.read(self.state.consumed_samples, batch_plan)
                data_time_s = time.perf_counter() - began
                global_tokens = self._agree_on(batch)
                self._step(
                    stage,
                    batch_plan,
                    batch,
                    global_tokens=global_tokens,
                    began=began,
                    data_time_s=data_time_s,
                )
                self._after_step(batch_plan)
            if not self.plan.is_complete(self.state.consumed_samples) and self.plan.ends_processes(
                stage, self.state.consumed_samples
            ):
                return STAGE_BOUNDARY
        self._validate(self._batch_plan())
        return COMPLETE

    def _compile(self, batch_plan: BatchPlan) -> None:
        if self.config.trainer.compile and self.compiled_for != batch_plan.micro_batch_size:
            began = time.perf_counter()
            compile_passes(self.passes, self.config, batch_plan)
            self.compiled_for = batch_plan.micro_batch_size
            self.journal.event(
                "compile", self.state, compile_s=round(time.perf_counter() - began, 3)
            )

    def _step(
        self,
        stage: StagePlan,
        batch_plan: BatchPlan,
        batch: RankBatch,
        *,
        global_tokens: int,
        began: float,
        data_time_s: float,
    ) -> None:
        consumed_samples = self.state.consumed_samples + batch_plan.global_batch_size
        lr = self.learning_rate.at(consumed_samples, global_batch_size=batch_plan.global_batch_size)
        result = follow_gradient(
            self.passes,
            batch.micro_batches,
            global_tokens=global_tokens,
            gradient_clip_val=self.config.trainer.gradient_clip_val,
            between=self._between_micro_batches,
        )
        skipped = self._reason_to_skip(result)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
            if skipped is None:
                optimizer.step()
            optimizer.zero_grad()
        self.state.step += 1
        self.state.consumed_samples = consumed_samples
        self.state.recent = self.outliers.recent
        if self.config.data.audit_order:
            self.state.order_hash = chain_order_hash(
                self.state.order_hash,
                batch.samples,
                self.passes.meshes.data[DATA],
                device=self.device,
            )
        if skipped is not None:
            self.journal.event("skip", self.state, reason=skipped)
        times = StepTimes(step_time_s=time.perf_counter() - began, data_time_s=data_time_s)
        self.journal.step(self.state, stage, batch_plan, result, times, lr=lr)
        self.micro_batch_s = times.step_time_s / batch_plan.accumulate_grad_batches
        if self.arrival is not None:
            self.journal.arrived(self.state, self.arrival)
            self.arrival = None

    def _reason_to_skip(self, result: StepResult) -> str | None:
        """Why a step is to change nothing: its samples count as consumed, but not for the weights and the optimiser; None lets it happen.

        Raises:
            RampcliError: something is not finite, and the run is to stop then.
        """
        reason = not_finite(result)
        if reason is None:
            return self.outliers.stands_out(result)
        if self.config.trainer.on_nonfinite is OnNonfinite.stop:
            self.checkpoints.wait()
            saved = self.checkpoints.run.complete_checkpoints()
            back = (
                f"from step {saved[-1].step}"
                if saved
                else "from the beginning, since there is no checkpoint yet"
            )
            raise RampcliError(
                f"step {self.state.step + 1}, after {self.state.consumed_samples:,} samples: {reason}",
                remedy=f"trainer.on_nonfinite=skip to pass over such steps, or a smaller optim.lr; the same command goes on {back}",
            )
        return reason

    def _after_step(self, batch_plan: BatchPlan) -> None:
        if self.plan.is_complete(self.state.consumed_samples):
            return
        if _is_due(self.state.step, self.config.checkpoint.every_steps):
            self.checkpoints.save(self.state)
        if _is_due(self.state.step, self.config.trainer.val_every_steps):
            self._validate(batch_plan)

    def _agree_on(self, batch: RankBatch) -> int:
        """Valid tokens of the global batch.

        Raises:
            StopAgreed: a rank was asked to stop.
            RampcliError: a checkpoint that was saved meanwhile cannot be.
        """
        valid_tokens = batch.valid_tokens if self.passes.meshes.reads_first else 0
        micro_batch_s = (
            self.micro_batch_s if dist.get_rank() == 0 else 0.0
        )  # ranks wait for each other in every step
        mine = [valid_tokens, self.stop.asked, micro_batch_s, self.checkpoints.has_failed]
        totals = torch.tensor(mine, dtype=torch.float64, device=self.device)
        dist.all_reduce(totals)
        tokens, askers, micro_batch_s, failures = totals.tolist()
        if failures:
            self.checkpoints.wait()
        if askers:
            raise StopAgreed
        self.stop.expect(micro_batch_s)
        return int(tokens)

    def _between_micro_batches(self) -> None:
        if self.stop.is_time_to_ask():
            askers = torch.tensor(int(self.stop.asked), device=self.device)
            dist.all_reduce(askers)
            if askers.item():
                raise StopAgreed

    def _validate(self, batch_plan: BatchPlan) -> None:
        samples = self.config.trainer.val_samples
        if samples:
            loss = validate(
                self.passes,
                self.validation_loader.read(samples, batch_plan),
                between=self._between_micro_batches,
            )
            self.journal.event("validation", self.state, loss=finite(loss), samples=samples)

    def _batch_plan(self) -> BatchPlan:
        return self.plan.batch_on(
            self.plan.stage_at(self.state.consumed_samples), dist.get_world_size()
        )

    def _owes_validation(self) -> bool:
        """Whether the validation after the last step has not been done: there was none yet, or it was interrupted."""
        step = self.state.step
        is_due = step == 0 or _is_due(step, self.config.trainer.val_every_steps)
        return (
            is_due
            and not self.plan.is_complete(self.state.consumed_samples)
            and not self.journal.has_validated(step)
        )

    def _end(self, status: str) -> None:
        began = time.perf_counter()
        if self.state.step > 0:
            self.checkpoints.save(self.state, is_last=True)
        self.journal.event(
            "stop", self.state, status=status, save_s=round(time.perf_counter() - began, 3)
        )
        self.journal.status(status, self.state)


def _is_due(step: int, every_steps: int | None) -> bool:
    return every_steps is not None and step % every_steps == 0
