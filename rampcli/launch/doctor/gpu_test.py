"""What the checks of `rampcli doctor --gpu` share: sizes, processes, results and their report."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rampcli import __version__
from rampcli.errors import visible
from rampcli.launch.doctor.check import Check, Status
from rampcli.launch.doctor.gpu_runs import Processes, Settings
from rampcli.launch.start_checks import disk_space
from rampcli.planning.stage_memory import (
    device_memory_bytes,
    fullest_stage,
    shorten_bytes,
    stage_memory,
    usable_bytes,
)
from rampcli.settings.data import DataConfig
from rampcli.settings.model import ModelConfig
from rampcli.settings.optim import OptimConfig
from rampcli.settings.trainer import TrainerConfig

ALL_REDUCE = "all-reduce"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """How large the checks are.

    Attributes:
        small: settings of the model whose losses are compared.
        steps, resumed_steps: steps of a run with one mesh, and of a run that is killed.
        large: models for memory and speed, and their micro batch size. The first one that fits
            into a GPU is used.
        timed: numbers of micro batches per step, in ascending order, and the steps to time with
            each.
        matrix: rows of the square matrices that are multiplied.
        numbers: fp32 numbers that are reduced over ranks.
        limit_s, long_limit_s: time limits of a small and of a large model's processes.
    """

    small: Settings = field(
        default_factory=lambda: {
            ModelConfig.num_layers: 4,
            DataConfig.sequence_length: 128,
            OptimConfig.warmup_samples: 1,
        }
    )
    steps: int = 4
    resumed_steps: int = 60
    large: tuple[tuple[str, int], ...] = (("llama32_1b", 2), ("qwen3_0p6b", 1), ("gpt3_126m", 1))
    sequence_length: int = 4096
    timed: tuple[tuple[int, int], tuple[int, int]] = ((1, 24), (8, 10))
    compile: bool = True
    matrix: int = 8192
    numbers: int = 2**26
    limit_s: float = 180.0
    long_limit_s: float = 600.0


class Skipped(Exception):
    """A check cannot run, or has nothing to check here.

    Attributes:
        status: `not_run` or `not_needed`.
    """

    def __init__(self, reason: str, status: Status = Status.not_run) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """The result of a check, with its duration and further lines for the report."""

    check: Check
    seconds: float = 0.0
    details: str = ""


@dataclass(kw_only=True, slots=True)
class GpuTest:
    """The GPUs of this machine, and what the checks have found so far.

    Attributes:
        reference: rows of the steps that the CPU has taken.
        flops_per_s: speed of bf16 matrix products on the slowest GPU, once it is known.
        statuses: results so far, by name.
    """

    processes: Processes
    gpus: int
    sizes: Sizes = field(default_factory=Sizes)
    reference: list[dict[str, Any]] = field(default_factory=list)
    flops_per_s: float | None = None
    statuses: dict[str, Status] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """Ranks that train together: the largest power of two, or 1 if all-reduces fail."""
        works = self.statuses.get(ALL_REDUCE) is Status.ok
        return largest_power_of_two(self.gpus) if works else 1

    def large_model(self, ranks: int) -> tuple[Settings, int]:
        """Returns the settings of the largest model that fits, and its micro batch size.

        Raises:
            Skipped: no model fits into a GPU, or no checkpoint on the disk.
        """
        for model, micro in self.sizes.large:
            settings: Settings = {
                "model": model,
                "data": "mock",
                DataConfig.sequence_length: self.sizes.sequence_length,
                DataConfig.micro_batch_size: micro,
                TrainerConfig.devices: ranks,
            }
            resolved = self.processes.resolved(
                {
                    **settings,
                    ModelConfig.global_batch_size: 2 * micro * ranks,
                    TrainerConfig.max_steps: 1,
                }
            )
            memory_bytes = device_memory_bytes(resolved.config)
            needed = stage_memory(resolved.phases[0], fullest_stage(resolved)).peak_bytes
            if memory_bytes is None or needed <= usable_bytes(resolved.config, memory_bytes):
                break
        else:
            raise Skipped(f"even {model} needs {shorten_bytes(needed)} per GPU (estimate)")
        space = disk_space(resolved)
        if not space.fitting:
            raise Skipped(space.describe())
        return settings, micro


def largest_power_of_two(number: int) -> int:
    """Returns the largest power of two up to a number."""
    return 1 << (number.bit_length() - 1)


class GpuReport:
    """A Markdown file that always holds the results so far.

    Attributes:
        path: file in the current folder. No other file is overwritten.

    Raises:
        OSError: the folder is not writable.
    """

    def __init__(self) -> None:
        self.path = Path(time.strftime("doctor-gpu-%Y%m%d-%H%M%S.md"))
        self._began = time.strftime("%Y-%m-%d %H:%M:%S %z")
        self._file = self.path.open("x", encoding="utf-8")
        self._write([])

    def update(self, results: Sequence[Result]) -> None:
        """Writes the results so far."""
        self._file.seek(0)
        self._file.truncate()
        self._write(results)

    def _write(self, results: Sequence[Result]) -> None:
        self._file.write(_text(results, began=self._began))
        self._file.flush()


def _text(results: Sequence[Result], *, began: str) -> str:
    lines = [
        "# rampcli doctor --gpu",
        "",
        f"rampcli {__version__}, {began}",
        "",
        "| check | result | seconds | finding |",
        "|---|---|---:|---|",
    ]
    for result in results:
        check = result.check
        remedy = "" if check.remedy is None else f" Try: {check.remedy}"
        finding = visible(f"{check.finding}{remedy}").replace("|", "\\|")
        lines.append(f"| {check.name} | {check.status} | {result.seconds:.0f} | {finding} |")
    for result in results:
        if result.details:
            lines += ["", f"## {result.check.name}", ""]
            lines += [f"    {line}" for line in visible(result.details, keeps="\n").splitlines()]
    return "\n".join(lines) + "\n"
