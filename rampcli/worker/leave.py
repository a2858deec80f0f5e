"""How a worker ends: recording a failure, and leaving the process."""

import os
import sys
from typing import NoReturn

from rampcli.errors import RampcliError
from rampcli.run_directory import RunDirectory


def record_failure(run: RunDirectory, error: RampcliError, *, understood: bool = True) -> None:
    """Prints an error and sets the run's status in state.json to failed.

    If several ranks fail, state.json keeps an error that is understood.

    Args:
        run: the run directory.
        error: why the run failed.
        understood: whether the error was foreseen, rather than a bug.
    """
    print(error, file=sys.stderr)  # noqa: T201
    try:
        if understood or "error" not in (run.read_state() or {}):
            run.change_status("failed", error=error.facts() | {"understood": understood})
    except RampcliError as another:  # state.json may be the damaged file
        print(another, file=sys.stderr)  # noqa: T201


def leave(code: int) -> NoReturn:
    """Ends the process without exit handlers, because FSDP2 on gloo may abort in them."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
