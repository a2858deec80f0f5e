"""Standard output, as tables and progress are printed to it."""

import errno
import os
import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rampcli.config.resolve import Resolved
from rampcli.errors import visible
from rampcli.report.plan_tables import plan_summary, plan_table

PIPE_WIDTH = 160


class Output(Console):
    """Standard output. Where nobody reads it any more, as after `| head -1`, printing raises BrokenPipeError; rich would exit."""

    def on_broken_pipe(self) -> None:
        """Raises BrokenPipeError. What is printed from now on goes nowhere, so that Python can flush its buffers at the end."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def build_console() -> Console:
    """Standard output; a file or a pipe has no width to fit into."""
    console = Output(highlight=False)
    return console if console.is_terminal else Output(highlight=False, width=PIPE_WIDTH)


def print_table(console: Console, table: Table) -> None:
    """A table as wide as it is: where it does not fit the terminal wraps its lines, and no figure is cut."""
    natural = console.measure(table, options=console.options.update(width=10_000)).maximum
    Console(highlight=False, width=max(console.width, natural)).print(table)


def say(console: Console, text: str) -> None:
    """Print lines, however long: paths and commands are there to be copied."""
    console.print(Text(visible(text, keeps="\n")), soft_wrap=True)


def show_plan(resolved: Resolved) -> None:
    """Print a plan for a person."""
    console = build_console()
    plain = console.options.ascii_only  # bars are none of its characters
    print_table(console, plan_table(resolved, width=console.width, bars=not plain))
    console.print()
    for line in plan_summary(resolved):
        say(console, line)
