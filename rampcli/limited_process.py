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

from rampcli.interpreter import python_command, safe_environment

CPU_S = 5
TOO_LONG = f"it uses more than {CPU_S} s of processor time"
WALL_S = 60.0
"""Leaves time for Python to start from a slow disk. The work itself is limited by `CPU_S`."""
MEMORY_GIB = 1


class LimitError(Exception):
    """The process exceeded its time, or failed. The message begins with `it`."""


def ask(module: str, request: Any, *, wall_s: float = WALL_S) -> Any:
    """Runs `python -m MODULE`, sends it a request as JSON, and returns its answer.

    Args:
        module: name of a module that calls `answer`.
        wall_s: seconds for everything.

    Raises:
        LimitError: there is no answer within the limits.
    """
    try:
        done = subprocess.run(
            python_command(module),
            env=safe_environment(),
            input=json.dumps(request).encode(),
            capture_output=True,
            timeout=wall_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise LimitError(f"it was not rendered within {wall_s:g} s") from error
    if done.returncode == -signal.SIGKILL:
        raise LimitError(TOO_LONG)
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
    request = json.load(sys.stdin)
    _limit()
    json.dump(respond(request), sys.stdout)


def _limit() -> None:
    def stop(*_: object) -> NoReturn:
        raise TimeoutError(TOO_LONG)

    signal.signal(signal.SIGXCPU, stop)
    used = resource.getrusage(resource.RUSAGE_SELF)
    until = int(used.ru_utime + used.ru_stime) + CPU_S
    for limit, soft, hard in (
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_CPU, until, until + 1),
        (resource.RLIMIT_AS, MEMORY_GIB * 2**30, MEMORY_GIB * 2**30),
    ):
        most = resource.getrlimit(limit)[1]
        if most != resource.RLIM_INFINITY:
            soft, hard = min(soft, most), min(hard, most)
        resource.setrlimit(limit, (soft, hard))
