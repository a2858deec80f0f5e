"""The run's own record: metrics.jsonl, events.jsonl and state.json."""

import math
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist

from rampcli.batch.noise_scale import KEPT_MEASUREMENTS, NOISE_COLUMNS, Noise, NoiseAverage
from rampcli.batch.training_plan import StagePlan, TrainingPlan
from rampcli.checkpoint.save import SavedCheckpoint
from rampcli.checkpoint.state import TrainingState
from rampcli.estimate.model_size import flops_per_token
from rampcli.machine.host import processor_name
from rampcli.parallel.ranks import peak_bytes
from rampcli.runs.directory import COMPLETE, RunDirectory
from rampcli.runs.rows import last_rows, number_or_none
from rampcli.settings.config import Config
from rampcli.train.observers.observer import LoopObserver, record_event
from rampcli.train.step import TakenStep, Validation


class Journal(LoopObserver):
    """Writes rows and states. Only rank 0 has one.

    Args:
        phase: name of the phase that is trained, if the run has phases.
        first_step: steps before those whose samples have the length that is trained now.
    """

    def __init__(
        self,
        run: RunDirectory,
        plan: TrainingPlan,
        config: Config,
        device: torch.device,
        *,
        phase: str | None = None,
        first_step: int = 0,
    ) -> None:
        self.run = run
        self.of_phase = {} if phase is None else {"phase": phase}
        self.plan = plan
        self.device = device
        self.world_size = dist.get_world_size()
        self.first_step = first_step
        self.noise_every_steps = config.noise_scale.every_steps
        self.noise = NoiseAverage()
        peak_tflops = config.trainer.peak_tflops
        self.peak_flops_per_s = (
            None if peak_tflops is None else peak_tflops * 1e12 * self.world_size
        )
        length = config.data.sequence_length
        self.flops_per_token, self.causal_flops_per_token = (
            flops_per_token(config.model, sequence_length=length, causal=causal)
            for causal in (False, True)
        )

    def at_start(self, state: TrainingState) -> None:
        """Writes the event `start` and the status running."""
        if self.noise_every_steps is not None:  # the average goes on
            rows = last_rows(
                self.run.metrics,
                KEPT_MEASUREMENTS,
                holding=NOISE_COLUMNS[0],
                among=KEPT_MEASUREMENTS * self.noise_every_steps,
            )
            kept = (row for row in rows if row["step"] > self.first_step)
            found = ([number_or_none(row.get(name)) for name in NOISE_COLUMNS] for row in kept)
            self.noise = NoiseAverage([Noise(*pair) for pair in found if None not in pair])  # type: ignore[arg-type]
        record_event(
            self.run,
            "start",
            state,
            world_size=self.world_size,
            device=str(self.device),
            device_name=torch.cuda.get_device_name(self.device)
            if self.device.type == "cuda"
            else processor_name(),
        )
        self._write_state("running", state)

    def at_stage(self, state: TrainingState, stage: StagePlan) -> None:
        """Writes the event `stage`."""
        record_event(
            self.run,
            "stage",
            state,
            stage=stage.stage,
            world_size=self.world_size,
            **self.of_phase,
        )

    def after_compile(self, state: TrainingState, *, compile_s: float) -> None:
        """Writes the event `compile`."""
        record_event(self.run, "compile", state, compile_s=round(compile_s, 3))

    def after_step(self, state: TrainingState, step: TakenStep) -> None:
        """Writes a row of metrics, and the event `skip` if the step was skipped."""
        if step.skipped is not None:
            record_event(self.run, "skip", state, reason=step.skipped)
        batch = step.batch.plan
        tokens = self.plan.of(step.stage).step_tokens(batch)
        if step.tokens is not None:
            tokens = max(1, step.tokens)
        tokens_per_s = tokens / step.step_time_s
        row: dict[str, Any] = {
            "step": state.step,
            "time": round(time.time(), 3),
            "stage": step.stage.stage,
            "consumed_samples": state.consumed_samples,
            # Responses have any length, so prompts do not say how many tokens there were.
            "consumed_tokens": self.plan.tokens_at(state.consumed_samples)
            if step.tokens is None
            else None,
            "global_batch_size": batch.global_batch_size,
            "accumulate_grad_batches": batch.accumulate_grad_batches,
            "world_size": self.world_size,
            "loss": finite(step.result.loss),
            **({} if step.result.z_loss is None else {"z_loss": finite(step.result.z_loss)}),
            "grad_norm": finite(step.result.grad_norm),
            "lr": step.lr,
            "step_time_s": round(step.step_time_s, 6),
            "data_time_s": round(step.batch.data_time_s, 6),
            "samples_per_s": round(batch.global_batch_size / step.step_time_s, 3),
            "tokens_per_s": round(tokens_per_s, 1),
            "mfu": self._mfu(tokens_per_s * self.flops_per_token),
            "mfu_causal": self._mfu(tokens_per_s * self.causal_flops_per_token),
            "peak_memory_bytes": peak_bytes(self.device),
            "order_hash": state.order_hash,
        }
        if step.noise is not None:
            self.noise.add(step.noise)
            row |= asdict(step.noise) | self.noise.scale().columns()
        self.run.append_row(self.run.metrics, {**row, **step.columns})

    def _mfu(self, flops_per_s: float) -> float | None:
        """Returns the share of the peak throughput of all devices, or None if it is unknown."""
        return None if self.peak_flops_per_s is None else flops_per_s / self.peak_flops_per_s

    def after_validation(self, state: TrainingState, validation: Validation) -> None:
        """Writes the event `validation`."""
        named = {} if validation.corpus is None else {"corpus": validation.corpus}
        averages = validation.of_averages.items()
        record_event(
            self.run,
            "validation",
            state,
            **self.of_phase,
            **named,
            loss=finite(validation.loss),
            **{f"{kind}_loss": finite(loss) for kind, loss in averages},
            bits_per_byte=validation.bits_per_byte,
            samples=validation.samples,
            validation_s=round(validation.validation_s, 3),
            groups=[[finite(loss), tokens] for loss, tokens in validation.groups],
        )

    def after_evaluation(
        self, state: TrainingState, results: Mapping[str, float | str | None]
    ) -> None:
        """Writes the event `evaluation`."""
        record_event(self.run, "evaluation", state, **self.of_phase, **results)

    def after_checkpoint(self, saved: SavedCheckpoint) -> None:
        """Writes the event `checkpoint`."""
        self.run.append_event(
            "checkpoint",
            step=saved.step,
            consumed_samples=saved.consumed_samples,
            save_s=round(saved.save_s, 3),
            stall_s=round(saved.stall_s, 3),
        )

    def at_end(self, state: TrainingState, status: str, *, save_s: float) -> None:
        """Writes the event `stop` and the status."""
        record_event(self.run, "stop", state, status=status, save_s=round(save_s, 3))
        self._write_state(status, state)

    def _write_state(self, status: str, state: TrainingState) -> None:
        """Replaces state.json. The command that resumes the run stays the one that started it."""
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
    """Returns the value, or None if it is not finite: JSON has neither NaN nor infinity."""
    return value if math.isfinite(value) else None
