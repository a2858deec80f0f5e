"""Runs a module that needs torch as a child process of a command."""

import signal
import subprocess
from collections.abc import Sequence

from rampcli.errors import EXIT_CTRL_C, EXIT_TERMINATED, RampcliError
from rampcli.machine.interpreter import python_command, safe_environment
from rampcli.machine.lifeline import signal_name


def run_program(module: str, arguments: Sequence[str]) -> int:
    """Runs a module in a child process that prints to this terminal, and returns its exit code.

    SIGTERM is passed on to the child, so that it can remove unfinished files.

    Raises:
        RampcliError: another signal killed the child.
    """
    process = subprocess.Popen(python_command(module, *arguments), env=safe_environment())
    before = signal.signal(signal.SIGTERM, lambda *_: process.send_signal(signal.SIGTERM))
    try:
        code = process.wait()
    except KeyboardInterrupt:  # the terminal sent SIGINT to the child as well
        process.wait()
        return EXIT_CTRL_C
    finally:
        signal.signal(signal.SIGTERM, before)
    if code == -signal.SIGTERM:  # the child had not installed its handler yet
        return EXIT_TERMINATED
    if code < 0:
        raise RampcliError(
            f"{module} was killed by {signal_name(-code)}",
            remedy="more memory, if the kernel sent SIGKILL because memory ran out",
        )
    return code
