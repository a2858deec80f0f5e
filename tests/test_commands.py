"""The commands of tests themselves."""

import os
import signal
import subprocess

import pytest

from commands import Command
from processes import children_of, wait_until


def hang_with_a_child() -> None:
    """Starts a child, prints its number, and waits for ever."""
    print(subprocess.Popen(["sleep", "1000"]).pid, flush=True)
    signal.pause()


def test_a_command_that_does_not_end_is_killed_with_its_children_and_shows_what_it_printed():
    command = Command([], prepare=hang_with_a_child)
    wait_until(command.printed, command)
    (child,) = children_of(command.pid)
    with pytest.raises(AssertionError, match=rf"has not ended after 0 s and printed:\n{child}\n"):
        command.wait(timeout=0)
    assert command.poll() == -signal.SIGKILL
    wait_until(lambda: not os.path.exists(f"/proc/{child}"))
