"""Processes that were started together, and end together."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """What became of some workers while those who start them go on.

    Attributes:
        begin_anew: the workers begin anew from the last checkpoint, or have to.
        crash: what they crashed of; None where they did not.
        lost: nodes that went, and what the others do; None where none went.
    """

    begin_anew: bool
    crash: str | None = None
    lost: str | None = None


class Workers:
    """Those who start the workers of a stage: agents, or a srun. Each leads a session of its own.

    Attributes:
        lost_s: how long the others may take to end once one has failed: they would wait for it in vain.
    """

    lost_s = 5.0

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        self.processes = list(processes)

    def exit_code(self) -> int | None:
        """0 once all have ended well; the first other code once one has not; None while they run."""
        codes = [process.poll() for process in self.processes]
        failed = [code for code in codes if code not in (None, 0)]
        if failed:
            return failed[0]
        return None if None in codes else 0

    def change(self) -> Change | None:
        """What has changed since the last call, while there is no exit code. Nothing does here: where one ends, all do."""
        return None

    def bring_back(self, wait_s: float) -> None:
        """Start what was lost again, `wait_s` seconds from now."""

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
