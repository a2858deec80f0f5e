"""Commands for tests, in processes that are forked from one that has loaded torch.

They are processes as any others: they get signals, die, and supervise workers of their own, which
are forked as well. Only the seconds in which Python and torch start are saved, so tests of starting
itself run `sys.executable`.
"""

import gc
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import current_process, resource_tracker
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from processes import DEADLINE_S, kill_with_children
from rampcli.runs import directory
from ranks import redirect_output, start_process

PROGRAMS = (
    *("rampcli.worker", "rampcli.rl.rank", "rampcli.weights.", "rampcli.tune.rank"),
    "rampcli.launch.track",
)
"""Prefixes of the modules that commands start and that are forked.

All but the last need torch. Trackers are forked to have what a test plants.
"""


def run_command(
    words: Sequence[str], environment: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs `rampcli WORDS` to its end, by default with this process's environment and folder."""
    command = Command(words, environment, cwd)
    output, errors = command.communicate()
    return subprocess.CompletedProcess(command.args, command.wait(), output, errors)


class Command:
    """A running command, with the methods of a `subprocess.Popen` that prints to pipes."""

    def __init__(
        self,
        words: Sequence[str],
        environment: dict[str, str] | None = None,
        cwd: Path | None = None,
        *,
        program: str = "rampcli",
        prepare: Callable[[], object] | None = None,
    ) -> None:
        """Starts `PROGRAM WORDS`.

        Args:
            words: arguments.
            environment: by default that of this process.
            cwd: by default the folder of this process.
            program: module to run.
            prepare: called first in the new process, which imports it by its name.
        """
        self.args = [program, *words]
        self.returncode: int | None = None
        self._folder = tempfile.TemporaryDirectory()
        self._printed = [Path(self._folder.name, name) for name in ("stdout", "stderr")]
        self._process = start_process(
            _run_command,
            self.args,
            cwd or Path.cwd(),
            environment or {**os.environ},
            *self._printed,
            prepare,
        )
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Returns the exit code, or None while the command runs."""
        if self.returncode is None:
            self.returncode = self._process.exitcode
        return self.returncode

    def wait(self, timeout: float = DEADLINE_S) -> int:
        """Waits for the end of the command, and returns its exit code.

        Raises:
            AssertionError: it has not ended in time, and has been killed with its children. The
                message holds what it printed.
        """
        if self.poll() is None and not wait([self._process.sentinel], timeout):
            kill_with_children(self)
            self._process.join()
            raise AssertionError(
                f"{self.args} has not ended after {timeout:g} s and printed:\n"
                f"{self.printed()}{self._errors()}"
            )
        self._process.join()
        code = self.poll()
        assert code is not None
        return code

    def ends_with(self, exit_code: int) -> tuple[str, str]:
        """Waits for its end, checks its exit code, and returns what it has printed."""
        output, errors = self.communicate()
        assert self.returncode == exit_code, (output, errors)
        return output, errors

    def communicate(self, timeout: float = DEADLINE_S) -> tuple[str, str]:
        """Waits as `wait` does, and returns what the command printed to stdout and stderr."""
        self.wait(timeout)
        return self.printed(), self._errors()

    def printed(self) -> str:
        """Returns what the command has printed to stdout so far."""
        return _text_of(self._printed[0])

    def _errors(self) -> str:
        return _text_of(self._printed[1])

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless the command has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""  # a command that was killed early has no files


class ForkingPopen(subprocess.Popen[Any]):
    """Starts the programs of rampcli in `PROGRAMS` by forking, and other programs as usual."""

    def _execute_child(self, args: Any, *facts: Any) -> None:
        if not _is_forked(args):
            super()._execute_child(args, *facts)  # type: ignore[misc]
            return
        pipes = facts[9:15]
        with directory.APPEND_LOCK:  # another thread's lock would stay locked in the child
            self.pid = os.fork()
        if self.pid == 0:
            stdin, _, _, stdout, _, stderr = pipes
            _run_program(
                args[3:],
                streams=(stdin, stdout, stderr),
                preexec_fn=facts[1],
                kept={*facts[3]},
                folder=facts[4],
                environment=facts[5],
                is_leader=facts[20],
            )
        while facts[20] and os.getpgid(self.pid) != self.pid:
            time.sleep(0.001)  # a new program leads its session when Popen returns
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def _is_forked(command: Any) -> bool:
    """Returns whether a command is `python -P -m` and `rampcli` or one of `PROGRAMS`."""
    if not isinstance(command, list):
        return False
    return command[:3] == [sys.executable, "-P", "-m"] and (
        command[3] == "rampcli" or command[3].startswith(PROGRAMS)
    )


def _run_command(
    command: list[str],
    folder: Path,
    environment: dict[str, str],
    output: Path,
    errors: Path,
    prepare: Callable[[], object] | None,
) -> None:
    redirect_output(output, errors)
    _reset_signals()
    current_process()._config["daemon"] = False  # a daemon may not start processes
    if prepare is not None:
        prepare()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = command
    subprocess.Popen = ForkingPopen  # type: ignore[misc]
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)


def _reset_signals() -> None:
    """Handles signals as a new program does, also in tests that a shell runs in the background."""
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _run_program(
    command: list[str],
    *,
    streams: tuple[int, int, int],
    preexec_fn: Callable[[], object] | None,
    kept: set[int],
    folder: Path | None,
    environment: dict[str, str] | None,
    is_leader: bool,
) -> None:
    """Becomes another program, with streams, descriptors, signals and variables of its own."""
    code = 1
    try:
        if is_leader:
            os.setsid()
        for descriptor, stream in enumerate(streams):
            if stream != -1:
                os.dup2(stream, descriptor)
        first = 3
        for descriptor in sorted({*kept, os.sysconf("SC_OPEN_MAX")}):
            os.closerange(first, descriptor)
            first = descriptor + 1
        # The pipe to the tracker is closed. Else, the module would close its number once more,
        # which belongs to another file by then.
        tracker = resource_tracker._resource_tracker  # type: ignore[attr-defined]
        tracker._fd = tracker._pid = None
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", closefd=False, buffering=1, errors="backslashreplace")  # noqa: SIM115
        _reset_signals()
        gc.enable()  # a short command disables it
        if preexec_fn is not None:
            preexec_fn()
        if folder is not None:
            os.chdir(folder)
        if environment is not None:
            os.environ.clear()
            os.environ.update(environment)
        sys.argv = command
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
