import time
import tomllib
from pathlib import Path

import pytest

from rampcli.launch.doctor import torch_checks
from rampcli.launch.doctor.check import Check, Status
from rampcli.launch.doctor.torch_checks import (
    LEAST_PYTHON,
    LEAST_TORCH,
    TORCH_CHECKS,
    check_memory,
)

CRASHES = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
GPUS = [{"name": "large", "memory_bytes": 150e9}, {"name": "small", "memory_bytes": 24e9}]
SLURM = ("launch=slurm", "launch.slurm.partition=gpu")
H100 = {"name": "NVIDIA H100", "memory_bytes": 85_000_000_000}


def test_the_least_versions_are_those_that_the_package_requires():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=" + ".".join(map(str, LEAST_PYTHON))
    assert "torch>=" + ".".join(map(str, LEAST_TORCH)) in project["dependencies"]


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("raise OSError('libcudart.so.12')", "OSError: libcudart.so.12"),
        (CRASHES, "killed by SIGSEGV"),
        (
            "import os, sys; print('bad image', file=sys.stderr); sys.stderr.flush(); os._exit(3)",
            "exit code 3: bad image",
        ),
    ],
)
def test_a_torch_that_does_not_start_fails_and_hides_the_checks_that_need_it(
    other_torch, checked, text, finding
):
    other_torch(text)
    found = checked()
    assert found["python"].status is Status.ok
    assert found["torch"] == Check("torch", Status.failure, finding, torch_checks.TORCH_REMEDY)
    assert not {"gloo", "gpus", "nccl"} & found.keys()
    assert {"slurm", "run directory", "disk", "processors"} <= found.keys()


def test_a_torch_that_hangs_is_given_up(other_torch, checked):
    other_torch("import time; time.sleep(1000)")
    began = time.monotonic()
    found = checked(torch_timeout_s=6.0)
    assert found["python"].status is Status.ok
    assert (found["torch"].status, found["torch"].finding) == (
        Status.failure,
        "no answer within 6 s",
    )
    assert time.monotonic() - began < 500


def test_a_torch_that_is_too_old_fails(other_torch, checked):
    other_torch(
        "import types; __version__ = '2.9.1+cu128'; version = types.SimpleNamespace(cuda='12.8')"
    )
    assert checked()["torch"] == Check(
        "torch", Status.failure, "2.9.1+cu128 is too old", torch_checks.TORCH_REMEDY
    )


def test_processes_that_cannot_communicate_fail_if_the_run_needs_them(checked, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere")
    found = checked()["gloo"]
    assert (found.status, "nowhere" in found.finding) == (Status.failure, True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "101,102")
    found = checked("trainer.accelerator=gpu")
    unusable = "torch can use 0 of the 2 GPUs in CUDA_VISIBLE_DEVICES=101,102"
    assert found["gloo"].status is Status.warning
    assert (found["gpus"].status, found["nccl"].status) == (Status.failure, Status.not_needed)
    assert found["gpus"].finding.startswith(unusable)


@pytest.mark.parametrize(
    ("visible", "usable", "accelerator", "status", "finding"),
    [
        ("0,1", 2, "gpu", Status.ok, "2 x NVIDIA H100 (79GiB); the largest stage uses 2"),
        ("0,1,2", 3, "auto", Status.ok, "3 x NVIDIA H100 (79GiB); the largest stage uses 2"),
        (
            "0",
            1,
            "auto",
            Status.warning,
            "1 x NVIDIA H100 (79GiB); the largest stage has 2 processes, so",
        ),
        (
            "0,1",
            0,
            "gpu",
            Status.failure,
            "torch can use 0 of the 2 GPUs in CUDA_VISIBLE_DEVICES=0,1: old driver",
        ),
        (
            "0,1,2",
            2,
            "gpu",
            Status.warning,
            "torch can use 2 of the 3 GPUs in CUDA_VISIBLE_DEVICES=0,1,2",
        ),
        (
            "",
            0,
            "gpu",
            Status.failure,
            "this run needs 2 GPUs (2 nodes of 1), and this machine has 0",
        ),
        (
            "101,102",
            0,
            "auto",
            Status.warning,
            "torch can use 0 of the 2 GPUs in CUDA_VISIBLE_DEVICES=101,102",
        ),
        ("101,102", 0, "cpu", Status.not_needed, "trainer.accelerator=cpu"),
        ("", 0, "auto", Status.ok, "CUDA_VISIBLE_DEVICES is empty: runs compute on the CPU"),
        ("-1", 0, "auto", Status.ok, "CUDA_VISIBLE_DEVICES=-1 hides them: runs compute on the CPU"),
    ],
)
def test_gpus_that_torch_can_use_are_compared_with_the_run(
    run_of, monkeypatch, visible, usable, accelerator, status, finding
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    check, _ = TORCH_CHECKS["gpus"]
    found = check(
        {"cuda": "13.0", "gpus": [H100] * usable, "cuda_error": None if usable else "old driver"},
        run_of(f"trainer.accelerator={accelerator}"),
    )
    assert found.status is status
    assert found.finding.startswith(finding), found


@pytest.mark.parametrize(
    ("error", "accelerator", "status", "finding"),
    [
        (None, "gpu", Status.ok, "all-reduce over 2 GPUs works"),
        ("unhandled system error", "gpu", Status.failure, "unhandled system error"),
        ("unhandled system error", "cpu", Status.not_needed, "no GPUs"),
    ],
)
def test_nccl_matters_to_a_run_on_gpus(run_of, error, accelerator, status, finding):
    check, _ = TORCH_CHECKS["nccl"]
    found = check(
        {"nccl": {"processes": 2, "error": error}}, run_of(f"trainer.accelerator={accelerator}")
    )
    assert (found.status, found.finding) == (status, finding)


def test_the_interpreter_of_the_jobs_is_the_one_that_is_tried(checked):
    found = checked("launch=slurm", "launch.slurm.python=/nowhere/python")["python"]
    assert found.status is Status.failure
    assert found.finding.startswith("/nowhere/python does not start: ")


def test_a_container_brings_its_own_torch(other_torch, checked):
    other_torch(CRASHES)
    found = checked("launch=slurm", "launch.slurm.container=[apptainer,exec,image.sif]")
    assert (found["torch"].status, found["torch"].remedy) == (Status.not_needed, None)
    assert "container" in found["torch"].finding
    assert not {"python", "gloo", "gpus"} & found.keys()


@pytest.mark.parametrize(
    ("words", "gpus", "status", "finding"),
    [
        ((), [], Status.ok, "stage 0 needs 60GiB of 80GiB per GPU (estimate)"),
        ((), GPUS[:1], Status.ok, "stage 0 needs 60GiB of 140GiB per GPU (estimate)"),
        ((), GPUS, Status.warning, "stage 0 needs 60GiB of 22GiB per GPU (estimate)"),
        (
            (*SLURM, "trainer.device_memory_gb=64", "trainer.accumulate_reduce=last"),
            GPUS,
            Status.warning,
            "stage 0 needs 60GiB of 64GiB per GPU (estimate)",
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
    assert (found.status, found.finding.endswith("MiB per process (estimate)")) == (
        Status.not_needed,
        True,
    )


def test_the_gpus_of_this_machine_do_not_matter_to_a_run_on_the_cpu(run_of):
    words = ("trainer.accelerator=cpu", "trainer.device_memory_gb=1")
    found = check_memory(run_of(*words), {"gpus": GPUS})
    assert found.finding.endswith(" of 1.0GiB per process (estimate)")
