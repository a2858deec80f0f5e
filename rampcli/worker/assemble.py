"""Trains on this rank: joins the other ranks, builds, loads and trains."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
import torch._dynamo  # otherwise optimisers and FSDP import it in the first step
import torch.distributed as dist
from tokenizers import Tokenizer
from torch import Tensor

from rampcli.batch.pairs import GENERATIONS_KEY
from rampcli.config import snapshot
from rampcli.config.layers import sources_named
from rampcli.data.loader import Loader, build_reading
from rampcli.data.sources import open_corpora
from rampcli.data.special_tokens import NONE_KNOWN
from rampcli.data.tokenizer import bytes_of_tokens
from rampcli.errors import EXIT_INTERRUPTED, OutOfMemoryError, UsageError, reason_of
from rampcli.estimate.memory import micro_batch_part
from rampcli.machine.activity import COMPILING, JOINING, LOADING, begin, waiting
from rampcli.machine.gpus import visible_gpus
from rampcli.machine.host import processors
from rampcli.machine.lifeline import SUPERVISOR
from rampcli.models.linear import multiplies_in_bf16, set_matmul_precision
from rampcli.models.masks import has_flex_attention
from rampcli.models.parts import dense_mask_bytes, mask_bytes
from rampcli.parallel.mesh import DATA, build_meshes
from rampcli.parallel.ranks import device_here, gather_from_all_ranks, is_out_of_memory
from rampcli.planning.choices import is_chosen_by_plan, with_choice
from rampcli.planning.out_of_memory import out_of_memory
from rampcli.planning.run_plan import Resolved, ResolvedPhase, run_plan
from rampcli.planning.stage_memory import shorten_bytes
from rampcli.runs.directory import PREEMPTED, RunDirectory
from rampcli.runs.manifest import consumed_samples
from rampcli.runs.worker_defaults import recorded
from rampcli.settings.config import Config
from rampcli.settings.data import validation_names
from rampcli.settings.rl import is_rl, unit_of
from rampcli.settings.trainer import TrainerConfig
from rampcli.train.compiling import COMPILER_REMEDY, compile_ahead, why_not_compiled
from rampcli.train.group_norms import GroupNorms
from rampcli.train.guard import StepGuard
from rampcli.train.loop import Trainer
from rampcli.train.observers.boundary import BoundaryCosts
from rampcli.train.observers.every_rank import GarbageCollection, OrderAudit, StepTimeout
from rampcli.train.observers.journal import Journal
from rampcli.train.observers.model_observer import ModelObserver, build_model_observers
from rampcli.train.observers.observer import LoopObserver, ObserverList
from rampcli.train.observers.step_warnings import FlatRewards, SlowData
from rampcli.train.observers.text_samples import TextSamples
from rampcli.train.passes import Passes
from rampcli.train.stopping import Stopper, StopRequest
from rampcli.worker.join import join_ranks
from rampcli.worker.load import Loaded, load_model_and_state
from rampcli.worker.starters import rank_of

MOST_OF_REASON = 300
"""Characters that are shown of the compiler's own message."""


@contextmanager
def naming_out_of_memory(
    resolved: Resolved,
    consumed_samples: Callable[[], int],
    *,
    error_of: Callable[..., OutOfMemoryError] = out_of_memory,
) -> Iterator[None]:
    """Turns an allocation that fails in the block into an error that a user understands.

    The log gets torch's own message.

    Args:
        consumed_samples: returns the samples consumed so far, which tell the stage.
        error_of: returns the error, as `out_of_memory`.

    Raises:
        OutOfMemoryError: an allocation failed.
    """
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        print(reason_of(error), file=sys.stderr)  # noqa: T201
        reason = f"rank {rank_of(os.environ)} ran out of memory"
        raise error_of(resolved, consumed_samples=consumed_samples(), reason=reason) from error


