"""Runs a program that needs torch in the process that a command has started for it."""

import json
import signal
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import NoReturn

from rampcli.errors import (
    EXIT_CTRL_C,
    EXIT_TERMINATED,
    RampcliError,
    as_json,
    as_rampcli_error,
    reason_of,
)
from rampcli.parallel.ranks import is_out_of_memory


def given_options() -> SimpleNamespace:
    """Returns the options that the command has passed as JSON."""
    return SimpleNamespace(**json.loads(sys.argv[1]))


def run_and_exit(main: Callable[[], None]) -> NoReturn:
    """Runs `main` and ends this process.

    An error that a user can cause is printed as one message on standard error and gives the exit
    code. SIGTERM raises SystemExit, so that `main` deletes what is half done.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))
    try:
        main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(EXIT_CTRL_C)
    except Exception as error:
        known = None
        if isinstance(error, RampcliError):
            known = error
        elif isinstance(error, OSError):
            known = as_rampcli_error(error)
        elif is_out_of_memory(error):
            known = RampcliError(
                f"not enough memory: {reason_of(error)}",
                remedy="a machine with more memory, or a smaller model",
            )
        if known is None:
            raise
        prints_json = len(sys.argv) > 1 and getattr(given_options(), "as_json", False)
        print(as_json(known) if prints_json else known, file=sys.stderr)  # noqa: T201
        sys.exit(known.exit_code)
    sys.exit(0)
