"""Heartbeats tell silent ranks, ranks that are behind and ranks that wait apart."""

import json
import os

import pytest

from rampcli.machine.activity import COMPUTING, READING, VALIDATING
from rampcli.runs.directory import RunDirectory
from rampcli.runs.heartbeats import (
    MOST_BEATS_PER_S,
    STUCK_S,
    Ranks,
    beat_s,
    heartbeat_file,
    read_ranks,
    touch,
)

NOW = 1000.0
"""Time of the file system, far from the clock of this machine."""


@pytest.fixture
def run(tmp_path):
    run = RunDirectory(tmp_path)
    run.make_folder(run.heartbeats)
    return run


def beat(run, rank, *, world_size=2, at=NOW, **facts):
    record = {"rank": rank, "world_size": world_size, "host": f"node{rank}", "pid": 10 + rank}
    usual = {"doing": COMPUTING, "waits": False, "doing_s": STUCK_S}
    path = heartbeat_file(run, rank)
    path.write_text(json.dumps(record | usual | facts))
    os.utime(path, (at, at))


def numbers(ranks):
    return [rank.rank for rank in ranks]


def told(ranks: Ranks) -> tuple[list[int], list[int], list[int]]:
    """Returns the numbers of the ranks that are missing, behind and waiting."""
    return list(ranks.missing), numbers(ranks.behind), numbers(ranks.waiting)


def test_nothing_is_known_without_heartbeats(tmp_path):
    assert read_ranks(RunDirectory(tmp_path)) == Ranks()
    assert told(Ranks()) == ([], [], [])


def test_a_rank_whose_file_is_older_than_the_newest_is_silent_whatever_the_clock_of_the_reader(run):
    for at in (NOW, NOW + 1e10):
        beat(run, 0, at=at)
        beat(run, 1, at=at - 31.0)
        assert told(read_ranks(run)) == ([], [1], [0])
        beat(run, 1, at=at - 29.0)
        assert numbers(read_ranks(run).silent) == []


def test_the_only_rank_is_silent_if_its_supervisor_goes_on(run):
    beat(run, 0, world_size=1)
    assert numbers(read_ranks(run).silent) == []
    run.lock.touch()
    os.utime(run.lock, (0.0, 0.0))
    touch(run)
    assert told(read_ranks(run)) == ([], [0], [])


def test_touching_a_lock_follows_no_link_and_needs_no_file(run, tmp_path):
    touch(run)
    target = tmp_path / "target"
    target.touch()
    os.utime(target, (NOW, NOW))
    run.lock.symlink_to(target)
    touch(run)
    assert target.stat().st_mtime == NOW


WAITS, READS, SILENT = {"waits": True}, {"doing": READING}, {"at": 0.0}


@pytest.mark.parametrize(
    ("beats", "expected"),
    [
        # A rank that does something alone, or computes while others wait, is behind.
        ([WAITS, READS], ([], [1], [0])),
        ([WAITS, {"doing": VALIDATING}, WAITS], ([], [1], [0, 2])),
        # A rank that computes waits for those that are silent or read.
        ([{}, SILENT, WAITS, READS], ([], [1, 3], [0, 2])),
        # A silent rank is behind while the others still make progress.
        ([{"doing_s": 1.0}, SILENT], ([], [1], [])),
        # A rank without a file has not started.
        ([WAITS, None, WAITS], ([1], [], [0, 2])),
        # No rank is behind if all do the same, or one makes progress.
        *(([facts, facts], ([], [], [])) for facts in ({}, WAITS, READS)),
        ([WAITS, READS | {"doing_s": STUCK_S / 2}], ([], [], [])),
    ],
)
def test_ranks_that_are_missing_behind_or_waiting_are_told_apart(run, beats, expected):
    for rank, facts in enumerate(beats):
        if facts is not None:
            beat(run, rank, world_size=len(beats), **facts)
    assert told(read_ranks(run)) == expected


def test_ranks_of_an_earlier_start_with_more_ranks_are_left_out(run):
    for rank in range(4):
        beat(run, rank, world_size=4, at=0.0)
    for rank in range(2):
        beat(run, rank, world_size=2)
    assert numbers(read_ranks(run).known) == [0, 1]
    assert read_ranks(run).missing == ()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"rank": 1}',
        b"\xff" * 10_000,
        b'{"rank": 0, "world_size": 2, "host": "", "pid": 1, "doing": "", "waits": true,'
        b' "doing_s": 0}',  # the file of rank 1
    ],
)
def test_a_damaged_file_says_nothing_about_its_rank(run, content):
    beat(run, 0)
    heartbeat_file(run, 1).write_bytes(content)
    ranks = read_ranks(run)
    assert (numbers(ranks.known), ranks.missing) == ([0], ())


def test_neither_a_link_nor_a_pipe_is_read_and_no_number_of_ranks_is_too_large(run, tmp_path):
    beat(run, 0, world_size=10**18)
    beat(run, 1)
    heartbeat_file(run, 1).rename(tmp_path / "other")
    heartbeat_file(run, 1).symlink_to(tmp_path / "other")
    os.mkfifo(heartbeat_file(run, 2))
    (run.heartbeats / "rank_99999999999999999999.json").touch()
    assert numbers(read_ranks(run).known) == [0]


@pytest.mark.parametrize("world_size", [1, 8, 100, 1000, 16384])
def test_ranks_write_no_more_often_than_their_disk_can_take(world_size):
    assert world_size / beat_s(world_size) <= MOST_BEATS_PER_S
    assert beat_s(world_size) >= 1.0


def test_many_ranks_that_write_rarely_are_silent_later(run):
    beat(run, 0, world_size=16384)
    beat(run, 1, world_size=16384, at=NOW - 5 * beat_s(16384))
    assert numbers(read_ranks(run).silent) == []
