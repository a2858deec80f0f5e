"""Runs a module of rampcli in a process of its own, with limits on processor time and memory.

Jinja's sandbox keeps a template from reading files and running code, but not from looping for ever
or filling the memory. So templates that come from other people are rendered in such a process.
"""

import json
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from rampcli.machine.interpreter import python_command, safe_environment

CPU_S = 5
WALL_S = 60.0
"""Leaves time for Python to start from a slow disk. The work itself is limited by `CPU_S`."""
MEMORY_GIB = 1


class LimitError(Exception):
    """The process exceeded its time, or failed. The message begins with `it`."""


def ask(module: str, request: Any, *, cpu_s: int = CPU_S, wall_s: float = WALL_S) -> Any:
    """Runs `python -m MODULE`, sends it a request as JSON, and returns its answer.

    Args:
        module: name of a module that calls `answer`.
        cpu_s: seconds of processor time for the answer.
        wall_s: seconds for everything.

    Raises:
        LimitError: there is no answer within the limits.
    """
    try:
        done = subprocess.run(
            python_command(module),
            env=safe_environment(),
            input=json.dumps({"request": request, "cpu_s": cpu_s}).encode(),
            capture_output=True,
            timeout=wall_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise LimitError(f"it was not rendered within {wall_s:g} s") from error
    if done.returncode == -signal.SIGKILL:
        raise LimitError(_too_long(cpu_s))
    if done.returncode != 0:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise LimitError(f"it failed with exit code {done.returncode}: {last}")
    return json.loads(done.stdout)


def answer(respond: Callable[[Any], Any]) -> None:
    """Reads the request of `ask` from standard input, and prints the answer to it within limits.

    When the time is over, the current line of `respond` raises a TimeoutError. If a single
    operation runs for another second, the process is killed. Without memory, `respond` raises a
    MemoryError.
    """
    asked = json.load(sys.stdin)
    _limit(asked["cpu_s"])
    json.dump(respond(asked["request"]), sys.stdout)


def _limit(cpu_s: int) -> None:
    def stop(*_: object) -> NoReturn:
        raise TimeoutError(_too_long(cpu_s))

    signal.signal(signal.SIGXCPU, stop)
    used = resource.getrusage(resource.RUSAGE_SELF)
    until = int(used.ru_utime + used.ru_stime) + cpu_s
    for limit, soft, hard in (
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_CPU, until, until + 1),
        (resource.RLIMIT_AS, MEMORY_GIB * 2**30, MEMORY_GIB * 2**30),
    ):
        most = resource.getrlimit(limit)[1]
        if most != resource.RLIM_INFINITY:
            soft, hard = min(soft, most), min(hard, most)
        resource.setrlimit(limit, (soft, hard))


def _too_long(cpu_s: int) -> str:
    return f"it uses more than {cpu_s} s of processor time"
