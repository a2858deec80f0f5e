"""Printing to standard output: lines and tables."""

import errno
import os
import sys
from typing import IO

from rich.console import Console, RenderableType
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


def build_console(*, quiet: bool = False, file: IO[str] | None = None) -> Console:
    """Returns a console for standard output, `PIPE_WIDTH` columns wide if it is not a terminal.

    A notebook gets plain text too. A quiet console prints nothing, not even on a terminal. With
    `file`, it prints there.
    """
    if file is not None:
        return _output(PIPE_WIDTH, file=file)
    console = _output(None)
    if console.is_terminal and not quiet:
        return console
    return _output(NOTEBOOK_WIDTH if is_notebook() else PIPE_WIDTH, quiet=quiet)


def is_notebook() -> bool:
    """Returns whether this process is the kernel of a notebook."""
    return Console().is_jupyter


def _output(width: int | None, *, file: IO[str] | None = None, quiet: bool = False) -> Output:
    # The kernel of a notebook asks for colours, so rich would take it for a terminal.
    forced = False if quiet or is_notebook() else None
    return Output(
        file=file,
        highlight=False,
        width=width,
        quiet=quiet,
        force_jupyter=forced,
        force_terminal=forced,
    )


def say(console: Console, *things: RenderableType) -> None:
    """Prints texts, tables and what else rich can print.

    Lines of a text are not wrapped, so that paths and commands can be copied. A table has its full
    width: a narrow terminal wraps its lines, and no figure is cut.
    """
    for thing in things:
        if isinstance(thing, str):
            console.print(Text(visible(thing, keeps="\n")), soft_wrap=True)
        elif isinstance(thing, Table):
            natural = console.measure(thing, options=console.options.update(width=10_000)).maximum
            width = max(console.width, natural)
            _output(width, file=console.file, quiet=console.quiet).print(thing)
        else:
            console.print(thing)
