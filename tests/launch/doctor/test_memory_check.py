import pytest

from rampcli.launch.doctor.check import Status
from rampcli.launch.doctor.torch_checks import check_memory

GPUS = [{"name": "large", "memory_bytes": 150e9}, {"name": "small", "memory_bytes": 24e9}]
SLURM = ("launch=slurm", "launch.slurm.partition=gpu")


@pytest.mark.parametrize(
    ("words", "gpus", "status", "finding"),
    [
        ((), [], Status.ok, "stage 0 needs 61GB of 80GB per GPU (estimate)"),
        ((), GPUS[:1], Status.ok, "stage 0 needs 61GB of 140GB per GPU (estimate)"),
        ((), GPUS, Status.warning, "stage 0 needs 61GB of 22GB per GPU (estimate)"),
        (
            (*SLURM, "trainer.device_memory_gb=64"),
            GPUS,
            Status.warning,
            "stage 0 needs 61GB of 64GB per GPU (estimate)",
        ),
    ],
    ids=str,
)
def test_the_estimate_is_compared_with_the_smallest_gpu_here_or_the_setting(
    run_of, words, gpus, status, finding
):
    found = check_memory(run_of(*words, recipe="llama3_8b"), {"gpus": gpus})
    assert (found.name, found.status, found.finding) == ("memory", status, finding)


def test_without_a_known_memory_the_estimate_is_shown_alone(run_of, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = check_memory(run_of(), {"gpus": []})
    assert (found.status, found.finding.endswith("MB per process (estimate)")) == (
        Status.not_needed,
        True,
    )


def test_the_gpus_of_this_machine_do_not_matter_to_a_run_on_the_cpu(run_of):
    words = ("trainer.accelerator=cpu", "trainer.device_memory_gb=1")
    found = check_memory(run_of(*words), {"gpus": GPUS})
    assert found.finding.endswith(" of 1.0GB per process (estimate)")
