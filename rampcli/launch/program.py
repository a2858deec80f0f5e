"""One process that does something with torch for a command, and prints for it."""

import subprocess
from collections.abc import Sequence

from rampcli.errors import EXIT_CTRL_C
from rampcli.interpreter import python, safe_environment


def run_program(module: str, arguments: Sequence[str]) -> int:
    """Run a module of the engine. Returns its exit code."""
    process = subprocess.Popen(python(module, *arguments), env=safe_environment())
    try:
        code = process.wait()
        return code if code >= 0 else 1
    except KeyboardInterrupt:  # it has had Ctrl-C too
        process.wait()
        return EXIT_CTRL_C
