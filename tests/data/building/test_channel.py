"""Objects arrive whole at the other end of a channel, however their sizes change."""

import threading

import numpy as np
import pytest

from rampcli.data.building.channel import open_channel


def test_objects_of_any_size_arrive_in_turns():
    ours, theirs = open_channel()

    def answer() -> None:
        for _ in range(4):
            theirs.send(theirs.receive())

    thread = threading.Thread(target=answer)
    thread.start()
    for size in (3, 1 << 20, 0, 100):
        ours.send((b"x" * size, np.arange(size)))
        content, numbers = ours.receive()
        assert content == b"x" * size
        assert np.array_equal(numbers, np.arange(size))
    thread.join()


def test_a_closed_channel_ends_the_wait_of_the_other_end():
    ours, theirs = open_channel()
    theirs.close()
    with pytest.raises(EOFError):
        ours.receive()
