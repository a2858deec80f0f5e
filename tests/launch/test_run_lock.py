import os
import signal
import socket
import subprocess
import sys

import pytest

from rampcli.errors import UsageError
from rampcli.launch.cancelling import cancel
from rampcli.launch.run_lock import Holder, holder_of, locked
from rampcli.run_directory import RunDirectory

SUPERVISOR = """
import sys, time
from pathlib import Path
from rampcli.launch.run_lock import locked
from rampcli.run_directory import RunDirectory
with locked(RunDirectory(Path(sys.argv[1]))):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path / "run")


@pytest.fixture
def supervisor(run):
    with subprocess.Popen([sys.executable, "-c", SUPERVISOR, run.path], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process
        process.kill()


def test_a_second_supervisor_is_told_who_the_first_one_is(run, supervisor):
    holder = Holder(socket.gethostname(), supervisor.pid)
    assert holder_of(run) == holder
    with pytest.raises(UsageError, match=f"is in use by another rampcli \\({holder}\\)"), locked(run):
        pass
    assert holder_of(run) == holder


def test_a_supervisor_that_was_killed_holds_nothing_and_leaves_the_run_to_the_next(run, supervisor):
    os.kill(supervisor.pid, signal.SIGKILL)
    supervisor.wait()
    assert holder_of(run) is None
    with locked(run):
        assert holder_of(run) == Holder(socket.gethostname(), os.getpid())
    assert holder_of(run) is None


def test_nobody_holds_a_run_that_never_was(run):
    assert holder_of(run) is None
    assert not run.path.exists()


def test_cancelling_asks_the_supervisor_to_stop(run, supervisor):
    assert cancel(run) == Holder(socket.gethostname(), supervisor.pid)
    assert supervisor.wait() == -signal.SIGTERM


def test_what_nobody_trains_cannot_be_cancelled_nor_what_is_trained_elsewhere(run):
    with pytest.raises(UsageError, match="nothing trains in"):
        cancel(run)
    with locked(run):
        run.lock.write_text('{"host": "node7", "pid": 1}')
        with pytest.raises(UsageError, match="is trained by process 1 on node7, and this is"):
            cancel(run)
