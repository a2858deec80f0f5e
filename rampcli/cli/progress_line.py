"""The line that shows the progress of a run, in a terminal or in a notebook."""

import html
import importlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

MOST_BAR = 40
"""Columns of the bar in a wide terminal."""
LEAST_WIDTH = 40
"""Columns of a terminal that has room for a bar."""
SEPARATOR = " · "
REFRESHES_PER_S = 4
NOTEBOOK_EVERY_S = 0.5
_TERMINAL = threading.Lock()
"""Held by the run that has the line of the terminal. Runs of other threads print plain lines."""


@dataclass(frozen=True, slots=True)
class Picture:
    """What the line shows.

    Attributes:
        name: the stage, such as `stage 1/4`.
        share: share of the run that is complete, or None if the run has no end.
        facts: texts, most important first.
    """

    name: str
    share: float | None
    facts: Sequence[str]

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        """Renders one line that fits the width. Facts without room are left out."""
        width = options.max_width
        has_bar = self.share is not None and width >= LEAST_WIDTH
        bar = min(MOST_BAR, width // 5)
        room = width - len(self.name) - 1 - (bar + 1 if has_bar else 0)
        facts = [*([] if self.share is None else [f"{self.share:4.0%}"]), *self.facts]
        while len(facts) > 1 and len(SEPARATOR.join(facts)) > room:
            facts.pop()
        line = Table.grid(padding=(0, 1, 0, 0))
        cells: list[Text | ProgressBar] = [Text(self.name, no_wrap=True)]
        if has_bar:
            cells.append(ProgressBar(total=1.0, completed=self.share or 0.0, width=bar))
        line.add_row(*cells, Text(SEPARATOR.join(facts), no_wrap=True, overflow="ellipsis"))
        yield line


class TerminalLine(Live):
    """The last line of a terminal. It is removed at the end, and another run may have the line."""

    def stop(self) -> None:
        """Removes the line."""
        try:
            super().stop()
        finally:
            _TERMINAL.release()


class NotebookLine:
    """An output of a notebook's cell that is updated in place, and stays at the end."""

    def __init__(self, draw: Callable[[], Picture]) -> None:
        display = importlib.import_module("IPython.display").display
        self.draw = draw
        self.shown = self._content()
        self.handle: Any = display(self.shown, raw=True, display_id=True)
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self._refresh, daemon=True)

    def start(self) -> None:
        """Starts the updates."""
        self.thread.start()

    def stop(self) -> None:
        """Shows the line as it is now, and ends the updates."""
        self.is_over.set()
        self.thread.join()

    def _refresh(self) -> None:
        is_over = False
        while not is_over:
            is_over = self.is_over.wait(NOTEBOOK_EVERY_S)
            if (content := self._content()) != self.shown:
                self.shown = content
                self.handle.update(content, raw=True)

    def _content(self) -> dict[str, str]:
        picture = self.draw()
        percent = [] if picture.share is None else [f"{picture.share:.0%}"]
        text = SEPARATOR.join([picture.name, *percent, *picture.facts])
        value = "" if picture.share is None else f' value="{picture.share:.4f}"'
        return {
            "text/plain": text,
            "text/html": f'<progress{value}></progress> <span style="font-family: monospace;'
            f' font-variant-numeric: tabular-nums">{html.escape(text)}</span>',
        }


Line = TerminalLine | NotebookLine
"""A line that is updated from `start` until `stop`."""


def line_for(console: Console, draw: Callable[[], Picture], *, in_notebook: bool) -> Line | None:
    """Returns the line that shows progress, or None if only plain lines can be printed."""
    if in_notebook:
        return NotebookLine(draw)
    if console.is_terminal and not console.is_dumb_terminal and _TERMINAL.acquire(blocking=False):
        return TerminalLine(
            console=console,
            get_renderable=draw,
            refresh_per_second=REFRESHES_PER_S,
            transient=True,
        )
    return None
