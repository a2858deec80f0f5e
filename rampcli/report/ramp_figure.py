"""A batch ramp as a figure of characters: tokens per batch over trained tokens."""

from bisect import bisect_right
from collections.abc import Sequence

from rampcli.batch.quantities import shorten

HEIGHT = 10
LABEL_WIDTH = 7
"""Characters in front of the axis."""
AFTER_THE_RAMP = 1.25
"""Right end of the figure, as a multiple of the tokens after which the batch stays."""


def ramp_figure(
    starts: Sequence[int], batches: Sequence[int], *, width: int, block: str = "█"
) -> list[str]:
    """Returns the lines of a figure. A column is as high as the batch at its tokens.

    Args:
        starts: trained tokens from which each batch applies, the first 0.
        batches: tokens of each batch.
        width: characters of a line.
        block: character of the columns.
    """
    columns = max(10, width - LABEL_WIDTH - 2)
    most, end = max(batches), starts[-1] * AFTER_THE_RAMP or 1
    heights = [
        round(HEIGHT * batches[bisect_right(starts, end * (at + 0.5) / columns) - 1] / most)
        for at in range(columns)
    ]
    lines = []
    for row in range(HEIGHT, 0, -1):
        label = shorten(most * row / HEIGHT) if row in (HEIGHT, HEIGHT // 2) else ""
        bar = "".join(block if max(1, height) >= row else " " for height in heights)
        lines.append(f"{label:>{LABEL_WIDTH}} |{bar}".rstrip())
    right = shorten(end)
    axis = f"0{right:>{columns - 1}}"
    return [
        "tokens per batch",
        *lines,
        f"{'':{LABEL_WIDTH}} +{'-' * columns}",
        f"{'':{LABEL_WIDTH}}  {axis}",
        f"{'trained tokens':>{LABEL_WIDTH + 2 + columns}}",
    ]
