import json
import os
import re
import resource
import sys
import time
import tomllib
from pathlib import Path

import pytest

from rampcli import llm
from rampcli.config.compose import lay_over
from rampcli.config.resolve import Resolved, resolve
from rampcli.launch import checkup
from rampcli.launch.checkup import LEAST_PYTHON, LEAST_TORCH, Check, Status, check_clock, check_up
from rampcli.run_directory import MANIFEST, RunDirectory
from run_files import manifest

ELSEWHERE = ("gpus", "nccl", "processors", "shared memory")
CRASHES = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"


def run_of(*words: str, recipe: str = "llama3_tiny") -> Resolved:
    return resolve(lay_over(llm.from_factory(recipe), list(words)))


def checked(
    *words: str, recipe: str = "llama3_tiny", torch_limit_s: float = 60.0
) -> dict[str, Check]:
    return {
        check.name: check
        for check in check_up(run_of(*words, recipe=recipe), torch_limit_s=torch_limit_s)
    }


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The empty folder in which a run is to start."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def other_torch(tmp_path, monkeypatch):
    """Puts another torch in front of the installed one."""

    def write(text: str) -> None:
        (tmp_path / "other" / "torch").mkdir(parents=True)
        (tmp_path / "other" / "torch" / "__init__.py").write_text(text)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "other"))

    return write


@pytest.fixture
def quickly_checked(other_torch):
    """For what is looked at whether there is a torch or not; one takes a second or two to start."""
    other_torch("raise ModuleNotFoundError('torch')")
    return checked


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Makes the programs that PATH leads to: each a line of sh, by its name."""

    def write(**lines: str) -> None:
        (tmp_path / "bin").mkdir()
        for name, line in lines.items():
            (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
            (tmp_path / "bin" / name).chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    return write


@pytest.fixture
def slurm(programs):
    """Slurm's client programs, of which only sinfo is asked."""
    return lambda sinfo: programs(
        **dict.fromkeys(checkup.SLURM_COMMANDS, "exit 1") | {"sinfo": sinfo}
    )


def test_the_least_versions_are_those_that_the_package_wants():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=" + ".".join(map(str, LEAST_PYTHON))
    assert "torch>=" + ".".join(map(str, LEAST_TORCH)) in project["dependencies"]


def test_a_machine_that_trains_has_no_failure_and_is_left_as_it_was(folder):
    checks = check_up()
    assert [check for check in checks if check.status is Status.failure] == []
    assert len({check.name for check in checks}) == len(checks) == 13
    assert list(folder.iterdir()) == []


def test_whatever_is_not_well_has_a_remedy_and_nothing_else_has(other_torch):
    other_torch(CRASHES)
    checks = [
        *check_up(run_of("launch=slurm", "run_dir=/proc/nowhere")),
        *check_up(run_of(recipe="gpt3_5b")),
    ]
    assert {check.status for check in checks} == set(Status)
    for check in checks:
        assert (check.remedy is not None) == (check.status in (Status.warning, Status.failure)), (
            check
        )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "raise ModuleNotFoundError(\"No module named 'torch'\")",
            "ModuleNotFoundError: No module named 'torch'",
        ),
        ("raise OSError('libcudart.so.12')", "OSError: libcudart.so.12"),
        (CRASHES, "it ended with SIGSEGV"),
        (
            "import os, sys; print('bad image', file=sys.stderr); sys.stderr.flush(); os._exit(3)",
            "it ended with exit code 3: bad image",
        ),
    ],
)
def test_a_torch_that_does_not_start_is_said_and_what_needs_it_is_not(other_torch, text, said):
    other_torch(text)
    found = checked()
    assert (found["python"].status, found["torch"]) == (
        Status.ok,
        Check("torch", Status.failure, said, checkup.TORCH_REMEDY),
    )
    assert not {"gloo", "gpus", "nccl"} & found.keys()
    assert {"slurm", "run directory", "disk", "processors"} <= found.keys()