def build_trainer(
    resolved: Resolved,
    phase: ResolvedPhase,
    run: RunDirectory,
    device: torch.device,
    stop: StopRequest,
    costs: BoundaryCosts,
) -> Trainer:
    """Returns a trainer with everything that a run needs and with the newest checkpoint loaded."""
    config = phase.config
    if is_rl(config):
        raise UsageError(
            "this run uses reinforcement learning, which rampcli.worker does not do",
            keys=(GENERATIONS_KEY,),
            remedy="python -m rampcli.rl.rank RUN_DIR",
        )
    timeout = timedelta(seconds=config.launch.start_timeout_s)
    meshes = build_meshes(device, config.parallel, timeout=timeout)
    reading = build_reading(config, meshes.data_ranks)
    corpora = open_corpora(config) if reading.reads else None
    loaded = load_model_and_state(
        resolved,
        phase,
        run,
        meshes,
        device,
        fingerprints=corpora.training.fingerprints if corpora else None,
        tokenizer=corpora.tokenizer if corpora else None,
        special_tokens=corpora.special_tokens if corpora else NONE_KNOWN,
    )
    passes = Passes(config, loaded.parts, meshes, device)
    observers = build_observers(resolved, phase, run, passes, loaded, costs, stop)
    return Trainer(
        config=config,
        plan=resolved.plan,
        learning_rate=phase.rate,
        couplings=phase.couplings(),
        passes=passes,
        optimizers=loaded.optimizers,
        loader=Loader(
            corpora.training.starting_at(phase.reading) if corpora else None,
            reading=reading,
            device=device,
        ),
        validation_loaders={
            name: Loader(
                corpora.validation[name] if corpora else None, reading=reading, device=device
            )
            for name in validation_names(config)
        },
        bytes_of_tokens=agreed_bytes_of_tokens(
            loaded.tokenizer, vocab_size=config.model.vocabulary, device=device
        ),
        checkpoints=loaded.checkpoints,
        guard=build_guard(config, loaded),
        observers=ObserverList(observers),
        measurers=[one for one in observers if isinstance(one, ModelObserver)],
        state=loaded.state,
        stopper=Stopper(stop, passes),
        averages=loaded.averages,
        first_validated_sample=phase.first_validated_sample,
        runs_ahead=device.type == "cuda",
        norms=None
        if config.noise_scale.every_steps is None
        else GroupNorms(loaded.parts, meshes, pieces=passes.pieces),
    )


Build = Callable[
    [Resolved, ResolvedPhase, RunDirectory, torch.device, StopRequest, BoundaryCosts], Trainer
]
"""Returns a trainer with everything that a run needs and with the newest checkpoint loaded."""


def train(
    run: RunDirectory, stop: StopRequest, *, started: float, build: Build = build_trainer
) -> int:
    """Trains what the run directory's snapshot describes, and returns the exit code.

    It trains the phase that the newest checkpoint leads to.
    """
    imported = time.time()
    consumed = consumed_samples(run)
    resolved = run_plan(snapshot.read(run.config), consumed_samples=consumed)
    phase = resolved.at(consumed)
    with sources_named(phase.config):
        trainer_config = phase.config.trainer
        tries_compiler = trainer_config.compile and is_chosen_by_plan(
            phase.config, TrainerConfig.compile
        )
        if tries_compiler:
            begin(COMPILING)
            cannot_compile = why_not_compiled(device_here(trainer_config.accelerator))
        begin(JOINING)
        with waiting:
            device = join_ranks(trainer_config, timeout_s=phase.config.launch.start_timeout_s)
        set_matmul_precision(trainer_config.matmul_precision)
        if tries_compiler:
            phase = with_working_compiler(phase, run, cannot_compile)
        begin(LOADING)
        if dist.get_rank() == 0:
            for reason in departures_from_plan(phase.config, device):
                run.append_event("fault", reason=reason)
            run.append_event(
                "load",
                compiles=phase.config.trainer.compile,
                processors=processors(),
                environment=recorded(),
            )
        costs = BoundaryCosts(run=run, started=started, imported=imported)
        trainer = None
        with naming_out_of_memory(
            resolved, lambda: trainer.state.consumed_samples if trainer else consumed
        ):
            trainer = build(resolved, phase, run, device, stop, costs)
            status = trainer.run()
    return EXIT_INTERRUPTED if status == PREEMPTED else 0


def with_working_compiler(
    phase: ResolvedPhase, run: RunDirectory, reason: str | None
) -> ResolvedPhase:
    """Returns the phase, with `trainer.compile=false` if any rank cannot compile layers.

    All ranks call this together, so that they make the same choice. Rank 0 records a warning.

    Args:
        reason: why this rank cannot compile layers, or None if it can.
    """
    with waiting:
        facts = gather_from_all_ranks({"reason": reason and reason[:MOST_OF_REASON]})
    reasons = {rank: each["reason"] for rank, each in enumerate(facts) if each["reason"]}
    if not reasons:
        return phase
    if dist.get_rank() == 0:
        rank, reason = next(iter(reasons.items()))
        run.append_event(
            "fault",
            reason=f"rank {rank} cannot compile layers, so no rank does; compiling needs"
            f" {COMPILER_REMEDY}: {reason}",
        )
    return with_choice(phase, TrainerConfig.compile, False)


