"""The training loop."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from rampcli.batch.averages import MERGE, MERGE_KEY, merged_checkpoints
from rampcli.batch.plan import BatchPlan
from rampcli.batch.training_plan import StagePlan, TrainingPlan
from rampcli.checkpoint.save import Checkpoints
from rampcli.checkpoint.state import TrainingState
from rampcli.data.loader import Batch, Loader
from rampcli.machine.activity import COMPILING, COMPUTING, ENDING, READING, SAVING, begin
from rampcli.parallel.ranks import RankError, broadcast_from_rank_0
from rampcli.runs.directory import COMPLETE, PREEMPTED, STAGE_BOUNDARY
from rampcli.schedule.learning_rate import Couplings, LearningRate, StepValues
from rampcli.settings.config import Config
from rampcli.train.average import WeightAverage, begun, mean_with_checkpoints
from rampcli.train.compiling import compile_passes
from rampcli.train.group_norms import GroupNorms
from rampcli.train.guard import StepGuard
from rampcli.train.observers.model_observer import Measurement, ModelObserver
from rampcli.train.observers.observer import LoopObserver
from rampcli.train.passes import Passes
from rampcli.train.step import (
    TakenStep,
    Validation,
    accumulate_gradient,
    update_weights,
    validate,
)
from rampcli.train.stopping import StopAgreed, Stopper


@dataclass(kw_only=True, slots=True)
class Trainer:
    """Trains a model through the stages of a plan, starting at `state`.

    On a GPU, the host starts a step while the step before it is computed. It learns a step's
    numbers after the passes of the next step are queued, so that the GPU never waits for the host.

    Attributes:
        guard: says which steps are skipped.
        runs_ahead: whether steps overlap in this way.
        validation_loaders: read the validation corpora, by name; None if the corpus has no name.
        measurers: observers that measure the model.
        norms: measures the noise of the gradient, if that is asked for.
        averages: averages that follow the weights, by setting of the section `average`.
        first_validated_sample: consumed samples at the start of the run, or of a phase that
            validates on other samples than the one before it, where a validation is due; else None.
        bytes_of_tokens: bytes of text that each token stands for, int32 [vocabulary], if known.
        micro_batch_s: seconds per micro batch in the last step whose numbers are known.
        compiled_micro_batch_size: micro batch size for which the layers are compiled, if they are.
        unfinished: waits for the numbers of the step that was started last, if they are unknown.
        finished_at: when the last numbers became known, by `time.perf_counter`.
    """

    config: Config
    plan: TrainingPlan
    learning_rate: LearningRate
    couplings: Couplings
    passes: Passes
    optimizers: Sequence[torch.optim.Optimizer]
    loader: Loader
    validation_loaders: Mapping[str | None, Loader]
    checkpoints: Checkpoints
    guard: StepGuard
    observers: LoopObserver
    measurers: Sequence[ModelObserver] = ()
    state: TrainingState
    stopper: Stopper
    runs_ahead: bool = False
    norms: GroupNorms | None = None
    averages: Mapping[str, WeightAverage] = field(default_factory=dict)
    bytes_of_tokens: Tensor | None = None
    first_validated_sample: int | None = 0
    micro_batch_s: float = 0.0
    compiled_micro_batch_size: int | None = None
    unfinished: Callable[[], TakenStep] | None = None
    finished_at: float = 0.0

    VALIDATION_EVENT: ClassVar[str] = "validation"
    """Event of events.jsonl that says that the run was validated at a step."""

    def run(self) -> str:
        """Trains until the run is complete, the next stage needs new processes, or a rank stops.

        Saves a checkpoint at the end and returns the status for state.json: COMPLETE,
        STAGE_BOUNDARY or PREEMPTED.

        Raises:
            RampcliError: a checkpoint cannot be saved, or a loss is not finite.
        """
        self.observers.at_start(self.state)
        try:
            status = self._train()
        except StopAgreed:
            status = PREEMPTED
        self.finish_step()
        began = time.perf_counter()
        if self.state.step > 0:
            self._save(is_last=True)
        begin(ENDING)
        self.observers.at_end(self.state, status, save_s=time.perf_counter() - began)
        return status

    def _train(self) -> str:
        self.compile()
        self._validate_if_owed()
        while not self._is_complete():
            self.compile()
            stage = self.plan.stage_at(self.state.consumed_samples)
            self.observers.at_stage(self.state, stage)
            for batch in self._batches(stage):
                self.start_step(batch)
                self.state.advance(batch.plan.global_batch_size)
                if not self.runs_ahead or self.observers.needs(self.state.step):
                    self.finish_step()
                self._save_and_validate_if_due(batch.plan)
            self.finish_step()
            consumed = self.state.consumed_samples
            if not self._is_complete() and self.plan.ends_processes(stage, consumed):
                self._validate_if_phase_ends(stage)
                return STAGE_BOUNDARY
        self.stopper.agree()  # else, texts that a stop has interrupted would be lost
        self._validate(self._batch_plan())
        return COMPLETE

    def _batches(self, stage: StagePlan) -> Iterator[Batch]:
        """Yields the batches of a stage, one per step, until the stage or the run ends."""
        batch_plan = self.plan.batch_on(stage, dist.get_world_size())
        while not self._is_complete() and self.plan.stage_at(self.state.consumed_samples) is stage:
            begin(READING)
            self.observers.before_step(self.state)
            yield self.read(batch_plan)

    def read(self, batch_plan: BatchPlan) -> Batch:
        """Reads this rank's share of the next global batch."""
        return self.loader.read(self.state.consumed_samples, batch_plan)

    def take_step(self, batch: Batch) -> TakenStep:
        """Takes a step and waits for its numbers. Observers are not called.

        Raises:
            StopAgreed: a rank must stop.
            RampcliError: a number is not finite, and the run ends at such steps.
        """
        self.start_step(batch)
        step = self._wait_for_step()
        assert step is not None
        return step

    def start_step(self, batch: Batch) -> None:
        """Queues a step on the device, and finishes the step before it.

        Raises:
            StopAgreed: a rank must stop.
            RampcliError: as `finish_step`.
        """
        batch_plan = batch.plan
        begin(COMPUTING)
        number = self.state.step + 1
        measurement = Measurement(self.measurers, number)
        measures_noise = (
            self.norms is not None
            and is_due(number, self.config.noise_scale.every_steps)
            and self.norms.measures(batch_plan)
        )
        result = accumulate_gradient(
            self.passes,
            batch.micro_batches,
            global_tokens=self._agree_on_tokens(batch.valid_tokens),
            gradient_clip_val=self.config.trainer.gradient_clip_val,
            between=self.stopper.agree_now_and_then,
            norms=self.norms if measures_noise else None,
            measure=partial(measurement.addends, self.passes),
        )
        self.finish_step()  # its numbers set the limits of this step
        values = self.values_after(batch_plan.global_batch_size, batch_plan)
        update_weights(self.optimizers, **asdict(values), skip=result.is_harmful(self.guard.limits))
        self._update_averages(batch_plan.global_batch_size)
        stage = self.plan.stage_at(self.state.consumed_samples)
        before = replace(self.state)

        def finish() -> TakenStep:
            known = result.wait()
            now = time.perf_counter()
            step_time_s = now - max(batch.began, self.finished_at)
            self.finished_at = now
            self.micro_batch_s = step_time_s / batch_plan.accumulate_grad_batches
            skipped = self.guard.judge(before, known)
            return TakenStep(
                stage=stage,
                batch=batch,
                result=known,
                lr=values.lr,
                skipped=skipped,
                step_time_s=step_time_s,
                columns=values.coupled() | measurement.columns(known.measured),
                noise=None if skipped else known.noise(sequences=batch_plan.global_batch_size),
            )

        self.unfinished = finish

    def _update_averages(self, samples: int) -> None:
        """Moves the averages of the weights after a step of `samples` samples.

        A skipped step counts as one that leaves the weights as they are: otherwise, the host would
        have to wait until a GPU has decided.
        """
        if not self.averages:
            return
        self.checkpoints.wait_for_copy()  # a skipped step may not have waited
        consumed = self.state.consumed_samples
        tokens_before, tokens_after = map(self.plan.tokens_at, (consumed, consumed + samples))
        for average in self.averages.values():
            average.follow(tokens_before, tokens_after)

    def values_after(self, samples: int, batch_plan: BatchPlan) -> StepValues:
        """Returns the values of the optimiser for an update after some more samples."""
        return self.couplings.at(
            self.learning_rate,
            self.state.consumed_samples + samples,
            global_batch_size=batch_plan.global_batch_size,
        )

    def finish_step(self) -> None:
        """Waits for the numbers of the step that was started last, and tells observers of it.

        Raises:
            RampcliError: a number is not finite, and the run ends at such steps.
        """
        step = self._wait_for_step()
        if step is not None:
            self.state.recent = self.guard.recent
            self.observers.after_step(self.state, step)

    def _wait_for_step(self) -> TakenStep | None:
        """Returns the step that was started last, or None if its numbers are known already."""
        finish, self.unfinished = self.unfinished, None
        return None if finish is None else finish()

    def _agree_on_tokens(self, valid_tokens: int) -> int:
        """Returns the valid tokens of the global batch.

        The same all-reduce tells every rank of stop requests, failed saves and rank 0's speed.
        """
        # Ranks wait for each other in every step, so rank 0's time is as good as any.
        micro_batch_s = self.micro_batch_s if dist.get_rank() == 0 else 0.0
        counted = valid_tokens if self.passes.meshes.counts_samples else 0
        request = self.stopper.request
        tokens, stop_requests, micro_batch_s, failures = self.passes.sum_over_ranks(
            [counted, request.asked, micro_batch_s, self.checkpoints.has_failed]
        )
        if failures:
            self.checkpoints.wait()
        if stop_requests:
            raise StopAgreed
        request.expect(micro_batch_s)
        return int(tokens)

    def _save_and_validate_if_due(self, batch_plan: BatchPlan) -> None:
        if self._is_complete():  # the checkpoint and the validation at the end follow
            return
        if is_due(self.state.step, self.config.checkpoint.every_steps):
            self._save()
        if is_due(self.state.step, self.config.trainer.val_every_steps):
            self._validate(batch_plan)

    def _save(self, *, is_last: bool = False) -> None:
        self.finish_step()
        begin(SAVING)
        self.checkpoints.save(self.state, is_last=is_last, on_saved=self.observers.after_checkpoint)

    def _validate(self, batch_plan: BatchPlan) -> None:
        """Validates the weights and their averages, with the split of the step just taken.

        At the end of a stage, the split of the next step may need other processes.
        """
        if not self.config.trainer.val_samples:
            return
        self.finish_step()
        averages = self._averages_to_validate()
        for corpus, loader in self.validation_loaders.items():
            validation = self._validate_on(corpus, loader, batch_plan)
            for kind, average in averages.items():
                self.checkpoints.wait_for_copy()
                with average.in_place_of_weights():
                    of_average = self._validate_on(corpus, loader, batch_plan)
                validation = replace(
                    validation,
                    of_averages={**validation.of_averages, kind: of_average.loss},
                    validation_s=validation.validation_s + of_average.validation_s,
                )
            self.observers.after_validation(self.state, validation)

    def _averages_to_validate(self) -> dict[str, WeightAverage]:
        """Returns the averages that have begun and, at the end of the run, that of checkpoints."""
        tokens = self.plan.tokens_at(self.state.consumed_samples)
        found = begun(self.averages, tokens)
        merged = None if MERGE in self.averages else self.config.average.merge
        if merged is None or not self._is_complete():
            return found
        self.checkpoints.wait()
        run, step = self.checkpoints.run, self.state.step
        try:
            found[MERGE] = mean_with_checkpoints(
                self.passes.parts, run, step=step, checkpoints=merged_checkpoints(merged)
            )
        except RankError as error:
            if dist.get_rank() == 0:
                reason = f"{MERGE_KEY}={merged} was not validated: {error}"
                run.append_event("fault", reason=reason)
        return found

    def _validate_on(self, corpus: str | None, loader: Loader, batch_plan: BatchPlan) -> Validation:
        samples = self.config.trainer.val_samples or 0
        return validate(
            self.passes,
            loader.read_first(samples, batch_plan),
            samples=samples,
            corpus=corpus,
            bytes_of_tokens=self.bytes_of_tokens,
            between=self.stopper.agree_now_and_then,
        )

    def _validate_if_phase_ends(self, stage: StagePlan) -> None:
        """Validates after the last step of a phase, unless that step was validated already."""
        following = self.plan.stage_at(self.state.consumed_samples)
        is_new = self.plan.of(following) is not self.plan.of(stage)
        if is_new and not is_due(self.state.step, self.config.trainer.val_every_steps):
            self._validate(self.plan.batch_on(stage, dist.get_world_size()))

    def _validate_if_owed(self) -> None:
        """Validates if the run starts, or if the validation after this step was interrupted.

        At step 0, an earlier validation does not count: the settings may have changed since then.
        Nor does it at the start of a phase that validates on other samples.
        """
        step, consumed = self.state.step, self.state.consumed_samples
        is_point = self.plan.begins_phase(consumed) or is_due(
            step, self.config.trainer.val_every_steps
        )
        is_owed = consumed == self.first_validated_sample or (is_point and not self._is_validated())
        if is_owed and not self._is_complete():
            self._validate(self._batch_plan())

    def _is_validated(self) -> bool:
        """Returns whether rank 0 finds a validation of each corpus at this step in events.jsonl."""
        corpora = set()
        if dist.get_rank() == 0:
            found = self.checkpoints.run.events_at(self.state.step, self.VALIDATION_EVENT)
            corpora = {row.get("corpus") for row in found}
        return bool(broadcast_from_rank_0(corpora.issuperset(self.validation_loaders)))

    def compile(self) -> None:
        """Compiles the layers if that is asked for and the micro batch size has changed.

        Drops the code that was compiled for another size: torch.compile stops compiling a layer
        after eight versions.
        """
        batch_plan, compiled = self._batch_plan(), self.compiled_micro_batch_size
        if not self.config.trainer.compile or compiled == batch_plan.micro_batch_size:
            return
        began = time.perf_counter()
        begin(COMPILING)
        if compiled is not None:
            torch.compiler.reset()
        compile_passes(self.passes, self.config, batch_plan)
        self.compiled_micro_batch_size = batch_plan.micro_batch_size
        self.observers.after_compile(self.state, compile_s=time.perf_counter() - began)

    def _batch_plan(self) -> BatchPlan:
        stage = self.plan.stage_at(self.state.consumed_samples)
        return self.plan.batch_on(stage, dist.get_world_size())

    def _is_complete(self) -> bool:
        return self.plan.is_complete(self.state.consumed_samples)


def is_due(step: int, every_steps: int | None) -> bool:
    """Returns whether something that happens every few steps happens after a step."""
    return every_steps is not None and step % every_steps == 0
