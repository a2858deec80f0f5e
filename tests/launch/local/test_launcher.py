import os
import socket

import pytest

from processes import command_of, environment_of
from rampcli.errors import UsageError
from rampcli.launch.elastic import World
from rampcli.launch.local.launcher import LocalWorkers
from rampcli.runs.directory import RunDirectory
from rampcli.settings.config import Config


@pytest.fixture
def run(tmp_path):
    run = RunDirectory(tmp_path / "run")
    run.claim()
    run.config.touch()
    return run


def on_nodes_of(devices: int) -> Config:
    config = Config(name="mine")
    config.trainer.devices = devices
    return config


def test_ranks_use_the_gpus_of_the_remaining_nodes_and_may_leave_some_idle(run):
    log, world = run.logs / "stage_0.log", World(nodes=(0, 2), ranks=3)
    workers = LocalWorkers(on_nodes_of(2), run, world, log, gpus=list("abcdef"))
    try:
        places = [environment_of(process.pid) for process in workers.processes]
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES", "MASTER_ADDR")
        assert [tuple(place[name] for name in names) for place in places] == [
            ("0", "0", "3", "a,b", "127.0.0.1"),
            ("1", "1", "3", "a,b", "127.0.0.1"),
            ("2", "0", "3", "e,f", "127.0.0.1"),
        ]
        for process in workers.processes:
            assert " -P -m rampcli.worker " in command_of(process.pid)
    finally:
        workers.end()


def test_no_other_process_can_listen_where_the_workers_meet(run):
    log, world = run.logs / "stage_0.log", World(nodes=(0,), ranks=2)
    workers = LocalWorkers(on_nodes_of(2), run, world, log)
    try:
        port = int(environment_of(workers.processes[1].pid)["MASTER_PORT"])
        with socket.socket() as neighbour:
            neighbour.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with pytest.raises(OSError, match="in use"):
                neighbour.bind(("127.0.0.1", port))
        assert [
            "RAMPCLI_LISTENER" in environment_of(process.pid) for process in workers.processes
        ] == [True, False]
    finally:
        workers.end()


@pytest.mark.parametrize("link", ["logs", "logs/stage_0.log"])
def test_a_log_that_is_a_link_is_refused(run, tmp_path, link):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/stage_0.log").write_text("precious")
    (run.path / link).parent.mkdir(exist_ok=True)
    os.symlink(tmp_path / link, run.path / link)
    world = World(nodes=(0,), ranks=1)
    with pytest.raises(UsageError, match="is a symbolic link"):
        LocalWorkers(on_nodes_of(1), run, world, run.logs / "stage_0.log")
    assert (tmp_path / "logs/stage_0.log").read_text() == "precious"
