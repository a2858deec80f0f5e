"""One process that does something with torch for a command, and prints for it."""

import subprocess
from collections.abc import Sequence

from rampcli.errors import EXIT_CTRL_C, RampcliError
from rampcli.interpreter import python, safe_environment
from rampcli.lifeline import signal_name


def run_program(module: str, arguments: Sequence[str]) -> int:
    """Run a module of the engine. Returns its exit code.

    Raises:
        RampcliError: a signal ended it.
    """
    process = subprocess.Popen(python(module, *arguments), env=safe_environment())
    try:
        code = process.wait()
    except KeyboardInterrupt:  # it has had Ctrl-C too
        process.wait()
        return EXIT_CTRL_C
    if code < 0:
        raise RampcliError(f"{module} was killed by {signal_name(-code)}", remedy="more memory, if it was SIGKILL and nobody sent it")
    return code
