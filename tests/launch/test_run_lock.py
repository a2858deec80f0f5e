import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from rampcli.errors import UsageError
from rampcli.launch.run_lock import Holder, holder_of, lock_run
from rampcli.runs.directory import RunDirectory


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path / "run")


def test_a_second_supervisor_is_refused_and_the_first_one_is_named(run, supervisor):
    holder = Holder(socket.gethostname(), supervisor.pid, is_here=True)
    assert holder_of(run) == holder
    with (
        pytest.raises(UsageError, match=f"is in use by another rampcli \\({holder}\\)"),
        lock_run(run),
    ):
        pass
    assert holder_of(run) == holder


def test_a_killed_supervisor_releases_the_run(run, supervisor):
    os.kill(supervisor.pid, signal.SIGKILL)
    supervisor.wait()
    assert holder_of(run) is None
    with lock_run(run):
        assert holder_of(run) == Holder(socket.gethostname(), os.getpid(), is_here=True)
    assert holder_of(run) is None


def test_a_run_that_never_started_has_no_holder(run):
    assert holder_of(run) is None
    assert not run.path.exists()


def test_a_link_in_place_of_the_lock_is_refused(run, supervisor, tmp_path):
    other = RunDirectory(tmp_path / "other")
    other.claim()
    other.lock.symlink_to(run.lock)
    with pytest.raises(UsageError, match="is a symbolic link"), lock_run(other):
        pass
    assert supervisor.poll() is None


def test_a_folder_that_is_not_a_run_directory_is_not_locked(tmp_path):
    (tmp_path / "config.yaml").write_text("mine")
    with pytest.raises(UsageError, match="not empty"), lock_run(RunDirectory(tmp_path)):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


@pytest.mark.parametrize(
    "name",
    ["state.json", "events.jsonl", "metrics.jsonl", "logs", "checkpoints", "slurm", "config.yaml"],
)
def test_a_link_in_a_run_directory_is_refused_before_anything_is_changed(run, tmp_path, name):
    run.claim()
    (tmp_path / "outside").mkdir()
    (run.path / name).symlink_to(tmp_path / "outside")
    with pytest.raises(UsageError, match=f"{name} is a symbolic link"), lock_run(run):
        pass
    assert sorted(path.name for path in run.path.iterdir()) == sorted([".rampcli", "lock", name])
    assert run.lock.read_text() == ""
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.parametrize("has_signals", [False, True])
def test_a_run_in_a_thread_can_be_asked_to_stop_if_it_gets_the_signals(run, has_signals):
    def lock():
        with lock_run(run, has_signals=has_signals):
            return holder_of(run).in_thread

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lock).result() is not has_signals
