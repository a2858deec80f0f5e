"""Profiles some steps (`profile.steps`): traces, memory snapshots, operators, exchange."""

import gzip
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

from rampcli.checkpoint.state import TrainingState
from rampcli.errors import RampcliError, reason_of
from rampcli.parallel.ranks import gather_from_all_ranks
from rampcli.runs.directory import PREEMPTED, RunDirectory
from rampcli.train.observers.observer import LoopObserver, record_event
from rampcli.train.step import TakenStep
from rampcli.train.trace import STEP_MARK, Operator, read_trace

MOST_OPERATORS = 10
LONGEST_OPERATOR = 100
"""Characters of an operator's name. Ranks exchange these names in messages of limited length."""
ALLOCATIONS = 100_000
"""Allocations and frees that a memory snapshot keeps, at most."""
MICROSECONDS = 1e-6
QUICKLY = 1
"""Level of compression. Other ranks wait, and a higher level takes many times longer."""


class Profiler(LoopObserver):
    """Profiles the steps of a window, on the chosen ranks, and writes the event `profile`.

    If the processes begin or end inside the window, their part of it is profiled. Processes that
    were asked to stop write nothing, because that takes time. Every rank has one of these: rank 0
    writes the events of all.

    Args:
        steps: first and last step of the window.
    """

    def __init__(
        self, run: RunDirectory, *, steps: Sequence[int], ranks: Sequence[int], device: torch.device
    ) -> None:
        self.run = run
        self.window = range(steps[0], steps[-1] + 1)
        self.device = device
        self.rank = dist.get_rank()
        self.is_profiled = self.rank in ranks
        self.began_at: int | None = None
        self.working_s = 0.0  # time of the profiled steps, without their wait for data
        self._profile: profile | None = None
        self._marks = ExitStack()

    def needs(self, step: int) -> bool:
        """Returns whether this step or the next one is profiled: neither overlaps with others."""
        return step in self.window or step + 1 in self.window

    def before_step(self, state: TrainingState) -> None:
        """Starts the profile at the first step of the window."""
        step = state.step + 1
        if step not in self.window:
            return
        if self.began_at is None:
            self.began_at, self.working_s = step, 0.0
            if self.is_profiled:
                self._start()
        if self._profile is not None:
            self._marks.enter_context(record_function(f"{STEP_MARK}{step}"))

    def after_step(self, state: TrainingState, step: TakenStep) -> None:
        """Writes the profile after the last step of the window."""
        self._marks.close()
        self.working_s += step.step_time_s - step.batch.data_time_s
        if state.step == self.window[-1]:
            self._finish(state, writes=True)

    def at_end(self, state: TrainingState, status: str, *, save_s: float) -> None:  # noqa: ARG002
        """Writes the profile of processes that end inside the window, unless they must stop."""
        self._marks.close()
        self._finish(state, writes=status != PREEMPTED)

    def _start(self) -> None:
        is_gpu = self.device.type == "cuda"
        self._profile = profile(
            activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_gpu else [])]
        )
        if is_gpu:
            torch.cuda.memory._record_memory_history(max_entries=ALLOCATIONS)
        self._profile.start()

    def _finish(self, state: TrainingState, *, writes: bool) -> None:
        """Ends the profile, and writes it if it has a whole step. Every rank calls this."""
        began_at, self.began_at = self.began_at, None
        if began_at is None:
            return
        writes = writes and state.step >= began_at
        facts: dict[str, Any] = {}
        profiled, self._profile = self._profile, None
        if profiled is not None:
            profiled.stop()
            if writes:
                facts = self._write(profiled, f"steps_{began_at}-{state.step}.rank_{self.rank}")
            if self.device.type == "cuda":
                torch.cuda.memory._record_memory_history(enabled=None)
        if not writes:
            return
        everyone = gather_from_all_ranks(facts)
        for rank, found in enumerate(everyone if self.rank == 0 else ()):
            if "reason" in found:
                reason = f"rank {rank} cannot write its profile: {found['reason']}"
                self.run.append_event("fault", reason=reason)
            elif found:
                steps = [began_at, state.step]
                record_event(self.run, "profile", state, rank=rank, steps=steps, **found)

    def _write(self, profiled: profile, name: str) -> dict[str, Any]:
        """Writes a profile and returns the columns of its event, or why it cannot be written."""
        try:
            # Torch's functions take a path. Another user could put a link into the run directory.
            with tempfile.TemporaryDirectory(prefix="rampcli-profile-") as folder:
                trace = Path(folder) / f"{name}.json"
                profiled.export_chrome_trace(str(trace))
                operators, exchange_us = read_trace(trace)
                with trace.open("rb") as plain, gzip.open(f"{trace}.gz", "wb", QUICKLY) as packed:
                    shutil.copyfileobj(plain, packed)
                trace.unlink()
                if self.device.type == "cuda":
                    snapshot = Path(folder) / f"{name}.memory.pickle"
                    torch.cuda.memory._dump_snapshot(str(snapshot))  # type: ignore[no-untyped-call]
                files = [self._keep(path) for path in sorted(Path(folder).iterdir())]
        except (OSError, RampcliError) as error:  # training goes on without a profile
            return {"reason": reason_of(error)[:LONGEST_OPERATOR]}
        exchange = exchange_us * MICROSECONDS / self.working_s
        return {
            "files": files,
            "operators": self._most_expensive(operators),
            "exchange_share": round(min(1.0, exchange), 4),
        }

    def _keep(self, path: Path) -> str:
        """Copies a file into the run directory, and returns its path there."""
        self.run.make_folder(self.run.profile)
        kept = self.run.profile / path.name
        with path.open("rb") as file:
            self.run.replace(kept, file)
        return str(kept.relative_to(self.run.path))

    def _most_expensive(self, operators: Mapping[str, Operator]) -> list[dict[str, Any]]:
        """Returns the operators that take most time, of the GPU if there is one."""
        times = {"self_cpu_s": "cpu_us"}
        if self.device.type == "cuda":
            times["self_device_s"] = "device_us"
        decides = [*times.values()][-1]
        found = sorted(operators.items(), key=lambda item: -getattr(item[1], decides))
        return [
            {
                "name": ascii(name)[1:-1][:LONGEST_OPERATOR],
                "calls": operator.calls,
                **{
                    column: round(getattr(operator, time) * MICROSECONDS, 6)
                    for column, time in times.items()
                },
            }
            for name, operator in found[:MOST_OPERATORS]
        ]
