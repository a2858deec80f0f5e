"""Standard output, as tables and progress are printed to it."""

from rich.console import Console

PIPE_WIDTH = 160


def build_console() -> Console:
    """Standard output; a file or a pipe has no width to fit into."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPE_WIDTH)
