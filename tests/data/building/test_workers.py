"""Objects arrive whole at the other end of a channel, however their sizes change."""

import os
import resource
import threading

import numpy as np
import pytest

from rampcli.data.building.workers import KEPT_BYTES, open_channel


@pytest.mark.parametrize("is_linux", [True, False])
def test_objects_of_any_size_arrive_in_turns(monkeypatch, is_linux):
    if not is_linux:
        monkeypatch.delattr(os, "memfd_create")
    ours, theirs = open_channel()

    def answer() -> None:
        for _ in range(5):
            theirs.send(theirs.receive())

    thread = threading.Thread(target=answer)
    thread.start()
    for size in (3, 1 << 20, 0, 3 << 20, 100):
        ours.send((b"x" * size, np.arange(size)))
        content, numbers = ours.receive()
        assert content == b"x" * size
        assert np.array_equal(numbers, np.arange(size))
    thread.join()
    ours.close()
    theirs.close()


def test_an_object_that_is_not_written_whole_is_an_error():
    ours, theirs = open_channel()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (KEPT_BYTES, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            ours.send(bytes(2 * KEPT_BYTES))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    ours.close()
    theirs.close()


def test_the_memory_of_a_large_object_is_given_back_after_the_next_one(monkeypatch):
    memories, create = [], os.memfd_create
    monkeypatch.setattr(
        os, "memfd_create", lambda name: memories.append(create(name)) or memories[0]
    )
    ours, theirs = open_channel()
    for size in (4 * KEPT_BYTES, 100, KEPT_BYTES // 2, 3 * KEPT_BYTES, 10):
        ours.send(bytes(size))
        assert theirs.receive() == bytes(size)
        assert os.fstat(memories[0]).st_blocks * 512 <= max(size + 8192, KEPT_BYTES)
    ours.close()
    theirs.close()


def test_a_closed_channel_ends_the_wait_of_the_other_end():
    ours, theirs = open_channel()
    theirs.close()
    with pytest.raises(EOFError):
        ours.receive()
    ours.close()
