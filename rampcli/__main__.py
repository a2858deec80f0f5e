"""The entry point: `rampcli`, and `python -m rampcli`."""

import os
import signal

EXIT_CTRL_C = 130  # `rampcli.errors` has it too, but nothing of rampcli is imported yet


def main() -> None:
    """Imports the commands and runs one. Ctrl-C ends the import at once and without a message."""
    stops_at_ctrl_c = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if stops_at_ctrl_c:  # not a command in the background of a script, which ignores Ctrl-C
        signal.signal(signal.SIGINT, lambda *_: os._exit(EXIT_CTRL_C))
    from rampcli.cli.main import main as run_command

    if stops_at_ctrl_c:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run_command()


if __name__ == "__main__":
    main()
