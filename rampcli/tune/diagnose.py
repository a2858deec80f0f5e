"""Measures on this rank where the time of a training step goes.

The exchange between data-parallel ranks is switched off, so that its time can be measured. A rank
then uses its own numbers in place of the other ranks' numbers, or zeros in Muon's step. It does all
other work of a step, with the same memory.
"""

import resource
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.optim import Optimizer

from rampcli.data.loader import STEPS_AHEAD, Batch, MicroBatch
from rampcli.machine.host import swapped_bytes
from rampcli.parallel.collectives import Collective, collectives_of, set_collectives
from rampcli.parallel.mesh import CONTEXT, PIPELINE, REPLICATE, SHARD, TENSOR, Meshes
from rampcli.parallel.ranks import broadcast_from_rank_0
from rampcli.settings.optimizers import OPTIMIZERS
from rampcli.train.loop import Trainer
from rampcli.train.muon import Muon
from rampcli.train.passes import Passes
from rampcli.train.stopping import Stopper, StopRequest
from rampcli.tune.diagnosis import (
    ALONE,
    AS_IS,
    IN_MEMORY,
    NO_EXCHANGE,
    NO_GRADIENTS,
    NO_TOKENS,
    NO_WEIGHTS,
    Diagnosis,
    PartName,
)
from rampcli.tune.median import FEWEST
from rampcli.tune.sizes import timed_batch_plan
from rampcli.tune.trial_files import TrialOrder

ROUND_S = 0.05
"""Time of the steps that are taken in a row under the same conditions, unless one takes longer."""
MOST_STEPS_IN_ROW = 20
FEW_TOKENS = 8
"""Tokens of the micro batch that is timed in place of an empty one."""
FIRST_BATCHES = 2**20
"""A diagnosis starts at one of these first batches, so that a second one reads uncached batches."""


@dataclass(slots=True)
class MemoryPressure:
    """Counts signs that memory is short while steps are taken.

    Attributes:
        seen: counts of `rampcli.tune.trial_files.SIGNS`.
    """

    device: torch.device
    seen: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Adds the signs of a step to `seen`."""
        before = self._now()
        yield
        # The difference leaves out what has become less, such as swapped memory that was read back.
        self.seen += self._now() - before
        self.seen["watched_steps"] += 1

    def _now(self) -> Counter[str]:
        retries = 0
        if self.device.type == "cuda":
            retries = torch.cuda.memory_stats(self.device).get("num_alloc_retries", 0)
        return Counter(
            allocator_retries=retries,
            major_faults=resource.getrusage(resource.RUSAGE_SELF).ru_majflt,
            swapped_bytes=swapped_bytes(),
        )


class SwitchableExchange:
    """The exchange between the data-parallel ranks, which can be switched off.

    Attributes:
        gathers_weights: whether weights are gathered from the other ranks.
        reduces_gradients: whether gradients are reduced over the ranks.
    """

    def __init__(self, passes: Passes, optimizers: Iterable[Optimizer]) -> None:
        """Takes over the exchange of a model and its optimisers."""
        self.passes = passes
        self._muons = [one for one in optimizers if isinstance(one, Muon)]
        self.gathers_weights = self.reduces_gradients = True
        # FSDP sets no gradients until they are reduced over replicas.
        self._sets_none = passes.meshes.weights[REPLICATE].size() > 1 and any(
            isinstance(part, FSDPModule) for part in passes.parts
        )
        self._gradients: list[Tensor] | None = None
        for part in passes.parts:
            for module, gather, reduce in collectives_of(part, passes.meshes.weights):
                set_collectives(
                    module,
                    switchable(gather, repeat_shard, lambda: self.gathers_weights),
                    switchable(reduce, take_part, lambda: self.reduces_gradients),
                )

    def limit_to(self, *, gradients: bool, weights: bool, sums: bool) -> None:
        """Switches the exchanges off that are False, and the others on.

        Args:
            gradients: reduce gradients over the data-parallel ranks, and bring those of Muon to
                the ranks that orthogonalise them.
            weights: gather sharded weights.
            sums: sum losses, gradient norms and token counts over all ranks.
        """
        self.reduces_gradients = self.passes.reduces_over_replicas = gradients
        self.gathers_weights = weights
        self.passes.sums_over_ranks = sums
        for muon in self._muons:
            muon.exchanges = gradients

    def fill_gradients(self) -> None:
        """Sets zero gradients where a step without reductions sets none. Call it before a step."""
        if self.reduces_gradients or not self._sets_none:
            return
        parameters = [weight for part in self.passes.parts for weight in part.parameters()]
        if self._gradients is None:
            self._gradients = [torch.zeros_like(weight) for weight in parameters]
        for weight, gradient in zip(parameters, self._gradients, strict=True):
            weight.grad = gradient


def switchable(
    collective: Collective,
    alone: Callable[[Tensor, Tensor, dist.ProcessGroup], None],
    is_on: Callable[[], bool],
) -> Collective:
    """Returns a collective of FSDP that can be switched off.

    Args:
        collective: the collective that FSDP uses.
        alone: fills the output from the input of this rank instead.
        is_on: whether the collective is used.
    """

    def run(
        output: Tensor, mine: Tensor, *, group: dist.ProcessGroup, **options: Any
    ) -> dist.Work | None:
        if is_on():
            return collective.run(output, mine, group=group, **options)
        alone(output, mine, group)
        return None

    return replace(collective, run=run)


def repeat_shard(gathered: Tensor, shard: Tensor, group: dist.ProcessGroup) -> None:
    """Copies this rank's shard to the places of the other ranks' shards."""
    for rank, place in enumerate(gathered.view(group.size(), -1)):
        if rank != group.rank():  # the shard is this rank's part of the gathered weights
            place.copy_(shard)


def take_part(part: Tensor, gradients: Tensor, group: dist.ProcessGroup) -> None:
    """Takes this rank's part of its own gradients."""
    part.copy_(gradients.view(group.size(), -1)[group.rank()])


