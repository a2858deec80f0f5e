"""Calls a command in this process; records its output, its signals and its processor time."""

import faulthandler
import gc
import importlib
import io
import os
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from unittest.mock import patch

import torch  # noqa: F401  (before a limit on memory: a build with CUDA maps 2.5 GB)
import typer.main

import rampcli.machine.lifeline
from rampcli.cli.main import main

TIME_LIMIT_S, CPU_LIMIT_S = 300.0, 10.0
"""The time limit is long, because a busy machine makes every command slow."""
_COMMANDS = cache(typer.main.get_command)
"""Building the commands takes longer than most of them run."""
MEMORY_BYTES = 3 * 2**30
"""Address space that a command may add to that of this process."""


class HungError(BaseException):
    """A command exceeded its time limit."""


@dataclass(slots=True)
class Ended:
    """A command that has ended.

    Attributes:
        code: the exit code, or None if an exception left `main`.
        stdout: its output.
        stderr: its errors.
        cpu_s: processor seconds of the command and its children.
        signalled: processes that it sent a signal to, other than its children.
    """

    code: int | None
    stdout: str
    stderr: str
    cpu_s: float
    signalled: list[int] = field(default_factory=list)


def call(*words: str, cwd: Path) -> Ended:
    """Runs `rampcli WORDS` and the programs that it starts in this process, with PATH=`cwd`/bin."""
    began = _cpu_s()
    with _captured() as printed, _signals_noted() as signalled, _limited(), _standing_in(cwd):
        code = _exit_code_of(words)
    return Ended(code, *printed, _cpu_s() - began, signalled)


def _cpu_s() -> float:
    return sum(os.times()[:4])


def _exit_code_of(words: Sequence[str]) -> int | None:
    with (
        patch.object(sys, "argv", ["rampcli", *words]),
        patch.object(rampcli.machine.lifeline, "run_program", _run_here),
        patch.object(typer.main, "get_command", _COMMANDS),
    ):
        try:
            main()
            code: int | None = 0
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException:
            traceback.print_exc()
            code = None
        finally:
            gc.enable()  # main() disables it for a short command
            sys.stdout.flush()
            sys.stderr.flush()
    return code


def _run_here(module: str, arguments: Sequence[str]) -> int:
    """Replaces `run_program`, which starts a process that imports torch for seconds."""
    from rampcli.weights.program import run_and_exit

    program = importlib.import_module(module)
    before = signal.getsignal(signal.SIGTERM)
    with patch.object(sys, "argv", [module, *arguments]):
        try:
            run_and_exit(program.main)
        except SystemExit as end:
            return int(end.code or 0)
        finally:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _captured() -> Iterator[list[str]]:
    """Yields a list that receives stdout and stderr of this process and its children at the end."""
    printed: list[str] = []
    sys.stdout.flush()
    sys.stderr.flush()
    streams, kept = (sys.stdout, sys.stderr), [os.dup(1), os.dup(2)]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "wb", closefd=False), encoding="utf-8")
        sys.stderr = io.TextIOWrapper(
            io.FileIO(2, "wb", closefd=False), encoding="utf-8", errors="backslashreplace"
        )
        try:
            yield printed
        finally:
            sys.stdout, sys.stderr = streams
            for number, descriptor in enumerate(kept, start=1):
                os.dup2(descriptor, number)
                os.close(descriptor)
            for file in (out, err):
                file.seek(0)
                printed.append(file.read().decode(errors="replace"))


@contextmanager
def _signals_noted() -> Iterator[list[int]]:
    """Yields the recorded targets of signals. Only children and their groups receive them."""
    noted: list[int] = []
    kill, killpg, by_pidfd = os.kill, os.killpg, signal.pidfd_send_signal

    def note(process: int, number: int) -> None:
        if process > 0 and _parent_of(process) == os.getpid():
            kill(process, number)
        else:
            noted.append(process)

    def note_group(group: int, number: int) -> None:
        if group > 1 and _parent_of(group) == os.getpid():
            killpg(group, number)
        else:
            noted.append(-group)

    def note_by_pidfd(descriptor: int, number: int, *_: object) -> None:
        process = _process_of(descriptor)
        if _parent_of(process) == os.getpid():
            by_pidfd(descriptor, number)
        else:
            noted.append(process)

    with (
        patch.object(os, "kill", note),
        patch.object(os, "killpg", note_group),
        patch.object(signal, "pidfd_send_signal", note_by_pidfd),
    ):
        yield noted


def _parent_of(process: int) -> int | None:
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def _process_of(pidfd: int) -> int:
    facts = dict(
        line.split(":", 1) for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines()
    )
    return int(facts["Pid"])


@contextmanager
def _limited() -> Iterator[None]:
    """Limit time and memory."""

    def give_up(*_: object) -> None:
        raise HungError(f"not done after {TIME_LIMIT_S:g} s")

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, give_up)
    resource.setrlimit(
        resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY_BYTES, limits[1])
    )
    signal.setitimer(signal.ITIMER_REAL, TIME_LIMIT_S)
    # For a library that does not return to Python.
    faulthandler.dump_traceback_later(2 * TIME_LIMIT_S, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, limits)


@contextmanager
def _standing_in(folder: Path) -> Iterator[None]:
    stood = Path.cwd()
    os.chdir(folder)
    try:
        with patch.dict(
            os.environ,
            {
                "PATH": str(folder / "bin"),
                "CUDA_VISIBLE_DEVICES": "",
                "OMP_NUM_THREADS": "1",
                "COLUMNS": "160",
            },
        ):
            yield
    finally:
        os.chdir(stood)
