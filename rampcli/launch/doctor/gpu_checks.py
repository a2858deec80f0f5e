"""The checks of `rampcli doctor --gpu`, in the order in which things fail on a new machine."""

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

from rampcli.batch.quantities import counted
from rampcli.errors import RampcliError, printable, reason_of
from rampcli.estimate.model_size import flops_per_token
from rampcli.launch.doctor.check import Check, NotOk, Status
from rampcli.launch.doctor.gpu_runs import (
    ALL_REDUCE,
    GpuTest,
    Processes,
    Settings,
    largest_power_of_two,
)
from rampcli.machine.gpus import ask_nvidia_smi, visible_gpus
from rampcli.planning.stage_memory import (
    CONTEXT_BYTES,
    MIB,
    USABLE_SHARE,
    fullest_stage,
    shorten_bytes,
    stage_memory,
)
from rampcli.runs.directory import RunDirectory
from rampcli.runs.manifest import complete_checkpoints
from rampcli.runs.rows import loss_of, read_rows
from rampcli.settings.data import DataConfig
from rampcli.settings.model import ModelConfig
from rampcli.settings.optim import OptimConfig
from rampcli.settings.parallel import ParallelConfig
from rampcli.settings.rampup import RampupConfig
from rampcli.settings.trainer import CheckpointConfig, TrainerConfig

TOLERANCES = {"loss": 2**-8, "grad_norm": 2**-5}
"""Largest relative differences of columns of metrics.jsonl. bf16 has 8 significant bits."""
ESTIMATE_REMEDY = "this report, sent to the developers of rampcli: estimates are wrong on this GPU"
SLOW_SHARE = 0.9
"""A GPU is slow if its speed is below this share of the fastest one's."""
LEAST_USED_SHARE = 0.7
"""An estimate of memory is too high if less than this share of it is used."""
GPUS, MATRICES, REFERENCE = "gpus", "matrix products", "CPU losses"
TENSOR_KEY, PIPELINE_KEY, CONTEXT_KEY = (
    f"parallel.{axis}_parallel_size" for axis in ("tensor", "pipeline", "context")
)


@dataclass(frozen=True, slots=True)
class GpuCheck:
    """A check, and the names of those that must be ok before it runs.

    Attributes:
        work: checks, and returns the finding in one line. Further lines are for the report. Raises
            `NotOk`, or any other error for a failure.
    """

    name: str
    work: Callable[[GpuTest], str]
    needs: tuple[str, ...] = ()


def checks_of(gpus: int) -> list[GpuCheck]:
    """Returns the checks of a machine with some GPUs."""
    ranks = largest_power_of_two(gpus)
    together = (ALL_REDUCE,) if ranks > 1 else ()
    return [
        GpuCheck("driver", check_driver),
        GpuCheck(ALL_REDUCE, check_all_reduce),
        GpuCheck(MATRICES, check_matrix_products),
        GpuCheck(REFERENCE, take_reference),
        GpuCheck("1 GPU", partial(check_mesh, name="1 GPU", ranks=1, mesh={}), (REFERENCE,)),
        *(
            GpuCheck(
                name,
                partial(check_mesh, name=name, ranks=ranks, mesh=mesh),
                (REFERENCE, ALL_REDUCE),
            )
            for name, mesh in meshes_of(ranks).items()
        ),
        GpuCheck("memory", check_gpu_memory),
        GpuCheck("kill and resume", check_resuming),
        GpuCheck("speed: 1 GPU", partial(check_speed, ranks=1)),
        *(
            GpuCheck(f"speed: {ranks} GPUs", partial(check_speed, ranks=ranks), together)
            for _ in together
        ),
    ]


