"""One process that does something with torch for a command, and prints for it."""

import subprocess
import sys
from collections.abc import Sequence

from rampcli.errors import EXIT_CTRL_C


def run_program(module: str, arguments: Sequence[str]) -> int:
    """Run a module of the engine; its exit code."""
    process = subprocess.Popen([sys.executable, "-m", module, *arguments])
    try:
        code = process.wait()
        return code if code >= 0 else 1
    except KeyboardInterrupt:  # it has had Ctrl-C too
        process.wait()
        return EXIT_CTRL_C
