import pytest

from rampcli.launch.doctor.check import Check, Status
from rampcli.launch.slurm import launcher
from rampcli.launch.slurm.launcher import check_slurm


@pytest.fixture
def check(planned):
    """Checks Slurm for a run of it with some words."""
    return lambda *words: check_slurm(planned("llama3_tiny", "launch=slurm", *words))


@pytest.fixture
def slurm(programs):
    """Makes Slurm's client programs; only sinfo is run."""
    others = dict.fromkeys(launcher.PROGRAMS, "exit 1")
    return lambda sinfo: programs("", **others | {"sinfo": sinfo})


def test_without_slurm_only_a_run_on_slurm_fails(programs, check, planned):
    programs("")
    found = check()
    assert found.status is Status.failure
    assert found.finding == f"not on PATH: {', '.join(launcher.PROGRAMS)}"
    assert check_slurm(planned("llama3_tiny")) == Check(
        "slurm", Status.not_needed, "launch.launcher=local"
    )
    assert check_slurm(None).status is Status.not_needed


@pytest.mark.parametrize(
    ("partition", "status", "finding"),
    [
        ("null", Status.ok, "the controller answers; partitions: cpu, gpu"),
        ("gpu", Status.ok, "the controller answers; partitions: cpu, gpu"),
        ("'cpu,gpu'", Status.ok, "the controller answers; partitions: cpu, gpu"),
        ("gpus", Status.failure, "unknown partition gpus"),
        ("'cpu,gpus'", Status.failure, "unknown partition gpus"),
    ],
)
def test_the_partition_is_one_of_the_cluster(slurm, check, partition, status, finding):
    slurm("echo gpu; echo cpu; echo gpu")
    found = check(f"launch.slurm.partition={partition}")
    assert (found.status, found.finding) == (status, finding)


@pytest.mark.parametrize(
    ("last", "finding"),
    [
        ("error: Unable to contact slurm controller", "first; Unable to contact slurm controller"),
        ("fatal: Could not establish a source", "fatal: Could not establish a source"),
    ],
)
def test_an_error_of_slurm_is_the_finding_and_a_fatal_one_needs_no_others(
    slurm, check, last, finding
):
    slurm(f"echo 'sinfo: error: first' >&2; echo 'sinfo: {last}' >&2; exit 1")
    assert check().finding == f"sinfo: {finding}"


def test_a_controller_that_does_not_answer_is_given_up(slurm, check, monkeypatch):
    monkeypatch.setattr(launcher, "CONTROLLER_TIMEOUT_S", 0.5)
    slurm("exec /bin/sleep 100")
    found = check()
    assert found.status is Status.failure
    assert found.finding == "sinfo did not answer within 0.5 s"
