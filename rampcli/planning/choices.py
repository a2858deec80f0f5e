"""Settings whose null leaves a choice to the plan: when gradients are reduced, and compilation."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rampcli.config.layers import PLAN_PLACE, Entry, Layer, Precedence, stack_of
from rampcli.estimate.layer_memory import gradient_bytes, needs_fsdp
from rampcli.estimate.model_size import flops_per_token
from rampcli.machine.gpus import visible_gpus
from rampcli.machine.host import processors
from rampcli.planning.run_plan import ResolvedPhase
from rampcli.planning.stage_memory import device_memory_bytes, stage_memory, usable_bytes
from rampcli.settings.config import Config
from rampcli.settings.rl import is_rl
from rampcli.settings.trainer import AccumulateReduce, TrainerConfig

TFLOPS_PER_THREAD, GPU_TFLOPS, GPU_MFU = 0.03, 100.0, 0.4
"""Speed of a thread, and of a GPU without `trainer.peak_tflops` and the share of it that training
reaches, where no throughput is known."""


def is_chosen_by_plan(config: Config, key: str) -> bool:
    """Returns whether nobody has set a setting that the plan chooses."""
    entry = stack_of(config).entry(key)
    return entry.value is None or entry.place == PLAN_PLACE


def with_choice(phase: ResolvedPhase, key: str, value: Any) -> ResolvedPhase:
    """Returns the phase with a value that the plan chose."""
    layer = Layer(PLAN_PLACE, Precedence.USER, {key: Entry(value, PLAN_PLACE, by=PLAN_PLACE)})
    return replace(phase, config=stack_of(phase.config).above(layer).config())


def with_choices(phase: ResolvedPhase) -> ResolvedPhase:
    """Returns the phase with the plan's choices for settings that are null."""
    for key, choose in CHOOSERS.items():
        if is_chosen_by_plan(phase.config, key):
            phase = with_choice(phase, key, choose(phase))
    return phase


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """What a way to reduce gradients costs, in the stages that need most.

    Attributes:
        memory_bytes: estimate of the fullest rank.
        sent_bytes: gradients that a rank sends per step, or per update in reinforcement learning.
    """

    memory_bytes: int
    sent_bytes: int


def _reduction(phase: ResolvedPhase) -> AccumulateReduce:
    """Returns `each` if the estimate of `last` does not fit the device and that of `each` is less.

    Otherwise returns `last`.
    """
    device = device_memory_bytes(phase.config)
    # A vocabulary that is unknown has no memory.
    ways = ways_to_reduce(phase) if device and phase.config.model.vocab_size else None
    if device is None or ways is None:
        return "last"
    most = max(usable_bytes(phase.config, device), ways["each"].memory_bytes)
    return "each" if ways["last"].memory_bytes > most else "last"


def ways_to_reduce(phase: ResolvedPhase) -> dict[AccumulateReduce, Way] | None:
    """Returns both ways, or None if they are the same.

    They differ if data-parallel ranks accumulate gradients that FSDP2 reduces, and there is no
    pipeline.
    """
    config, context = phase.config, phase.config.parallel.context_parallel_size
    accumulating = [
        stage
        for stage in phase.plan.stages
        if phase.passes(stage)[1] > 1
        and stage.data_parallel_size * context > 1
        and needs_fsdp(config, stage.data_parallel_size)
    ]
    if phase.plan.is_piped or not accumulating:
        return None
    ways: dict[AccumulateReduce, Way] = {}
    for name in ("last", "each"):
        changed = with_choice(phase, TrainerConfig.accumulate_reduce, name)
        ways[name] = Way(
            memory_bytes=max(
                stage_memory(changed, stage).peak_bytes for stage in changed.plan.stages
            ),
            sent_bytes=max(
                gradient_bytes(
                    changed.config,
                    data_parallel_size=stage.data_parallel_size,
                    reductions=phase.passes(stage)[1] if name == "each" else 1,
                )
                for stage in accumulating
            ),
        )
    return ways


