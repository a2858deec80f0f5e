"""The process of a tracker, against a server that speaks wandb's protocol."""

import json
import os
import signal
import subprocess
import sys

import pytest

from processes import processes_with, wait_until
from rampcli.tracking.tracker import begin_position, read_position
from run_files import metrics_row
from tiny_runs import Run, environment
from wandb_server import serving

STEPS = 40


@pytest.fixture
def server():
    with serving() as server:
        yield server


@pytest.fixture
def track(tmp_path, server):
    """Starts the process that logs the run to the server."""
    run = Run(tmp_path)
    run.describe("name=mine")
    begin_position(run.directory, "wandb")
    variables = {
        "WANDB_BASE_URL": f"http://127.0.0.1:{server.server_port}",
        "WANDB_API_KEY": "0" * 40,
        "WANDB_X_FILE_STREAM_TRANSMIT_INTERVAL": "0.2",
        "WANDB_X_DISABLE_STATS": "true",
        "WANDB_DISABLE_GIT": "true",
        "HOME": str(tmp_path / "home"),
    }

    def start():
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "rampcli.launch.track", str(tmp_path), "wandb"],
            env=environment() | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    start.run = run.directory
    return start


def take_steps(run, first: int, last: int) -> None:
    for step in range(first, last + 1):
        row = metrics_row(step=step, consumed_samples=4 * step, time=1e9 + step)
        run.append_row(run.metrics, row)


def test_a_killed_run_of_wandb_continues_after_the_points_that_the_server_has(track, server):
    run = track.run
    take_steps(run, 1, STEPS)
    process = track()
    wait_until(lambda: any(server.history.values()), process)
    for core in processes_with(f"--pid {process.pid}"):  # which would send what it has
        os.kill(core, signal.SIGKILL)
    process.kill()
    process.communicate()
    assert read_position(run, "wandb").step == 0  # nothing is certain
    take_steps(run, STEPS + 1, STEPS + 5)
    process = track()
    output, _ = process.communicate("600\n")
    assert process.returncode == 0, output
    ((name, lines),) = server.history.items()
    points = [json.loads(line) for line in lines]
    assert [point["step"] for point in points] == list(range(1, STEPS + 6))
    assert [point["_step"] for point in points] == list(range(STEPS + 5))
    assert points[-1]["_timestamp"] == 1e9 + STEPS + 5
    assert (server.inputs[name]["displayName"], server.inputs[name]["project"]) == (
        "mine",
        "rampcli",
    )
    assert read_position(run, "wandb").points == STEPS + 5
