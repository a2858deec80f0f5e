"""How a program of the engine ends that a command has started."""

import signal
import sys
from collections.abc import Callable
from typing import NoReturn

import torch

from rampcli.errors import EXIT_CTRL_C, EXIT_TERMINATED, RampcliError, reason_of

OUT_OF_MEMORY = (
    "can't allocate memory",
    "not enough memory",
    "Storage size calculation overflowed",
)
"""What torch says, in a RuntimeError, if the CPU's memory is too small."""


def leave_after(main: Callable[[], None]) -> NoReturn:
    """Run it, and end this process. An error that a user can cause is one message on standard error, and its exit code.

    SIGTERM ends it as an exception does, so that nothing half done is left.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))
    try:
        main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(EXIT_CTRL_C)
    except Exception as error:
        known = as_user_error(error)
        if known is None:
            raise
        print(known, file=sys.stderr)  # noqa: T201
        sys.exit(known.exit_code)
    sys.exit(0)


def as_user_error(error: Exception) -> RampcliError | None:
    """Returns the error as one for the user, or None if it is a mistake of the program."""
    if isinstance(error, RampcliError):
        return error
    if isinstance(error, OSError):
        return RampcliError(reason_of(error))
    of_memory = isinstance(error, RuntimeError) and any(
        said in str(error) for said in OUT_OF_MEMORY
    )
    if of_memory or isinstance(error, MemoryError | torch.OutOfMemoryError):
        return RampcliError(
            f"not enough memory: {reason_of(error)}",
            remedy="a machine with more memory, or a smaller model",
        )
    return None
