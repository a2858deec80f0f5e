from rampcli.launch.doctor.check import Status
from rampcli.launch.doctor.machine import check_machine

CRASHES = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
ELSEWHERE = ("gpus", "nccl", "processors", "shared memory")


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
