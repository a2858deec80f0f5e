import os
import socket
import tempfile

import pytest

from processes import command_of, environment_of
from rampcli import llm
from rampcli.errors import UsageError
from rampcli.launch.elastic import World
from rampcli.launch.local.launcher import LocalWorkers, gpus_needed, reserve_gpus
from rampcli.planning.resolve import resolve
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


@pytest.fixture
def claims(monkeypatch, tmp_path):
    """An empty folder for reservations."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def tiny(accelerator):
    """Returns configuration and plan of a run of two processes."""
    config = llm.llama3_tiny.pretrain_recipe()
    config.trainer.accelerator = accelerator
    resolved = resolve(config)
    return resolved.config, resolved.plan


@pytest.mark.parametrize(
    ("accelerator", "variable", "used"),
    [
        ("auto", "3,5,7", ["3", "5"]),
        ("auto", "3", []),
        ("cpu", "3,5", []),
        ("gpu", "3,5", ["3", "5"]),
    ],
)
def test_a_run_reserves_all_gpus_of_its_largest_stage_or_none(
    claims,  # noqa: ARG001
    monkeypatch,
    accelerator,
    variable,
    used,
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    with reserve_gpus(*tiny(accelerator)) as gpus:
        assert gpus == used


def test_concurrent_runs_get_different_gpus_until_there_are_too_few(claims, monkeypatch):  # noqa: ARG001
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,GPU-a/b,4")
    with reserve_gpus(*tiny("gpu")) as first, reserve_gpus(*tiny("auto")) as second:
        assert (first, second) == (["0", "1"], ["2", "GPU-a/b"])
        with (
            pytest.raises(UsageError, match="needs 2 GPUs, but other runs use 4 of the 5 GPUs"),
            reserve_gpus(*tiny("auto")),
        ):
            pass
        with reserve_gpus(*tiny("cpu")) as none:
            assert none == []
    with reserve_gpus(*tiny("gpu")) as again:
        assert again == ["0", "1"]


def test_a_run_that_needs_more_gpus_than_exist_is_refused_with_their_number(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    resolved = resolve(llm.gpt3_5b.pretrain_recipe())
    with pytest.raises(
        UsageError, match=r"needs 128 GPUs \(16 nodes of 8\), and this machine has 1"
    ):
        gpus_needed(resolved.config, resolved.plan)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.mkdir(mode=0o777),
        lambda path: path.symlink_to("/var"),
        lambda path: path.touch(),
    ],
)
def test_gpus_are_not_reserved_in_a_folder_that_others_can_write_to(
    claims,  # noqa: ARG001
    monkeypatch,
    tmp_path,
    make,
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    before = os.umask(0)
    make(tmp_path / f"rampcli-gpus-{os.getuid()}")
    os.umask(before)
    with (
        pytest.raises(UsageError, match="is not a folder that only you can write to"),
        reserve_gpus(*tiny("gpu")),
    ):
        pass
