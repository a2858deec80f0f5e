"""Printing to standard output: lines and tables."""

import errno
import os
import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rampcli.errors import visible

PIPE_WIDTH = 160
"""Columns of a file or pipe, which has no width of its own."""
NOTEBOOK_WIDTH = 100
"""Columns of the output of a notebook's cell."""


class Output(Console):
    """Standard output. If its reader has gone, as after `| head -1`, printing raises an error.

    Without this class, rich would end the process.
    """

    def on_broken_pipe(self) -> None:
        """Discards all later output, so that Python can flush its buffers at exit.

        Raises:
            BrokenPipeError: always.
        """
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def build_console() -> Console:
    """Returns a console for standard output, `PIPE_WIDTH` columns wide if it is not a terminal.

    A notebook gets plain text too.
    """
    console = _output(None)
    if console.is_terminal:
        return console
    return _output(NOTEBOOK_WIDTH if is_notebook() else PIPE_WIDTH)


def is_notebook() -> bool:
    """Returns whether this process is the kernel of a notebook."""
    return Console().is_jupyter


def _output(width: int | None) -> Output:
    if is_notebook():  # kernels ask for colours, which rich would take for a terminal
        return Output(highlight=False, width=width, force_jupyter=False, force_terminal=False)
    return Output(highlight=False, width=width)


def print_table(console: Console, table: Table) -> None:
    """Prints a table at its full width. A narrow terminal wraps lines, and no figure is cut."""
    natural = console.measure(table, options=console.options.update(width=10_000)).maximum
    _output(max(console.width, natural)).print(table)


def say(console: Console, text: str) -> None:
    """Prints text without wrapping its lines, so that paths and commands can be copied."""
    console.print(Text(visible(text, keeps="\n")), soft_wrap=True)
