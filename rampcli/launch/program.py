"""One process that does something with torch for a command, and prints for it."""

import signal
import subprocess
from collections.abc import Sequence

from rampcli.errors import EXIT_CTRL_C, EXIT_TERMINATED, RampcliError
from rampcli.interpreter import python, safe_environment
from rampcli.lifeline import signal_name


def run_program(module: str, arguments: Sequence[str]) -> int:
    """Run a module of the engine. Returns its exit code. SIGTERM is passed on to it, so that it removes what is half done.

    Raises:
        RampcliError: another signal ended it.
    """
    process = subprocess.Popen(python(module, *arguments), env=safe_environment())
    before = signal.signal(signal.SIGTERM, lambda *_: process.send_signal(signal.SIGTERM))
    try:
        code = process.wait()
    except KeyboardInterrupt:  # it has had Ctrl-C too
        process.wait()
        return EXIT_CTRL_C
    finally:
        signal.signal(signal.SIGTERM, before)
    if code == -signal.SIGTERM:  # before it could take note of it
        return EXIT_TERMINATED
    if code < 0:
        raise RampcliError(
            f"{module} was killed by {signal_name(-code)}",
            remedy="more memory, if it was SIGKILL and nobody sent it",
        )
    return code