def meshes_of(ranks: int) -> dict[str, Settings]:
    """Returns the meshes of a power of two of ranks, by name."""
    if ranks == 1:
        return {}
    halves = f" x fsdp {ranks // 2}" if ranks > 2 else ""
    meshes: dict[str, Settings] = {
        f"dp {ranks}": {ParallelConfig.data_parallel_shard_size: 1},
        f"fsdp {ranks}": {},
        f"tp 2{halves}": {TENSOR_KEY: 2},
        f"pp 2{halves}": {PIPELINE_KEY: 2},
        f"cp 2{halves}": {CONTEXT_KEY: 2},
    }
    if ranks > 2:
        quarters = f" x fsdp {ranks // 4}" if ranks > 4 else ""
        meshes[f"dp 2 x fsdp {ranks // 2}"] = {ParallelConfig.data_parallel_shard_size: ranks // 2}
        meshes[f"pp 2 x tp 2{quarters}"] = {PIPELINE_KEY: 2, TENSOR_KEY: 2}
        meshes[f"cp 2 x tp 2{quarters}"] = {CONTEXT_KEY: 2, TENSOR_KEY: 2}
    return meshes


def run_checks(test: GpuTest, begin: Callable[[str], object]) -> Iterator[Check]:
    """Yields the result of each check, and first calls `begin` with its name.

    A failed check does not stop the others.
    """
    for check in checks_of(test.gpus):
        began = time.monotonic()
        begin(check.name)
        result = replace(_run(check, test), seconds=time.monotonic() - began)
        test.statuses[check.name] = result.status
        yield result


def _run(check: GpuCheck, test: GpuTest) -> Check:
    if test.processes.signals.signal is not None:
        return Check(check.name, Status.not_run, "interrupted")
    for name in (GPUS, *check.needs):
        if test.statuses.get(name) is not Status.ok:
            finding = f"it needs the check {name!r}, which is not ok"
            return Check(check.name, Status.not_run, finding)
    try:
        finding, _, details = check.work(test).partition("\n")
    except NotOk as ended:
        return Check(check.name, ended.status, printable(str(ended)), ended.remedy)
    except RampcliError as error:
        logs = "\n\n".join(getattr(error, "__notes__", ()))
        return Check(check.name, Status.failure, error.message, error.remedy, logs)
    except Exception as error:  # a bug must not hide what other checks find
        trace = traceback.format_exc()
        return Check(check.name, Status.failure, reason_of(error), details=trace)
    return Check(check.name, Status.ok, finding, details=details)


def check_driver(_: GpuTest) -> str:
    """Asks nvidia-smi for the driver, and for memory that other programs hold."""
    gpus = ",".join(visible_gpus())
    version = ", ".join(sorted({*ask_nvidia_smi(gpus, "driver_version")}))
    if not version:
        remedy = "nvidia-smi, which comes with the driver"
        raise NotOk(Status.warning, "nvidia-smi does not answer", remedy)
    used = ask_nvidia_smi(gpus, "memory.used")
    taken = [mib for mib in used if mib.isdecimal() and int(mib) * MIB > CONTEXT_BYTES]
    if taken:
        raise NotOk(
            Status.warning,
            f"{version}; other programs use memory of {counted(len(taken), 'GPU')}:"
            f" {', '.join(taken)} MiB",
            "nvidia-smi names these programs",
        )
    return f"{version}; no other program uses the GPUs"


def check_all_reduce(test: GpuTest) -> str:
    """Reduces over all GPUs, and along each axis of a mesh of them."""
    if test.gpus == 1:
        raise NotOk(Status.not_needed, "1 GPU")
    axes = {
        axis: 2 for axis, ranks in ((TENSOR_KEY, 2), (PIPELINE_KEY, 4)) if test.gpus % ranks == 0
    }
    answer = _measure(test, "all_reduce", {"numbers": test.sizes.numbers}, axes)
    return "; ".join(
        f"{axis} ({counted(speed['ranks'], 'GPU')}) {speed['bytes_per_s'] / 1e9:,.3g} GB/s"
        for axis, speed in answer["all_reduce"].items()
    )


def check_matrix_products(test: GpuTest) -> str:
    """Measures the speed of bf16 matrix products, which is the basis of MFU, on each GPU."""
    speeds = _measure(test, "matrices", {"matrix": test.sizes.matrix}, {})["flops_per_s"]
    test.flops_per_s = slowest = min(speeds)
    finding = f"{', '.join(f'{speed / 1e12:,.3g}' for speed in speeds)} TFLOP/s in bf16"
    if slowest < SLOW_SHARE * max(speeds):
        raise NotOk(
            Status.warning,
            f"{finding}: GPU {speeds.index(slowest)} is slow",
            "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER, which says what slows it down",
        )
    return finding


def _measure(test: GpuTest, name: str, order: dict[str, int], mesh: Settings) -> dict[str, Any]:
    """Starts a rank on each GPU, and returns what they measured."""
    settings = {
        TrainerConfig.devices: test.gpus,
        DataConfig.micro_batch_size: 1,
        ModelConfig.global_batch_size: 2 * test.gpus,
        **mesh,
    }
    return test.processes.measure(
        name, {**test.sizes.small, **settings}, order, limit_s=test.sizes.limit_s
    )


def take_reference(test: GpuTest) -> str:
    """Takes the steps on the CPU that the meshes are compared with."""
    cpu = replace(test.processes, accelerator="cpu")
    test.reference = _small_run(test, cpu, "cpu", ranks=1, mesh={})
    return f"losses {_losses(test.reference)}"


def check_mesh(test: GpuTest, *, name: str, ranks: int, mesh: Settings) -> str:
    """Takes the same steps on GPUs, and compares losses and gradient norms with the CPU's."""
    rows = _small_run(test, test.processes, name.replace(" ", "_"), ranks=ranks, mesh=mesh)
    return f"losses {_losses(rows)}, {agreement(rows, test.reference)}"


def _small_run(
    test: GpuTest, processes: Processes, name: str, *, ranks: int, mesh: Settings
) -> list[dict[str, Any]]:
    """Takes the steps of the small model, and returns their rows."""
    settings = {
        ModelConfig.global_batch_size: 4 * largest_power_of_two(test.gpus),
        DataConfig.micro_batch_size: 4 if ranks == 1 else 2,
        TrainerConfig.devices: ranks,
        TrainerConfig.max_steps: test.sizes.steps,
        **mesh,
    }
    run = processes.train(name, {**test.sizes.small, **settings}, limit_s=test.sizes.limit_s)
    return [*read_rows(run.metrics)]


def _losses(rows: Sequence[dict[str, Any]]) -> str:
    return f"{loss_of(rows[0]):.4f} to {loss_of(rows[-1]):.4f}"


def agreement(rows: Sequence[dict[str, Any]], expected: Sequence[dict[str, Any]]) -> str:
    """Returns how far losses and gradient norms in metrics.jsonl are from the expected ones.

    Raises:
        RampcliError: those of a step differ by more than the rounding of bf16, or are not finite,
            or the number of steps differs.
    """
    if len(rows) != len(expected):
        raise RampcliError(f"{len(rows)} steps were taken instead of {len(expected)}")
    worst = dict.fromkeys(TOLERANCES, 0.0)
    for row, known in zip(rows, expected, strict=True):
        for column, tolerance in TOLERANCES.items():
            if row[column] is None or known[column] is None:
                raise RampcliError(f"the {column} of step {row['step']} is not finite")
            difference = abs(row[column] / known[column] - 1)
            if difference > tolerance:
                raise RampcliError(
                    f"the {column} of step {row['step']} is {row[column]:.6g} instead of"
                    f" {known[column]:.6g}: bf16 explains a difference of {tolerance:.1%} at most"
                )
            worst[column] = max(worst[column], difference)
    if not any(worst.values()):
        return "equal to the last bit"
    return f"differ by {worst['loss']:.1e}, gradient norms by {worst['grad_norm']:.1e}"


def check_gpu_memory(test: GpuTest) -> str:
    """Compares the memory of steps of a large model with the estimate of its plan."""
    settings, micro = test.large_model(test.ranks)
    settings = {
        **settings,
        ModelConfig.global_batch_size: 2 * micro * test.ranks,
        TrainerConfig.max_steps: 4,
    }
    resolved = test.processes.resolved(settings)
    run = test.processes.train("memory", settings, limit_s=test.sizes.long_limit_s)
    saved = next(row for row in read_rows(run.events) if row["event"] == "checkpoint")
    run.remove_tree(run.checkpoints)
    held = max(row["peak_memory_bytes"] or 0 for row in read_rows(run.metrics))
    estimate = stage_memory(resolved.phases[0], fullest_stage(resolved)).peak_bytes
    finding = (
        f"{settings['model']} on {counted(test.ranks, 'GPU')} holds {shorten_bytes(held)} per GPU;"
        f" the plan's estimate is {shorten_bytes(estimate)}; saved in {saved['save_s']:.1f} s"
    )
    if held * USABLE_SHARE > estimate:
        raise RampcliError(f"{finding}: the estimate is too low", remedy=ESTIMATE_REMEDY)
    if held < LEAST_USED_SHARE * estimate:
        raise NotOk(Status.warning, f"{finding}: the estimate is high", ESTIMATE_REMEDY)
    return finding


def check_resuming(test: GpuTest) -> str:
    """Kills a run after a checkpoint, resumes it, and compares it with an undisturbed one."""
    steps, limit_s, train = test.sizes.resumed_steps, test.sizes.limit_s, test.processes.train
    settings: Settings = {
        **test.sizes.small,
        DataConfig.micro_batch_size: 2,
        ModelConfig.global_batch_size: 2 * test.ranks,
        TrainerConfig.devices: test.ranks,
        TrainerConfig.max_steps: steps,
        CheckpointConfig.every_steps: 10,
        OptimConfig.lr: 3e-4,  # so low that rounding does not grow in many steps
        OptimConfig.min_lr: 3e-5,
    }
    undisturbed = [*read_rows(train("undisturbed", settings, limit_s=limit_s).metrics)]
    killed = train("killed", settings, limit_s=limit_s, kill_when=_is_past_checkpoint)
    taken = _steps(killed)
    if taken == steps:
        raise NotOk(Status.not_run, "the run ended before it could be killed")
    resumed = train("killed", settings, limit_s=limit_s)
    starts = [row["step"] for row in read_rows(resumed.events) if row["event"] == "start"]
    same = agreement([*read_rows(resumed.metrics)], undisturbed)
    return f"killed after step {taken}, resumed from step {starts[-1]}; losses {same}"


def _steps(run: RunDirectory) -> int:
    return sum(1 for _ in read_rows(run.metrics)) if run.metrics.exists() else 0


def _is_past_checkpoint(run: RunDirectory) -> bool:
    """Returns whether a run has taken steps after its newest checkpoint, which a kill undoes."""
    saved = complete_checkpoints(run)
    return bool(saved) and _steps(run) >= saved[-1].step + 3


def check_speed(test: GpuTest, *, ranks: int) -> str:
    """Times compiled steps of a large model, with one micro batch and with several."""
    settings, micro = test.large_model(ranks)
    (few, first), (many, more) = test.sizes.timed
    smallest, larger = few * micro * ranks, (many - few) * micro * ranks
    settings = {
        **settings,
        ModelConfig.global_batch_size: many * micro * ranks,
        ModelConfig.rampup_batch_size: f"[{smallest},{larger},{first * smallest}]",
        RampupConfig.at_boundary: "continue",
        TrainerConfig.max_steps: first + more,
        TrainerConfig.compile: str(test.sizes.compile).lower(),
    }
    config = test.processes.resolved(settings).config
    run = test.processes.train(f"speed_{ranks}", settings, limit_s=test.sizes.long_limit_s)
    rows, events = [*read_rows(run.metrics)], [*read_rows(run.events)]
    run.remove_tree(run.checkpoints)
    length = config.data.sequence_length
    per_token = flops_per_token(config.model, sequence_length=length)
    lines, finding = ["micro batches   ms/step   tokens/s    MFU"], ""
    for count in (few, many):
        times = [row["step_time_s"] for row in rows if row["accumulate_grad_batches"] == count]
        step_s = median(times[len(times) // 4 :])
        tokens_per_s = count * micro * ranks * length / step_s
        speed = test.flops_per_s
        mfu = "unknown" if speed is None else f"{tokens_per_s * per_token / ranks / speed:.3f}"
        lines.append(f"{count:13} {1e3 * step_s:9.1f} {tokens_per_s:10,.0f}  {mfu:>5}")
        finding = f"{settings['model']}: {tokens_per_s:,.0f} tokens/s, MFU {mfu}"
    peak = max(row["peak_memory_bytes"] or 0 for row in rows)
    compiled_s = sum(row["compile_s"] for row in events if row["event"] == "compile")
    lines += [
        "",
        f"{micro} samples of {length:,} tokens per micro batch; peak memory {shorten_bytes(peak)}",
        f"compiled in {compiled_s:.1f} s; MFU is the share of the speed of matrix products above",
    ]
    return "\n".join((finding, *lines))
