"""Processes that supervise a run."""

import subprocess
import sys
from contextlib import contextmanager

SUPERVISOR = """
import sys, time
from pathlib import Path
from rampcli.launch.run_lock import lock_run
from rampcli.runs.directory import RunDirectory
with lock_run(RunDirectory(Path(sys.argv[1]))):
    print("held", flush=True)
    time.sleep(60)
"""


@contextmanager
def supervising(run):
    """Starts a process that holds the lock of a run, and yields it."""
    with subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, run.path], stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        yield process
        process.kill()
