"""A worker ends without exit handlers, and records why it failed."""

import errno
import os
from datetime import timedelta
from threading import Thread

import pytest
import torch.distributed as dist

from rampcli.errors import OutOfMemoryError, RampcliError
from rampcli.launch.workers import WorkerLog
from rampcli.parallel.mesh import set_group_timeout
from rampcli.runs.directory import COMPLETE, RunDirectory
from rampcli.worker.leave import RankLost, leave_after, record_failure_alone


class FullDisk(RunDirectory):
    """A run directory on a full disk."""

    def replace(self, path, content):  # noqa: ARG002
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def exit_code_of(monkeypatch):
    """Lets a worker leave, and returns the code with which it would end the process."""

    def end(code):
        raise SystemExit(code)

    def leave(run, work):
        with pytest.raises(SystemExit) as left:
            leave_after(run, work)
        return left.value.code

    monkeypatch.setattr(os, "_exit", end)
    return leave


def fail(error):
    raise error


def test_a_complete_run_stays_complete_if_another_rank_fails_after_its_work(
    tmp_path, monkeypatch, exit_code_of
):
    run = RunDirectory(tmp_path)
    run.change_status(COMPLETE)
    lost = RuntimeError("Connection closed by peer")
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "barrier", lambda: fail(lost))
    assert exit_code_of(run, lambda: 0) == 1
    assert run.read_state()["status"] == COMPLETE


@pytest.mark.parametrize("error", [RampcliError("foreseen"), OSError(errno.ENOSPC, "no space")])
def test_a_worker_that_cannot_record_its_error_still_leaves(error, tmp_path, exit_code_of, capsys):
    assert exit_code_of(FullDisk(tmp_path), lambda: fail(error)) == 1
    assert os.strerror(errno.ENOSPC) in capsys.readouterr().err


@pytest.mark.usefixtures("alone")
def test_a_rank_whose_group_timed_out_in_another_collective_says_how_long_it_waited(
    tmp_path, exit_code_of, capfd
):
    """Gloo gives the time only to who waits for the first collective that is late."""
    closed = RuntimeError("Application timeout caused pair closure")
    log = WorkerLog(tmp_path / "stage_0.log")
    for timeout_s in (4, 600):
        set_group_timeout(timedelta(seconds=timeout_s), dist.group.WORLD)
        assert exit_code_of(RunDirectory(tmp_path), lambda: fail(closed)) == 1
        log.path.write_text(capfd.readouterr().err)
        assert log.timeout_s() == timeout_s


def test_an_understood_error_is_kept_whichever_of_two_ranks_is_the_first(tmp_path):
    class Interrupted(RunDirectory):
        """A run directory in which another rank records its error as soon as this one has read."""

        def read_state(self):
            state = RunDirectory.read_state(self)
            if other.ident is None:
                other.start()
                other.join(timeout=0.3)
            return state

    other = Thread(
        target=record_failure_alone, args=(RunDirectory(tmp_path), OutOfMemoryError("too large"))
    )
    record_failure_alone(Interrupted(tmp_path), RankLost())
    other.join()
    assert RunDirectory(tmp_path).read_state()["error"]["message"] == "too large"
