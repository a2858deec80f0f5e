"""The heartbeat of a rank says what the rank does, and never harms it."""

import errno
import os
import threading

import pytest

from processes import wait_until
from rampcli.machine.activity import COMPUTING, LOADING, READING, SAVING, activity, begin, waiting
from rampcli.runs.directory import RunDirectory
from rampcli.runs.heartbeats import heartbeat_file, read_ranks
from rampcli.worker.heartbeat import Heartbeat


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path)


@pytest.fixture(autouse=True)
def _at_the_start():
    begin(LOADING)


def test_a_heartbeat_says_what_the_rank_does_until_it_ends(run):
    begin(READING)
    with Heartbeat(run, rank=1, world_size=2):
        wait_until(lambda: read_ranks(run).known)
        (rank,) = read_ranks(run).known
        assert (rank.rank, rank.pid, rank.host) == (1, os.getpid(), os.uname().nodename)
        assert (rank.doing, rank.waits, rank.answers) == (READING, False, True)
        assert read_ranks(run).missing == (0,)
        with waiting:
            wait_until(lambda: read_ranks(run).known[0].waits)
    assert not run.heartbeats.exists()


def test_rank_0_removes_the_files_of_ranks_that_were_killed(run):
    run.make_folder(run.heartbeats)
    killed = heartbeat_file(run, 3)
    killed.touch()
    with Heartbeat(run, rank=0, world_size=1):
        wait_until(lambda: read_ranks(run).known)
        assert not killed.exists()


def test_a_file_that_was_deleted_comes_back(run):
    with Heartbeat(run, rank=0, world_size=1):
        for _ in range(2):
            wait_until(lambda: read_ranks(run).known)
            run.remove_tree(run.heartbeats)
        wait_until(lambda: read_ranks(run).known)


class FullDisk(RunDirectory):
    """A run directory on a full disk. `tried` is set whenever a file is opened."""

    tried = threading.Event()

    def open(self, path, flags):  # noqa: ARG002
        self.tried.set()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_neither_ends_the_rank_nor_prints(tmp_path, capfd):
    run = FullDisk(tmp_path)
    with Heartbeat(run, rank=0, world_size=1):
        for _ in range(2):
            assert run.tried.wait(60.0)
            run.tried.clear()
    assert capfd.readouterr() == ("", "")


def test_a_heartbeat_follows_no_link(run, tmp_path, capfd):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "rank_1.json").write_text("kept")
    run.heartbeats.symlink_to(elsewhere)
    with Heartbeat(run, rank=1, world_size=2):
        pass
    assert (elsewhere / "rank_1.json").read_text() == "kept"
    assert capfd.readouterr() == ("", "")


def test_what_a_rank_does_is_what_its_main_thread_does():
    begin(SAVING)
    thread = threading.Thread(target=begin, args=(READING,))
    thread.start()
    thread.join()
    assert activity()[:2] == (SAVING, False)
    with waiting:
        assert activity()[:2] == (SAVING, True)
    assert activity()[:2] == (SAVING, False)


def test_a_rank_waits_with_its_background_save_once_it_waits_for_that():
    begin(COMPUTING)
    is_waiting, goes_on = threading.Event(), threading.Event()

    def save():
        with waiting:
            is_waiting.set()
            goes_on.wait()

    thread = threading.Thread(target=save)
    thread.start()
    is_waiting.wait()
    assert activity()[:2] == (COMPUTING, False)
    begin(SAVING)
    assert activity()[:2] == (SAVING, True)
    goes_on.set()
    thread.join()
    assert activity()[:2] == (SAVING, False)
