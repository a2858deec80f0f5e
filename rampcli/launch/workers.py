"""Processes that were started together, and end together."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress


class Workers:
    """Those who start the workers of a stage: agents, or a srun. Each leads a session of its own.

    Attributes:
        lost_s: how long the others may take to end once one has failed: they would wait for it in vain.
    """

    lost_s = 5.0

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        self.processes = processes

    def exit_code(self) -> int | None:
        """0 once all have ended well; the first other code once one has not; None while they run."""
        codes = [process.poll() for process in self.processes]
        failed = [code for code in codes if code not in (None, 0)]
        if failed:
            return failed[0]
        return None if None in codes else 0

    def ask_to_stop(self) -> None:
        """Let the workers save and leave."""
        for process in self.processes:
            if process.poll() is None:
                process.terminate()

    def kill(self) -> None:
        """End them at once."""
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def end(self) -> None:
        """Make sure that nothing is left, however the stage ended."""
        self.ask_to_stop()
        deadline = time.monotonic() + self.lost_s
        with suppress(subprocess.TimeoutExpired):
            for process in self.processes:
                process.wait(max(0.0, deadline - time.monotonic()))
        self.kill()