def departures_from_plan(config: Config, device: torch.device) -> Iterator[str]:
    """Yields warnings about this machine.

    Each names something that makes steps slower, or makes them take more memory, than planned.
    """
    trainer = config.trainer
    if device.type == "cpu" and trainer.accelerator != "cpu" and (gpus := visible_gpus()):
        yield (
            f"this machine has GPU {', '.join(gpus)}, and torch {torch.__version__} cannot use it:"
            " the run trains on the CPU; `rampcli doctor` says why"
        )
    if device.type != "cpu" and processors() == 1:
        yield (
            "a process may use 1 processor, on which reading samples and saving checkpoints delay"
            " the step; launch.slurm.cpus_per_task=8 asks Slurm for more"
        )
    batch = micro_batch_part(config, samples=1)
    size_bytes = dense_mask_bytes(config.model, batch) - mask_bytes(config.model, batch)
    if device.type != "cpu" and size_bytes and not has_flex_attention(device, config.model):
        yield (
            "flex attention needs the package triton, which is not installed: the mask of a sample"
            f" takes {shorten_bytes(size_bytes)}, which the plan does not count"
        )
    if trainer.matmul_precision == "medium" and not multiplies_in_bf16(device):
        yield (
            "/proc/cpuinfo lists neither avx512_bf16 nor amx_bf16: trainer.matmul_precision=medium"
            " computes in fp32 and is not faster than `highest`"
        )


def agreed_bytes_of_tokens(
    tokenizer: str | None, *, vocab_size: int, device: torch.device
) -> Tensor:
    """Returns how many bytes of text each token stands for, int32 [vocabulary]; 0 if unknown.

    `tokenizer` is the content of tokenizer.json on rank 0, which always reads data and tells the
    others. Every rank calls this.
    """
    shared = torch.zeros(vocab_size, dtype=torch.int32, device=device)
    if dist.get_rank() == 0 and tokenizer is not None:
        known = bytes_of_tokens(Tokenizer.from_str(tokenizer), vocab_size=vocab_size)
        shared.copy_(torch.from_numpy(known))
    with waiting:
        dist.broadcast(shared, src=0)
    return shared


def build_guard(config: Config, loaded: Loaded) -> StepGuard:
    """Returns what says which steps are skipped. Every rank has one."""
    return StepGuard(
        on_nonfinite=config.trainer.on_nonfinite,
        sigma=config.optim.skip_step_sigma,
        recent=loaded.state.recent,
        checkpoints=loaded.checkpoints,
        unit=unit_of(config),
    )


def build_observers(
    resolved: Resolved,
    phase: ResolvedPhase,
    run: RunDirectory,
    passes: Passes,
    loaded: Loaded,
    costs: BoundaryCosts,
    stop: StopRequest,
) -> list[LoopObserver]:
    """Returns this rank's observers in the order in which they are called.

    Workers without a supervisor start the trackers themselves.
    """
    config = phase.config
    observers: list[LoopObserver] = []
    if not is_rl(config):  # whose ranks wait for the whole rollouts of others
        observers.append(StepTimeout(resolved.plan, passes.meshes, config.launch))
    if config.trainer.gc_every_micro_batches is not None:
        observers.append(GarbageCollection(config.trainer.gc_every_micro_batches))
    if config.data.audit_order:
        observers.append(OrderAudit(passes.meshes.data[DATA], passes.device))
    measurers = build_model_observers(config)
    observers += measurers
    if dist.get_rank() == 0:
        if measurers:
            run.write_columns([metric for one in measurers for metric in one.metrics])
        journal = Journal(
            run,
            resolved.plan,
            config,
            passes.device,
            phase=phase.plan.name,
            first_step=phase.first_step_of_length,
        )
        observers += [journal, costs]
        # The ranks of reinforcement learning wait for responses, not for data.
        observers.append(FlatRewards(run) if is_rl(config) else SlowData(run))
        if config.logging.trackers and SUPERVISOR not in os.environ:
            from rampcli.worker.tracking import Tracking  # which imports launchers

            observers.append(Tracking(run, config.logging.trackers))
    if config.profile.steps:
        from rampcli.train.observers.profiler import Profiler  # which imports torch's profiler

        steps, ranks = config.profile.steps, config.profile.ranks
        observers.append(Profiler(run, steps=steps, ranks=ranks, device=passes.device))
    if config.generate.prompts:
        observers.append(
            TextSamples(
                run,
                resolved.plan,
                config,
                passes,
                tokenizer=loaded.tokenizer,
                special_tokens=loaded.special_tokens,
                stop=stop,
            )
        )
    return observers


def compile_next_stage(run: RunDirectory, *, world_size: int) -> None:
    """Compiles a layer for the next processes of a run, if it compiles layers.

    Does nothing with GPUs: the compiler asks CUDA for them, and other workers still use them.
    """
    if visible_gpus():
        return
    consumed = consumed_samples(run)
    resolved = run_plan(snapshot.read(run.config), consumed_samples=consumed)
    first_stages = [stages[0] for stages in resolved.plan.stages_by_processes()]
    following = next((stage for stage in first_stages if stage.first_sample > consumed), None)
    if following is None:
        return
    config = resolved.of(following).config
    if not config.trainer.compile:
        return
    set_matmul_precision(config.trainer.matmul_precision)
    with suppress(UsageError):  # the batch of another stage does not divide over these ranks
        micro = resolved.plan.batch_on(following, world_size).micro_batch_size
        compile_ahead(config, micro_batch_size=micro, world_size=world_size)
