import os
import re
import resource
import time
from pathlib import Path

import pytest

from rampcli.launch.doctor.check import Check, Status
from rampcli.launch.doctor.machine import (
    FOLDER_REMEDY,
    check_clock,
    check_machine,
    check_open_files,
    check_processors,
    check_run_directory,
)
from rampcli.runs.directory import RunDirectory
from run_files import leave_checkpoint

CRASHES = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
ELSEWHERE = ("gpus", "nccl", "processors", "shared memory")


@pytest.mark.parametrize(("limit", "processes", "needed"), [(512, 2, 1024), (1100, 128, 1280)])
def test_the_limit_on_open_files_is_compared_with_the_processes_of_the_run(
    run_of, limit, processes, needed
):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        found = check_open_files(run_of(recipe={2: "llama3_tiny", 128: "gpt3_5b"}[processes]))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (found.status, f"{needed:,}" in found.finding) == (Status.warning, True)
    assert (
        str(needed if hard == resource.RLIM_INFINITY or hard >= needed else f"{hard:,}")
        in found.remedy
    )


def test_processors_are_compared_with_the_largest_stage(run_of):
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        two, one = check_processors(run_of()), check_processors(run_of("trainer.num_nodes=1"))
    finally:
        os.sched_setaffinity(0, before)
    assert (two.status, two.finding) == (Status.warning, "1, shared by up to 2 processes")
    assert (one.status, one.finding) == (Status.ok, "1, for up to 1 process")


@pytest.fixture
def run_directory_of(run_of):
    """Checks the run directory of a run, and returns the checks by name."""
    return lambda *words: {check.name: check for check in check_run_directory(run_of(*words))}


@pytest.mark.parametrize("run_dir", ["file/run", "file", "link", "link/run"])
def test_a_run_directory_that_cannot_be_created_fails_and_the_obstacle_is_named(
    run_directory_of, tmp_path, run_dir
):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    blocks = tmp_path / run_dir.split("/")[0]
    finding = f"{blocks} is not a folder"
    assert run_directory_of(f"run_dir={run_dir}") == {
        "run directory": Check("run directory", Status.failure, finding, FOLDER_REMEDY)
    }


def test_a_folder_that_is_not_writable_fails_with_the_reason(run_directory_of):
    found = run_directory_of("run_dir=/proc/nowhere")["run directory"]
    assert found.status is Status.failure
    assert found.finding.startswith("cannot write in /proc: ")


def test_a_file_that_does_not_fit_leaves_nothing_behind(run_directory_of, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        found = run_directory_of()["run directory"]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert found.finding == f"cannot write in {tmp_path}: File too large"
    assert list(tmp_path.iterdir()) == []


def test_an_existing_run_directory_is_checked_and_not_changed(run_directory_of, tmp_path):
    (tmp_path / "runs" / "llama3_tiny").mkdir(parents=True)
    assert run_directory_of()["run directory"] == Check(
        "run directory", Status.ok, "runs/llama3_tiny, is writable"
    )
    assert list((tmp_path / "runs" / "llama3_tiny").iterdir()) == []


def test_the_remedy_for_checkpoints_that_do_not_fit_is_a_number_that_fits(run_directory_of):
    found = run_directory_of("checkpoint.keep_last=1_000_000_000")["disk"]
    assert found.status is Status.warning
    offered = int(re.search(r"checkpoint\.keep_last=(\d+)$", found.remedy)[1])
    assert run_directory_of(f"checkpoint.keep_last={offered // 2}")["disk"].status is Status.ok
    assert run_directory_of(f"checkpoint.keep_last={offered * 2}")["disk"].status is Status.warning


def test_a_disk_that_cannot_hold_one_checkpoint_is_a_failure(run_directory_of):
    found = run_directory_of("model.hidden_size=65536", "model.num_layers=1000")["disk"]
    assert (found.status, "checkpoint.keep_last" in found.remedy) == (Status.failure, False)


@pytest.mark.parametrize(
    ("present", "needed"),
    [(0, "3 more checkpoints"), (1, "2 more checkpoints"), (2, "one more"), (5, "one more")],
)
def test_existing_checkpoints_need_no_further_space(run_directory_of, present, needed):
    run = RunDirectory(Path("runs/llama3_tiny"))
    for step in range(present):
        leave_checkpoint(run, step, consumed_samples=step)
    assert f"; {needed}" in run_directory_of("checkpoint.keep_last=2")["disk"].finding


@pytest.mark.parametrize(
    ("ahead_s", "now_s", "finding"),
    [
        (0.0, 200_000.0, "the clock says 1970-01-"),
        (2.5, None, "the run directory's clock is 2 s ahead"),
        (-90.0, None, "the run directory's clock is 90 s behind"),
        (1.5, None, None),
        (-1.5, None, None),
    ],
)
def test_a_clock_that_disagrees_is_a_warning(ahead_s, now_s, finding):
    found = check_clock(ahead_s, now_s=time.time() if now_s is None else now_s)
    assert found.status is (Status.ok if finding is None else Status.warning)
    assert found.finding.startswith(finding or "within 2 s")


def test_a_machine_that_can_train_has_no_failure_and_is_not_changed(tmp_path):
    checks = check_machine()
    assert [check for check in checks if check.status is Status.failure] == []
    assert len({check.name for check in checks}) == len(checks) == 14
    assert list(tmp_path.iterdir()) == []


def test_only_warnings_and_failures_have_a_remedy(other_torch, run_of):
    other_torch(CRASHES)
    checks = [
        *check_machine(run_of("launch=slurm", "run_dir=/proc/nowhere")),
        *check_machine(run_of(recipe="gpt3_5b")),
    ]
    assert {check.status for check in checks} == set(Status) - {Status.not_run}
    for check in checks:
        has_problem = check.status in (Status.warning, Status.failure)
        assert (check.remedy is not None) == has_problem, check


def test_parts_that_differ_on_the_nodes_of_a_job_are_not_checked_at_submission(checked):
    found = checked("launch=slurm")
    assert {found[name].status for name in ELSEWHERE} == {Status.not_needed}
    assert {found[name].status for name in ("python", "torch", "gloo")} == {Status.ok}
