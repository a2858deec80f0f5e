import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli.report.ramp_figure import HEIGHT, LABEL_WIDTH, ramp_figure

BATCHES = st.lists(st.integers(1, 10**9), min_size=1, max_size=12)


def columns(lines):
    """Returns the height of each column of a figure."""
    rows = [line[LABEL_WIDTH + 2 :] for line in lines[1 : HEIGHT + 1]]
    width = max(map(len, rows))
    return [sum(row.ljust(width)[at] == "#" for row in rows) for at in range(width)]


@pytest.mark.parametrize("width", [80, 120])
@given(batches=BATCHES, data=st.data())
def test_a_figure_fits_its_width_and_its_columns_are_as_high_as_the_batches(width, batches, data):
    gaps = data.draw(st.lists(st.integers(1, 10**12), min_size=len(batches)))
    starts = [sum(gaps[:index]) for index in range(len(batches))]
    lines = ramp_figure(starts, batches, width=width, block="#")
    assert max(map(len, lines)) <= width
    assert all(line.isascii() for line in lines)
    heights = columns(lines)
    assert len(heights) == width - LABEL_WIDTH - 2
    assert heights[-1] == max(1, round(HEIGHT * batches[-1] / max(batches)))
    possible = {max(1, round(HEIGHT * batch / max(batches))) for batch in batches}
    assert set(heights) <= possible


def test_a_batch_that_doubles_halfway_shows_two_halves():
    lines = ramp_figure([0, 400], [10, 20], width=LABEL_WIDTH + 2 + 50, block="#")
    assert columns(lines) == [5] * 40 + [10] * 10
    assert lines[1].startswith("     20 |")
    assert lines[-2].endswith("500")