def why_gradients_need_exchange(meshes: Meshes) -> str | None:
    """Returns why the exchange of gradients cannot be switched off, or None if it can."""
    replicas, shards = meshes.weights[REPLICATE].size(), meshes.weights[SHARD].size()
    if replicas * shards == 1:
        return "there is one data-parallel rank"
    if replicas > 1 and meshes.size(PIPELINE) > 1:
        return "a pipeline reduces gradients over replicas by itself"
    return None


def why_step_needs_all_ranks(meshes: Meshes, optimizer: str) -> str | None:
    """Returns why a rank cannot take a step without the others, or None if it can.

    Args:
        optimizer: `optim.optimizer`.
    """
    for axis in (PIPELINE, TENSOR, CONTEXT):
        if meshes.size(axis) > 1:
            return f"{axis} parallelism needs the other ranks"
    if optimizer not in OPTIMIZERS:
        return f"optim.optimizer={optimizer}, a part of your own, may need the other ranks"
    return why_gradients_need_exchange(meshes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """The parts of a step that are active while it is timed.

    Attributes:
        reads: the step reads its samples. Otherwise, it uses an earlier step's.
        gradients, weights, sums: the ranks exchange these, as in `Exchange.limit_to`.
        alone: rank 0 takes the step, and the others wait.
        few_tokens: each micro batch has one sample of `FEW_TOKENS` tokens.
        threads: number of threads. None keeps that of training.
    """

    reads: bool = False
    gradients: bool = True
    weights: bool = True
    sums: bool = True
    alone: bool = False
    few_tokens: bool = False
    threads: int | None = None


def diagnose(
    trainer: Trainer,
    order: TrialOrder,
    pressure: MemoryPressure,
    *,
    after_round: Callable[[Diagnosis], None],
) -> Diagnosis:
    """Times steps under all conditions in turn, round by round, until the differences are known.

    Other load on the machine thus affects all conditions alike.

    Args:
        after_round: receives what is known so far, on each rank.
    """
    assert order.diagnose_s is not None
    deadline = time.monotonic() + order.diagnose_s
    bench = Bench(trainer, order.timed[-1], pressure)
    conditions, not_measured = conditions_of(trainer)
    fewer = fewer_threads(trainer)
    measured = [*conditions.values(), *(Condition(threads=count) for count in fewer)]
    for condition in measured:
        bench.warm_up(condition, order.effort.warm_up_steps)
    pressure.seen.clear()
    times: list[list[float]] = [[] for _ in measured]
    diagnosis = Diagnosis(
        seconds=dict(zip(conditions, times, strict=False)),
        by_threads=dict(zip(fewer, times[len(conditions) :], strict=True)),
        not_measured=not_measured,
        threads=bench.threads,
        tokens_per_micro_batch=FEW_TOKENS,
    )
    effort, is_known = order.effort, False
    while not broadcast_from_rank_0(is_known):
        for condition, seconds in zip(measured, times, strict=True):
            seconds.append(bench.seconds_of(condition))
        after_round(diagnosis)
        rounds = diagnosis.rounds
        is_over = rounds >= effort.most_steps or time.monotonic() > deadline
        is_known = rounds >= FEWEST and (is_over or diagnosis.is_precise(spread=effort.spread))
    return diagnosis


def conditions_of(trainer: Trainer) -> tuple[dict[str, Condition], dict[str, str]]:
    """Returns the conditions to measure, and why some parts of a step cannot be measured."""
    meshes = trainer.passes.meshes
    found = {AS_IS: Condition(reads=True), IN_MEMORY: Condition()}
    missed: dict[str, str] = {}
    if dist.get_world_size() > 1:
        if reason := why_gradients_need_exchange(meshes):
            missed[PartName.GRADIENTS] = reason
        else:
            found[NO_GRADIENTS] = Condition(gradients=False)
            if meshes.weights[SHARD].size() > 1:
                found[NO_WEIGHTS] = Condition(gradients=False, weights=False)
        if reason := why_step_needs_all_ranks(meshes, trainer.config.optim.optimizer):
            missed |= {PartName.WAITING: reason, PartName.NEIGHBOURS: reason}
        else:
            found[NO_EXCHANGE] = Condition(gradients=False, weights=False, sums=False)
            found[ALONE] = replace(found[NO_EXCHANGE], alone=True)
    if dist.get_world_size() > 1 and ALONE not in found:
        missed[PartName.FIXED] = missed[PartName.WAITING]
    elif trainer.config.trainer.compile:
        missed[PartName.FIXED] = "the layers are compiled for one size"
    else:
        found[NO_TOKENS] = replace(list(found.values())[-1], reads=False, few_tokens=True)
    return found, missed


def fewer_threads(trainer: Trainer) -> list[int]:
    """Returns the numbers of threads to compare with: half as many, a quarter, and so on to 1.

    Counting processors would not tell the best number: a container may limit the time on them.
    """
    if trainer.passes.device.type != "cpu" or trainer.config.trainer.compile:
        return []  # compiled layers keep the number of threads that they were compiled for
    threads = torch.get_num_threads()
    return [threads >> halvings for halvings in range(1, threads.bit_length())]


class Bench:
    """Takes steps of one trainer under changing conditions.

    The learning rate is 0, so that all steps compute with the same weights.

    Args:
        accumulate: micro batches per step.
    """

    def __init__(self, trainer: Trainer, accumulate: int, pressure: MemoryPressure) -> None:
        trainer.learning_rate = replace(trainer.learning_rate, start=0.0, peak=0.0, floor=0.0)
        trainer.observers.at_start(trainer.state)
        trainer.compile()
        self.trainer = trainer
        self.stopper = trainer.stopper
        self.threads = torch.get_num_threads()
        self.pressure = pressure
        self.stage = trainer.plan.stage_at(trainer.state.consumed_samples)
        self.batch_plan = timed_batch_plan(self.stage, accumulate)
        self.exchange = SwitchableExchange(trainer.passes, trainer.optimizers)
        # gloo, because a rank that waits for NCCL keeps its processor busy.
        self.waiting = dist.new_group(backend="gloo")
        self.in_row = 1
        self._skip(broadcast_from_rank_0(int(time.time()) % FIRST_BATCHES))
        self.batch = self._read()

    def warm_up(self, condition: Condition, steps: int) -> None:
        """Takes untimed steps. Steps that read also decide how many are taken in a row."""
        step_s = 0.0
        for _ in range(steps):
            step_s = self.seconds_of(condition)
        if condition.reads and steps:
            wanted = min(MOST_STEPS_IN_ROW, max(1, round(ROUND_S / step_s)))
            self.in_row = broadcast_from_rank_0(wanted)

    def seconds_of(self, condition: Condition) -> float:
        """Returns the mean time of a step. Ranks that wait for rank 0 return 0.

        The first step of a row does not count: threads and gradients are still those of another
        condition, and no batch was read ahead.

        Raises:
            StopAgreed: a rank was asked to stop.
        """
        seconds = [0.0]
        torch.set_num_threads(condition.threads or self.threads)
        self.exchange.limit_to(
            gradients=condition.gradients, weights=condition.weights, sums=condition.sums
        )
        # Ranks that agree on nothing lose count of when to ask each other.
        silent = Stopper(StopRequest(), self.trainer.passes)
        self.trainer.stopper = self.stopper if condition.sums else silent
        if not condition.alone or dist.get_rank() == 0:
            seconds = [self._time_step(condition) for _ in range(1 + self.in_row)][1:]
        if condition.alone:
            dist.barrier(group=self.waiting)
        if condition.reads:
            # Nothing is read in the background of the following steps. Batches that were read ahead
            # are in the page cache, so they are skipped.
            self.trainer.loader.stop_reading_ahead()
            self._skip(1 + STEPS_AHEAD)
        return fmean(seconds)

    def _time_step(self, condition: Condition) -> float:
        if condition.reads:
            self.batch = self._read()
        batch = _shortened(self.batch) if condition.few_tokens else self.batch
        if not condition.reads:
            batch = replace(batch, began=time.perf_counter(), data_time_s=0.0)
        self.exchange.fill_gradients()
        # Reading from a file also faults pages in from the disk, without a lack of memory.
        with self.pressure.watched():
            return self.trainer.take_step(batch).step_time_s

    def _read(self) -> Batch:
        batch = self.trainer.read(self.batch_plan)
        self._skip(1)
        return batch

    def _skip(self, batches: int) -> None:
        self.trainer.state.advance(batches * self.batch_plan.global_batch_size)


def _shortened(batch: Batch) -> Batch:
    """Returns a batch whose micro batches have one sample of `FEW_TOKENS` tokens."""
    few = [
        MicroBatch(
            each.tokens[:1, :FEW_TOKENS],
            each.labels[:1, :FEW_TOKENS],
            None if each.positions is None else each.positions[:1, :FEW_TOKENS],
        )
        for each in batch.micro_batches
    ]
    return replace(batch, micro_batches=few)
