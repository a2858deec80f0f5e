import signal
import socket
import subprocess
import sys
import threading

import pytest

from rampcli.cli.cancel import ask_to_save
from rampcli.errors import UsageError
from rampcli.files.locks import hold
from rampcli.launch.run_lock import Holder, holder_of, lock_run
from rampcli.runs.directory import RunDirectory


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path / "run")


def test_cancelling_asks_the_supervisor_to_stop(run, supervisor):
    assert ask_to_save(run) == Holder(socket.gethostname(), supervisor.pid, is_here=True)
    assert supervisor.wait() == -signal.SIGTERM


def test_a_run_of_a_thread_is_not_cancelled_by_a_signal_that_would_end_its_process(run):
    began, may_end = threading.Event(), threading.Event()

    def supervise():
        with lock_run(run):
            began.set()
            may_end.wait()

    thread = threading.Thread(target=supervise)
    thread.start()
    began.wait()
    with pytest.raises(UsageError, match="in a thread"):
        ask_to_save(run)
    may_end.set()
    thread.join()


def test_a_run_that_is_not_training_cannot_be_cancelled(run):
    with pytest.raises(UsageError, match="no process is training in"):
        ask_to_save(run)


LIES = [  # possible contents of a lock file
    '{"host": "HOST", "pid": 1}',
    '{"host": "HOST", "pid": PID}',
    '{"host": "HOST", "pid": -1}',
    "1",
    "x",
    "1" * 30,
    "[" * 4000,
    "\x1b[2J",
    "",
]


@pytest.fixture
def bystander():
    """An unrelated process of this user."""
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as process:
        yield process
        assert process.poll() is None
        process.kill()


@pytest.mark.parametrize("lie", LIES, ids=range(len(LIES)))
def test_the_contents_of_the_lock_never_decide_who_gets_a_signal(run, supervisor, bystander, lie):
    run.lock.write_text(
        lie.replace("HOST", socket.gethostname()).replace("PID", str(bystander.pid))
    )
    assert holder_of(run) == Holder(socket.gethostname(), supervisor.pid, is_here=True)
    assert ask_to_save(run).pid == supervisor.pid
    assert supervisor.wait() == -signal.SIGTERM
    assert holder_of(run) is None
    with pytest.raises(UsageError, match="no process is training in"):
        ask_to_save(run)


def test_a_run_whose_holder_is_not_visible_here_is_not_cancelled(run, supervisor, bystander):
    supervisor.kill()
    supervisor.wait()
    with hold(run.lock, shared=True):  # supervisors hold it exclusively
        run.lock.write_text(f'{{"host": "node7\\u001b[2J", "pid": {bystander.pid}}}')
        with pytest.raises(
            UsageError,
            match=r"is supervised by process \d+ on node7.x1b.2J, which is not your process",
        ):
            ask_to_save(run)
        run.lock.write_text("")
        with pytest.raises(UsageError, match="by a process that is not visible from this machine"):
            ask_to_save(run)


def test_a_link_in_place_of_the_lock_is_refused(run, supervisor, tmp_path):
    other = RunDirectory(tmp_path / "other")
    other.claim()
    other.lock.symlink_to(run.lock)
    with pytest.raises(UsageError, match="is a symbolic link"):
        ask_to_save(other)
    assert supervisor.poll() is None
