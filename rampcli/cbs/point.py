"""Branches of a run: from a checkpoint, with a larger batch and a learning rate that falls.

A branch keeps everything else: the samples, their order, the micro batch and the processes. So
branches differ in nothing but the batch and the rate.

The weights of a large batch are less noisy, which lowers the loss as a decay of the learning rate
does. At a constant rate, this hides that a larger batch has learned less. After a decay, it does
not, as at the end of a run.
"""

from dataclasses import dataclass
from math import ceil, lcm
from pathlib import Path

from rampcli.batch.ramp import Threshold
from rampcli.batch.step_schedule import SCHEDULE_KEY, to_text
from rampcli.batch.training_plan import StagePlan
from rampcli.config.compose import apply_overrides
from rampcli.config.file_facts import ReadFiles
from rampcli.config.layers import Layer, Precedence, sources_named
from rampcli.config.rl import refuse_rl
from rampcli.errors import Report, UsageError
from rampcli.planning.resolve import resolve
from rampcli.planning.run_plan import Resolved, ResolvedPhase
from rampcli.settings.data import DataConfig
from rampcli.settings.optim import OptimConfig, ScheduleConfig

PLACE = "rampcli cbs"
SHARE, FEWEST_STEPS = 0.02, 200
"""Length of a branch: this share of the run, or these steps of its batch, whichever is more."""
FEWEST_VALIDATED, FEWEST_PASSES = 256, 64
"""Held-out samples of a validation, and passes of all ranks over them, if the corpus has them."""


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
        point = cls(
            run=run,
            consumed_samples=consumed_samples,
            stage=run.plan.stage_at(consumed_samples),
        )
        if point.lr <= 0:
            with sources_named(run.config):
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
    def _phase(self) -> ResolvedPhase:
        """The phase of the run's next step."""
        return self.run.of(self.stage)

    @property
    def is_in_warmup(self) -> bool:
        """Whether the run's learning rate still rises there."""
        return self._phase.rate.is_warming_up(self.consumed_samples)

    @property
    def samples_left(self) -> int | None:
        """Samples of the run after the checkpoint, or None if it is complete or has no end."""
        plan = self.run.plan
        if plan.end_sample is None or plan.is_complete(self.consumed_samples):
            return None
        return plan.end_sample - self.consumed_samples

    @property
    def _step_ends_at(self) -> int:
        """Samples at the end of the next step, or of the last one if the run is complete."""
        is_complete = self.run.plan.is_complete(self.consumed_samples)
        return self.consumed_samples + (0 if is_complete else self.global_batch_size)

    @property
    def lr(self) -> float:
        """Learning rate of that step."""
        return self._phase.rate.at(self._step_ends_at, global_batch_size=self.global_batch_size)

    def samples(self, multiples: list[int], *, tokens: int | None) -> int:
        """Returns the samples of a branch, rounded up to whole steps of every branch.

        Args:
            multiples: of the batch.
            tokens: fewest tokens of a branch, or None for the default.
        """
        end = self.run.plan.end_sample or 0
        if tokens is None:
            wanted = max(ceil(SHARE * end), FEWEST_STEPS * self.global_batch_size)
        else:
            wanted = ceil(tokens / self.run.plan.sequence_length)
        unit = lcm(*multiples) * self.global_batch_size
        return ceil(wanted / unit) * unit

    def branch(
        self,
        multiple: int,
        *,
        samples: int,
        exponent: float,
        decays: bool,
        run_dir: Path,
        read_files: ReadFiles,
    ) -> tuple[Resolved, list[str]]:
        """Returns a branch and its settings as words.

        Args:
            multiple: its batch divided by that of the run.
            samples: that it trains on.
            exponent: its learning rate is that of the run times the multiple to this power.
            decays: whether the rate falls on a straight line, in n steps to 1/n of it. The mean
                rate is then half of it for any n.
            run_dir: its run directory.
            read_files: as in `resolve`.

        Raises:
            UsageError: the branch cannot be planned, or no samples are held out.
        """
        lr, steps = self.lr * multiple**exponent, samples // (multiple * self.global_batch_size)
        words = [
            *self._words(multiple, samples=samples),
            f"schedule.decay_style={'wsd' if decays else 'constant'}",
            f"schedule.wsd_decay_samples={samples if decays else 'null'}",
            *(f"optim.lr={lr!r}", f"optim.min_lr={lr / steps!r}"),
        ]
        names = {"name": run_dir.name, "run_dir": str(run_dir)}
        layer = Layer.of(PLACE, Precedence.USER, names, report=Report())
        stack = apply_overrides(self.run.config, words, place=PLACE).above(layer)
        resolved = resolve(
            stack, consumed_samples_in=lambda _: self.consumed_samples, read_files=read_files
        )
        if not resolved.config.trainer.val_samples:
            with sources_named(self.run.config):
                raise UsageError(
                    "branches are compared on held-out samples, and this run has none",
                    keys=(DataConfig.split, DataConfig.validation_path),
                    remedy="a run with data.split=[98,2,0] or data.validation_path=CORPUS",
                )
        return resolved, words

    def _words(self, multiple: int, *, samples: int) -> list[str]:
        """Returns the settings of a branch that do not follow from its place and exponent."""
        batch, consumed = self.global_batch_size, self.consumed_samples
        before = [one for one in self.run.plan.ramp.thresholds if one.first_sample < consumed]
        schedule = to_text([*before, Threshold(consumed, multiple * batch)])
        coupled = self._phase.couplings().at(
            self._phase.rate, self._step_ends_at, global_batch_size=batch
        )
        config = self.run.config
        passes = FEWEST_PASSES * config.parallel.pipeline_parallel_size
        per_round = self.stage.micro_batch_size * self.stage.data_parallel_size
        validated = max(config.trainer.val_samples or 0, FEWEST_VALIDATED, passes * per_round)
        return [
            *("model.global_batch_size=null", "model.rampup_batch_size=null"),
            f"{SCHEDULE_KEY}='{schedule}'",
            *("schedule.batch_coupling=none", "schedule.lr_factors=null"),
            *("schedule.beta2_coupling=none", "schedule.weight_decay_coupling=none"),
            *(f"optim.{name}={value!r}" for name, value in coupled.coupled().items()),
            *("optim.warmup_samples=null", "optim.warmup_steps=null"),
            *("trainer.max_steps=null", "trainer.max_tokens=null"),
            f"trainer.max_samples={consumed + samples}",
            *("trainer.val_every_steps=null", "trainer.val_samples=null"),
            f"trainer.max_val_samples={validated}",
            f"trainer.num_nodes={self.stage.num_nodes}",
            f"data.micro_batch_size={self.stage.micro_batch_size}",
            *("rampup.micro_batch=fixed", "rampup.node_policy=fixed", "rampup.nodes=null"),
            *("trainer.accumulate_grad_batches=null", "launch.elastic=false"),
            *("resume=must", "checkpoint.keep_last=1"),
            *("average.ema=null", "average.merge=null"),
            *("logging.trackers=[]", "logging.observers=[]"),
            *("profile.steps=null", "generate.prompts=[]"),
        ]
