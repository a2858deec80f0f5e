"""Branches of a run: from a checkpoint, with a larger batch and a learning rate that falls.

A branch keeps everything else: the samples, their order, the micro batch and the processes. So
branches differ in nothing but the batch and the rate. A branch of a run with phases stays in the
phase of the run's next step, also beyond its end.

The weights of a large batch are less noisy, which lowers the loss as a decay of the learning rate
does. At a constant rate, this hides that a larger batch has learned less. After a decay, it does
not, as at the end of a run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, lcm
from pathlib import Path
from typing import Any

from rampcli.batch.ramp import Threshold
from rampcli.batch.step_schedule import SCHEDULE_KEY, schedule_text
from rampcli.batch.training_plan import StagePlan
from rampcli.config.compose import apply_overrides
from rampcli.config.file_facts import ReadFiles
from rampcli.config.layers import Layer, Precedence, sources_named
from rampcli.config.phases import refuse_rl
from rampcli.errors import ErrorReport, UsageError, shown
from rampcli.planning.resolve import resolve
from rampcli.planning.run_plan import Resolved, ResolvedPhase
from rampcli.settings.by_key import may_change
from rampcli.settings.data import DataConfig
from rampcli.settings.optim import OptimConfig, ScheduleConfig
from rampcli.settings.phase_keys import UNTIL, phase_key

CBS_PLACE = "rampcli cbs"
SHARE, FEWEST_STEPS = 0.02, 200
"""Length of a branch: this share of the run, or these steps of its batch, whichever is more."""
FEWEST_VALIDATED, FEWEST_PASSES = 256, 64
"""Held-out samples of a validation, and passes of all ranks over them, if the corpus has them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """What all branches of a checkpoint have in common.

    Attributes:
        samples: that each of them trains on.
        exponent: the rate of a branch is that of the run times its multiple to this power.
        decays: the rate falls on a straight line, in n steps to 1/n of it. The mean rate is then
            half of it for any n.
    """

    samples: int
    exponent: float
    decays: bool

    def __str__(self) -> str:
        rate = "a rate that falls" if self.decays else "a constant rate"
        return f"{self.samples:,} samples with exponent {self.exponent} and {rate}"