@dataclass(frozen=True, kw_only=True, slots=True)
class Compiler:
    """What torch.compile takes and saves on a kind of device.

    Attributes:
        first_s: seconds until the first processes have compiled.
        start_s: seconds until later ones, of another stage, have loaded the compiled code.
        saved_share: share of the time of eager steps that compiled layers save.
    """

    first_s: float
    start_s: float
    saved_share: float


ON_CPU = Compiler(first_s=15.0, start_s=1.5, saved_share=0.04)
"""Measured with `llama3_tiny` and with tests/benchmarks/bench_step.py on two cores."""
ON_GPU = Compiler(first_s=60.0, start_s=5.0, saved_share=0.1)
"""Estimated: eager steps were not measured on a GPU."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Compilation:
    """What compiled layers cost and save in a run.

    Attributes:
        run_s: seconds of the steps of the whole run, or None if it has no end.
        compile_s: seconds in which its processes compile, or load compiled code.
        saved_s: seconds that compiled layers save in its steps, or None if it has no end.
    """

    run_s: float | None
    compile_s: float
    saved_s: float | None


def compilation_of(phase: ResolvedPhase) -> Compilation | None:
    """Returns what compiled layers cost and save, or None if the plan never chooses them.

    In reinforcement learning, each micro batch has a length of its own. Whether layers of another
    architecture can be compiled is unknown, and so is the work of a model without a vocabulary.
    """
    config = phase.config
    if is_rl(config) or config.model.family != "decoder" or not config.model.vocab_size:
        return None
    compiler = ON_GPU if is_on_gpus(config.trainer) else ON_CPU
    plan = phase.alone
    starts = len(plan.stages_by_processes())
    run_s, clock = plan.run_s(), plan.clock
    if run_s is None or clock is None:
        run_s = _estimated_s(phase)
    else:
        run_s -= plan.restarts() * clock.restart_s
    return Compilation(
        run_s=run_s,
        compile_s=compiler.first_s + (starts - 1) * compiler.start_s,
        saved_s=None if run_s is None else run_s * compiler.saved_share,
    )


def _estimated_s(phase: ResolvedPhase) -> float | None:
    """Returns the seconds that the floating-point operations of the run take, if it has an end."""
    config, trainer = phase.config, phase.config.trainer
    if phase.plan.samples is None:
        return None
    tflops = (
        GPU_MFU * (trainer.peak_tflops or GPU_TFLOPS)
        if is_on_gpus(config.trainer)
        else TFLOPS_PER_THREAD * max(1, processors() // trainer.devices)
    )
    length = config.data.sequence_length
    per_sample = length * flops_per_token(config.model, sequence_length=length)
    ranks_s = sum((stage.samples or 0) / stage.world_size for stage in phase.plan.stages)
    return ranks_s * per_sample / (tflops * 1e12)


def is_on_gpus(trainer: TrainerConfig) -> bool:
    """Returns whether a run is expected to train on GPUs: it must, or this machine has some."""
    accelerator = trainer.accelerator
    return accelerator == "gpu" or (accelerator == "auto" and bool(visible_gpus()))


def _compiles(phase: ResolvedPhase) -> bool:
    """Returns whether compiled layers save more time than compiling takes.

    It depends on all stages that are planned and not on what is left of the run, so that they
    compute with the same code. If a command that resumes a run chooses otherwise, for example on
    another machine, it says so like of every setting that changes.
    """
    compilation = compilation_of(phase)
    return compilation is not None and (
        compilation.saved_s is None or compilation.saved_s > compilation.compile_s
    )


CHOOSERS: dict[str, Callable[[ResolvedPhase], Any]] = {
    TrainerConfig.accumulate_reduce: _reduction,
    TrainerConfig.compile: _compiles,
}
"""Choices by setting."""
