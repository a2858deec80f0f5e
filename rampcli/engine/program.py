"""How a program of the engine ends that a command has started."""

import sys
from collections.abc import Callable
from typing import NoReturn

from rampcli.errors import EXIT_CTRL_C, RampcliError


def leave_after(main: Callable[[], None]) -> NoReturn:
    """Run it; an error of `rampcli.errors` is one message and its exit code."""
    try:
        main()
        sys.stdout.flush()
    except RampcliError as error:
        print(error, file=sys.stderr)  # noqa: T201
        sys.exit(error.exit_code)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(EXIT_CTRL_C)
    sys.exit(0)
