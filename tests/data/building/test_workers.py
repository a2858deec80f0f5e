"""Worker processes end with the build that started them, whatever they are doing."""

import time
from contextlib import closing
from dataclasses import dataclass
from multiprocessing import active_children

import pytest

from rampcli.data.building.records import Chunk, Cursor, Slice
from rampcli.data.building.workers import map_in_order


@dataclass
class Sleeping:
    """Work that takes as many seconds as a chunk has bytes before it."""

    def open(self):
        return lambda chunk: time.sleep(chunk.consumed_bytes)


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_that_are_busy_end_with_the_pass(workers):
    others = {*active_children()}
    began = time.monotonic()
    longer_than_a_pipe = (Slice(0, "text", 1, bytes(1 << 22)),)
    chunks = (Chunk(longer_than_a_pipe, Cursor(), seconds) for seconds in (0, 600, 600, 600))
    with closing(map_in_order(chunks, Sleeping(), workers)) as found:
        next(found)
    assert time.monotonic() - began < 300
    assert not {*active_children()} - others