def test_a_torch_that_hangs_is_not_waited_for(other_torch):
    other_torch("import time; time.sleep(100)")
    began = time.monotonic()
    found = checked(torch_limit_s=6.0)
    assert found["python"].status is Status.ok
    assert (found["torch"].status, found["torch"].finding) == (
        Status.failure,
        "no answer within 6 s",
    )
    assert time.monotonic() - began < 90


def test_a_torch_that_is_too_old_is_said(other_torch):
    other_torch(
        "import types; __version__ = '2.9.1+cu128'; version = types.SimpleNamespace(cuda='12.8')"
    )
    assert checked()["torch"] == Check(
        "torch", Status.failure, "2.9.1+cu128 is too old", checkup.TORCH_REMEDY
    )


def test_processes_that_cannot_reach_each_other_are_a_failure_where_the_run_needs_them(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere")
    found = checked()["gloo"]
    assert (found.status, "nowhere" in found.finding) == (Status.failure, True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "101,102")
    assert checked("trainer.accelerator=gpu")["gloo"].status is Status.warning


@pytest.mark.parametrize(
    ("variable", "accelerator", "status", "said"),
    [
        ("", "auto", Status.ok, "CUDA_VISIBLE_DEVICES is empty: runs compute on the CPU"),
        ("", "gpu", Status.failure, "this run needs 2 GPUs (2 nodes of 1), and this machine has 0"),
        (
            "101",
            "gpu",
            Status.failure,
            "this run needs 2 GPUs (2 nodes of 1), and this machine has 1",
        ),
        (
            "101,102",
            "gpu",
            Status.failure,
            "torch can use 0 of the 2 GPUs of CUDA_VISIBLE_DEVICES=101,102",
        ),
        (
            "101,102",
            "auto",
            Status.warning,
            "torch can use 0 of the 2 GPUs of CUDA_VISIBLE_DEVICES=101,102",
        ),
        ("101,102", "cpu", Status.not_needed, "trainer.accelerator=cpu"),
    ],
)
def test_gpus_are_counted_against_the_largest_stage(
    monkeypatch, variable, accelerator, status, said
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    found = checked(f"trainer.accelerator={accelerator}")
    assert (found["gpus"].status, found["gpus"].finding.startswith(said)) == (status, True), found[
        "gpus"
    ]
    assert found["nccl"].status is Status.not_needed


H100 = {"name": "NVIDIA H100", "memory_bytes": 85_000_000_000}


@pytest.mark.parametrize(
    ("visible", "usable", "words", "status", "said"),
    [
        (
            "0,1",
            2,
            ["trainer.accelerator=gpu"],
            Status.ok,
            "2 x NVIDIA H100 (85.0 GB); the largest stage takes 2",
        ),
        (
            "0,1,2",
            3,
            ["trainer.accelerator=auto"],
            Status.ok,
            "3 x NVIDIA H100 (85.0 GB); the largest stage takes 2",
        ),
        (
            "0",
            1,
            ["trainer.accelerator=auto"],
            Status.warning,
            "1 x NVIDIA H100 (85.0 GB); the largest stage has 2 processes, so",
        ),
        (
            "0,1",
            0,
            ["trainer.accelerator=gpu"],
            Status.failure,
            "torch can use 0 of the 2 GPUs of CUDA_VISIBLE_DEVICES=0,1: old driver",
        ),
        (
            "0,1,2",
            2,
            ["trainer.accelerator=gpu"],
            Status.warning,
            "torch can use 2 of the 3 GPUs of CUDA_VISIBLE_DEVICES=0,1,2",
        ),
    ],
)
def test_what_torch_says_of_gpus_is_held_against_the_run(
    monkeypatch, visible, usable, words, status, said
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    check, _ = checkup.TORCH_CHECKS["gpus"]
    found = check(
        {"cuda": "13.0", "gpus": [H100] * usable, "cuda_error": None if usable else "old driver"},
        run_of(*words),
    )
    assert (found.status, found.finding.startswith(said)) == (status, True), found


@pytest.mark.parametrize(
    ("error", "accelerator", "status", "said"),
    [
        (None, "gpu", Status.ok, "2 GPUs added up a tensor"),
        ("unhandled system error", "gpu", Status.failure, "unhandled system error"),
        ("unhandled system error", "cpu", Status.not_needed, "no GPUs"),
    ],
)
def test_what_nccl_says_matters_to_a_run_on_gpus(error, accelerator, status, said):
    check, _ = checkup.TORCH_CHECKS["nccl"]
    found = check(
        {"nccl": {"processes": 2, "error": error}}, run_of(f"trainer.accelerator={accelerator}")
    )
    assert (found.status, found.finding) == (status, said)


@pytest.mark.parametrize("run_dir", ["file/run", "file", "link", "link/run"])
def test_a_run_directory_that_cannot_be_made_is_said_with_what_is_in_the_way(
    quickly_checked, folder, run_dir
):
    (folder / "file").touch()
    (folder / "link").symlink_to("nowhere")
    found = quickly_checked(f"run_dir={run_dir}")
    blocks = folder / run_dir.split("/")[0]
    assert found["run directory"] == Check(
        "run directory", Status.failure, f"{blocks} is no folder", checkup.PLACE_REMEDY
    )
    assert not {"locks", "disk", "clock"} & found.keys()


def test_a_folder_that_takes_no_files_is_said_with_the_reason(quickly_checked):
    found = quickly_checked("run_dir=/proc/nowhere")["run directory"]
    assert (found.status, found.finding.startswith("cannot write in /proc: ")) == (
        Status.failure,
        True,
    )


def test_a_file_that_does_not_fit_leaves_nothing_behind(quickly_checked, folder):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        found = quickly_checked()["run directory"]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert found.finding == f"cannot write in {folder}: File too large"
    assert list(folder.iterdir()) == []


def test_a_run_directory_that_is_there_is_looked_at_itself_and_left_as_it_was(
    quickly_checked, folder
):
    (folder / "runs" / "llama3_tiny").mkdir(parents=True)
    assert quickly_checked()["run directory"] == Check(
        "run directory", Status.ok, "runs/llama3_tiny, can be written"
    )
    assert list((folder / "runs" / "llama3_tiny").iterdir()) == []


def test_checkpoints_that_do_not_fit_are_said_and_as_many_as_are_offered_fit(quickly_checked):
    found = quickly_checked("checkpoint.keep_last=1_000_000_000")["disk"]
    assert found.status is Status.failure
    offered = int(re.search(r"checkpoint\.keep_last=(\d+)$", found.remedy)[1])
    assert quickly_checked(f"checkpoint.keep_last={offered // 2}")["disk"].status is Status.ok
    assert quickly_checked(f"checkpoint.keep_last={offered * 2}")["disk"].status is Status.failure


@pytest.mark.parametrize(
    ("there", "said"),
    [(0, "3 more checkpoints"), (1, "2 more checkpoints"), (2, "one more"), (5, "one more")],
)
def test_checkpoints_that_are_there_need_no_room_again(quickly_checked, there, said):
    run = RunDirectory(Path("runs/llama3_tiny"))
    for step in range(there):
        run.checkpoint_folder(step).mkdir(parents=True)
        (run.checkpoint_folder(step) / MANIFEST).write_text(
            json.dumps(manifest(step=step, consumed_samples=step))
        )
    assert f"; {said}" in quickly_checked("checkpoint.keep_last=2")["disk"].finding


@pytest.mark.parametrize(("limit", "processes", "needed"), [(512, 2, 1024), (1100, 128, 1280)])
def test_open_files_are_counted_against_the_processes_of_the_run(
    quickly_checked, limit, processes, needed
):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        found = quickly_checked(recipe={2: "llama3_tiny", 128: "gpt3_5b"}[processes])["open files"]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (found.status, f"may take {needed:,}" in found.finding) == (Status.warning, True)
    assert (
        str(needed if hard == resource.RLIM_INFINITY or hard >= needed else f"{hard:,}")
        in found.remedy
    )


def test_processors_are_counted_against_the_largest_stage(quickly_checked):
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        two, one = (
            quickly_checked()["processors"],
            quickly_checked("trainer.num_nodes=1")["processors"],
        )
    finally:
        os.sched_setaffinity(0, before)
    assert (two.status, two.finding) == (Status.warning, "1, for up to 2 processes that take turns")
    assert one.status is Status.ok


def test_without_slurm_only_a_run_on_slurm_fails(quickly_checked, programs):
    programs()
    found = quickly_checked("launch=slurm")["slurm"]
    assert (found.status, found.finding) == (
        Status.failure,
        f"there is no {', '.join(checkup.SLURM_COMMANDS)}",
    )
    assert quickly_checked()["slurm"] == Check("slurm", Status.not_needed, "launch.launcher=local")
    assert next(check for check in check_up() if check.name == "slurm").status is Status.not_needed


@pytest.mark.parametrize(
    ("partition", "status", "said"),
    [
        ("null", Status.ok, "the controller answers; partitions: cpu, gpu"),
        ("gpu", Status.ok, "the controller answers; partitions: cpu, gpu"),
        ("'cpu,gpu'", Status.ok, "the controller answers; partitions: cpu, gpu"),
        ("gpus", Status.failure, "there is no partition gpus"),
        ("'cpu,gpus'", Status.failure, "there is no partition gpus"),
    ],
)
def test_the_partition_is_one_of_the_cluster(quickly_checked, slurm, partition, status, said):
    slurm("echo gpu; echo cpu; echo gpu")
    found = quickly_checked("launch=slurm", f"launch.slurm.partition={partition}")["slurm"]
    assert (found.status, found.finding) == (status, said)


def test_what_the_controller_says_is_told(quickly_checked, slurm):
    slurm("echo first >&2; echo 'sinfo: error: Unable to contact slurm controller' >&2; exit 1")
    assert (
        quickly_checked("launch=slurm")["slurm"].finding
        == "sinfo: error: Unable to contact slurm controller"
    )


def test_a_controller_that_does_not_answer_is_not_waited_for(quickly_checked, slurm, monkeypatch):
    monkeypatch.setattr(checkup, "SLURM_LIMIT_S", 0.5)
    slurm("exec /bin/sleep 100")
    found = quickly_checked("launch=slurm")["slurm"]
    assert (found.status, found.finding) == (
        Status.failure,
        "the controller does not answer within 0.5 s",
    )


def test_an_interpreter_of_the_jobs_is_the_one_that_is_tried(quickly_checked):
    found = quickly_checked("launch=slurm", "launch.slurm.python=/nowhere/python")["python"]
    assert (found.status, found.finding.startswith("/nowhere/python does not start: ")) == (
        Status.failure,
        True,
    )


def test_what_the_jobs_have_is_not_looked_for_where_they_are_submitted():
    found = checked("launch=slurm", f"launch.slurm.python={sys.executable}")
    assert {found[name].status for name in ELSEWHERE} == {Status.not_needed}
    assert {found[name].status for name in ("python", "torch", "gloo")} == {Status.ok}


def test_a_container_brings_its_own_torch(other_torch):
    other_torch(CRASHES)
    found = checked("launch=slurm", "launch.slurm.container=[apptainer,exec,image.sif]")
    assert found["torch"] == Check(
        "torch", Status.not_needed, "the workers run in a container: apptainer"
    )
    assert not {"python", "gloo", "gpus"} & found.keys()


@pytest.mark.parametrize(
    ("ahead_s", "now_s", "said"),
    [
        (0.0, 200_000.0, "it says 1970-01-"),
        (2.5, None, "the run directory's is 2 s ahead"),
        (-90.0, None, "the run directory's is 90 s behind"),
        (1.5, None, None),
        (-1.5, None, None),
    ],
)
def test_a_clock_that_others_do_not_share_is_a_warning(ahead_s, now_s, said):
    found = check_clock(ahead_s, now_s=time.time() if now_s is None else now_s)
    assert found.status is (Status.ok if said is None else Status.warning)
    assert found.finding.startswith(said or "at most 2 s")
