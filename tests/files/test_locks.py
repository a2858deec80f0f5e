import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from processes import PATIENCE_S, killed_at_the_end
from rampcli.errors import UsageError
from rampcli.files.locks import hold, holder_here, is_held

HOLDER = """
import signal, sys
from pathlib import Path
from rampcli.files.locks import hold
lock = hold(Path(sys.argv[1]))
print("held", flush=True)
signal.pause()
"""
NOBODY = 65534


@contextmanager
def holding(path):
    """Yields a process that holds a lock during the block."""
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, path], stdout=subprocess.PIPE)
    with killed_at_the_end(holder):
        holder.stdout.readline()
        yield holder


def test_a_lock_is_exclusive_until_it_is_released(tmp_path):
    with hold(tmp_path / "lock"):
        for shared in (False, True):
            with pytest.raises(BlockingIOError):
                hold(tmp_path / "lock", shared=shared)
    hold(tmp_path / "lock").close()


def test_a_shared_lock_excludes_exclusive_ones(tmp_path):
    with (
        hold(tmp_path / "lock", shared=True),
        hold(tmp_path / "lock", shared=True),
        pytest.raises(BlockingIOError),
    ):
        hold(tmp_path / "lock")


def test_the_lock_of_a_killed_process_is_released_to_a_waiting_one(tmp_path):
    with holding(tmp_path / "lock") as holder:
        began = time.monotonic()
        with pytest.raises(BlockingIOError):
            hold(tmp_path / "lock", wait_s=0.2)
        assert time.monotonic() - began >= 0.2
        os.kill(holder.pid, signal.SIGKILL)
        hold(tmp_path / "lock", wait_s=PATIENCE_S).close()


def test_locking_keeps_the_contents_of_the_file(tmp_path):
    (tmp_path / "lock").write_text("by me")
    hold(tmp_path / "lock").close()
    assert (tmp_path / "lock").read_text() == "by me"


@pytest.mark.parametrize("shared", [False, True])
def test_checking_a_lock_does_not_create_the_file(tmp_path, shared):
    assert not is_held(tmp_path / "lock")
    assert not (tmp_path / "lock").exists()
    with hold(tmp_path / "lock", shared=shared):
        assert is_held(tmp_path / "lock")
    assert not is_held(tmp_path / "lock")


def test_the_holder_of_an_exclusive_lock_is_found_whatever_the_file_contains(tmp_path):
    path = tmp_path / "lock"
    assert holder_here(path) is None
    path.write_text('{"pid": 1}')
    assert holder_here(path) is None
    with holding(path) as holder:
        assert holder_here(path) == holder.pid
    assert holder_here(path) is None
    with hold(path, shared=True), path.open():
        assert holder_here(path) is None


def test_the_lock_of_a_run_that_only_another_user_may_write_is_checked():
    own = os.geteuid()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder) / "lock"
        hold(path).close()
        path.chmod(0o444)
        if own == 0:  # root may write anything
            os.seteuid(NOBODY)
        try:
            assert path.read_text() == ""  # the folder can be reached
            with pytest.raises(PermissionError):
                path.open("a")
            assert not is_held(path)
            with open(path, encoding="utf-8") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                assert is_held(path)
        finally:
            os.seteuid(own)


def test_a_link_in_place_of_a_lock_is_refused_and_its_target_is_not_created(tmp_path):
    (tmp_path / "lock").symlink_to(tmp_path / "outside")
    for use in (hold, is_held):
        with pytest.raises(UsageError, match="is a symbolic link"):
            use(tmp_path / "lock")
    assert not (tmp_path / "outside").exists()
