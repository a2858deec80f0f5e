import os
import subprocess
import sys
from pathlib import Path

import pytest

from processes import wait_until

START = """
import signal
from slurm.cluster import start_cluster
with start_cluster(nodes=2) as cluster:
    cluster.wait_for(cluster.submit("--output=/dev/null", "--wrap=exec sleep 1000"), "RUNNING")
    print(cluster.folder, flush=True)
    signal.pause()
"""


def processes_of(folder: Path) -> list[str]:
    """Returns the command lines of daemons and jobs that refer to a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            about = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in about:
            found.append(about.decode(errors="replace"))
    return found


@pytest.mark.usefixtures("cluster")
def test_a_cluster_is_removed_when_its_tests_are_killed():
    with subprocess.Popen(
        [sys.executable, "-c", START],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        text=True,
        stdout=subprocess.PIPE,
    ) as tests:
        try:
            folder = Path(tests.stdout.readline().strip())
            assert len(processes_of(folder)) > 4
        finally:
            tests.kill()
    wait_until(
        lambda: not (folder.exists() or processes_of(folder)),
        evidence=lambda: processes_of(folder),
    )


def test_clearing_ends_jobs_that_ignore_signals_and_resumes_nodes(cluster):
    job = cluster.submit(
        "--output=/dev/null", "--wrap=trap '' TERM USR1; while true; do sleep 0.1; done"
    )
    waiting = cluster.submit("--output=/dev/null", "--hold", "--wrap=true")
    cluster.wait_for(job, "RUNNING")
    cluster.set_down("node5")
    cluster.clear()
    assert {cluster.jobs()[job], cluster.jobs()[waiting]} <= {"CANCELLED", "FAILED"}
    assert cluster.wait_until_idle(0)