@dataclass(frozen=True, kw_only=True, slots=True)
class BranchPoint:
    """A checkpoint of a run, from which branches start.

    Attributes:
        run: the run, planned from the checkpoint on.
        consumed_samples: of the checkpoint.
        stage: the stage of the run's next step, or the last stage if the run is complete.
    """

    run: Resolved
    consumed_samples: int
    stage: StagePlan

    @classmethod
    def at(cls, run: Resolved, consumed_samples: int) -> "BranchPoint":
        """Returns a point of a run that was planned from there on.

        Raises:
            UsageError: it is a run of reinforcement learning, or its learning rate is 0 there.
        """
        refuse_rl(
            run.config,
            "branches train on samples, and this is a run of reinforcement learning",
            remedy="a run of pretraining",
        )
        stage = run.plan.stage_at(consumed_samples)
        point = cls(run=run, consumed_samples=consumed_samples, stage=stage)
        if point.lr <= 0:
            with sources_named(point.phase.config):
                raise UsageError(
                    f"the learning rate after {consumed_samples:,} samples is 0, so branches would"
                    " not train",
                    keys=(OptimConfig.lr, OptimConfig.min_lr, ScheduleConfig.decay_style),
                    remedy="--at SAMPLES, for an earlier checkpoint",
                )
        return point

    @property
    def global_batch_size(self) -> int:
        """Samples of the run's next step."""
        return self.stage.global_batch_size

    @property
    def phase(self) -> ResolvedPhase:
        """The phase of the run's next step."""
        return self.run.of(self.stage)

    @property
    def is_in_warmup(self) -> bool:
        """Whether the run's learning rate still rises there."""
        return self.phase.rate.is_warming_up(self.consumed_samples)

    @property
    def samples_left(self) -> int | None:
        """Samples of the phase after the checkpoint, or None if it is over or has no end."""
        end = self.phase.plan.end
        if end is None or end.samples <= self.consumed_samples:
            return None
        return end.samples - self.consumed_samples

    @property
    def _step_ends_at(self) -> int:
        """Samples at the end of the next step, or of the last one if the run is complete."""
        is_complete = self.run.plan.is_complete(self.consumed_samples)
        return self.consumed_samples + (0 if is_complete else self.global_batch_size)

    @property
    def lr(self) -> float:
        """Learning rate of that step."""
        return self.phase.rate.at(self._step_ends_at, global_batch_size=self.global_batch_size)

    def samples(self, multiples: Sequence[int], *, tokens: int | None) -> int:
        """Returns the samples of a branch, rounded up to whole steps of every branch.

        Args:
            multiples: of the batch.
            tokens: fewest tokens of a branch, or None for the default.
        """
        if tokens is None:
            end = self.run.plan.end_sample or 0
            wanted = max(ceil(SHARE * end), FEWEST_STEPS * self.global_batch_size)
        else:
            wanted = ceil(tokens / self.phase.plan.sequence_length)
        unit = lcm(*multiples) * self.global_batch_size
        return ceil(wanted / unit) * unit

    def branch(
        self, multiple: int, terms: Terms, *, run_dir: Path, read_files: ReadFiles
    ) -> tuple[Resolved, list[str]]:
        """Returns a branch and its settings as words.

        Args:
            multiple: its batch divided by that of the run.
            read_files: as in `resolve`.

        Raises:
            UsageError: the branch cannot be planned, or no samples are held out.
        """
        words = self._words(self._settings(multiple, terms))
        names = {"name": run_dir.name, "run_dir": str(run_dir)}
        layer = Layer.of(CBS_PLACE, Precedence.USER, names, report=ErrorReport())
        stack = apply_overrides(self.run.config, words, place=CBS_PLACE).above(layer)
        resolved = resolve(
            stack, consumed_samples_in=lambda _: self.consumed_samples, read_files=read_files
        )
        if not resolved.at(self.consumed_samples).config.trainer.val_samples:
            with sources_named(self.phase.config):
                raise UsageError(
                    "branches are compared on held-out samples, and this run has none",
                    keys=(DataConfig.split, DataConfig.validation_path),
                    remedy="a run with data.split=[98,2,0] or data.validation_path=CORPUS",
                )
        return resolved, words

    def _words(self, settings: Mapping[str, Any]) -> list[str]:
        """Returns settings as words. They are those of the phase, if it may have its own.

        Later phases are dropped: the branch ends in this one.
        """
        phase, name = self.phase.plan, self.phase.plan.name
        if name is None:
            return [f"{key}={shown(value)}" for key, value in settings.items()]
        later = [f"phases.{one.plan.name}=null" for one in self.run.phases[phase.number + 1 :]]
        own = {**settings, UNTIL: None, ScheduleConfig.begin: "restart"}
        return later + [
            f"{phase_key(name, key) if may_change(key) or key == UNTIL else key}={shown(value)}"
            for key, value in own.items()
        ]

    def _settings(self, multiple: int, terms: Terms) -> dict[str, Any]:
        """Returns the settings of a branch by key."""
        phase, batch = self.phase, self.global_batch_size
        consumed = self.consumed_samples - phase.plan.first.samples
        before = [one for one in phase.plan.ramp.thresholds if one.first_sample < consumed]
        schedule = schedule_text([*before, Threshold(consumed, multiple * batch)])
        coupled = phase.couplings().at(phase.rate, self._step_ends_at, global_batch_size=batch)
        passes = FEWEST_PASSES * phase.config.parallel.pipeline_parallel_size
        per_round = self.stage.micro_batch_size * self.stage.data_parallel_size
        held_out = phase.config.trainer.val_samples or 0
        lr, steps = self.lr * multiple**terms.exponent, terms.samples // (multiple * batch)
        return {
            "model.global_batch_size": None,
            "model.rampup_batch_size": None,
            SCHEDULE_KEY: f"'{schedule}'",
            "schedule.batch_coupling": "none",
            "schedule.lr_factors": None,
            "schedule.beta2_coupling": "none",
            "schedule.weight_decay_coupling": "none",
            **{f"optim.{name}": value for name, value in coupled.coupled().items()},
            "optim.warmup_samples": None,
            "optim.warmup_steps": None,
            "trainer.max_steps": None,
            "trainer.max_tokens": None,
            "trainer.max_samples": self.consumed_samples + terms.samples,
            "trainer.val_every_steps": None,
            "trainer.val_samples": None,
            "trainer.max_val_samples": max(held_out, FEWEST_VALIDATED, passes * per_round),
            "trainer.num_nodes": self.stage.num_nodes,
            "data.micro_batch_size": self.stage.micro_batch_size,
            "rampup.micro_batch": "fixed",
            "rampup.node_policy": "fixed",
            "rampup.nodes": None,
            "trainer.accumulate_grad_batches": None,
            "launch.elastic": False,
            "resume": "must",
            "checkpoint.keep_last": 1,
            "average.ema": None,
            "average.merge": None,
            "logging.trackers": [],
            "logging.observers": [],
            "profile.steps": None,
            "generate.prompts": [],
            "schedule.decay_style": "wsd" if terms.decays else "constant",
            "schedule.wsd_decay_samples": terms.samples if terms.decays else None,
            "optim.lr": lr,
            "optim.min_lr": lr / steps,
        }
