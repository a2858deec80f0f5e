"""Runs on pretended GPUs, each beside the same run on the CPU."""

import os
from collections.abc import Sequence

import pytest
from safetensors.torch import load_file

from gpu_rehearsal.rehearsal import on_devices
from rampcli.config import snapshot
from rampcli.launch.workers import worker_program
from rampcli.runs.manifest import complete_checkpoints
from ranks import run_program, run_ranks
from tiny_runs import Run

GPUS = 8
"""GPUs that this machine pretends to have."""
MEMORY_BYTES = 2**28
"""Memory of each."""
CLOSE = {"fp32": 1e-6, "bf16": 1e-3}
"""By precision: how much the losses of a GPU may differ from those of the CPU."""


def gpu_environment() -> dict[str, str]:
    """Returns the environment of commands on GPUs, where work that nobody waits for is late."""
    return on_devices(GPUS, late=True, device_bytes=MEMORY_BYTES)


def run_on_its_gpu(program: str, run_dir: str) -> None:
    """Runs the program of a rank, which uses the GPU of its number if it uses one."""
    os.environ["LOCAL_RANK"] = os.environ["RANK"]
    run_program(program, run_dir)


def on_both(gpu: Run, cpu: Run, processes: int, *words: str) -> None:
    """Trains two runs to the end on the same number of ranks: one on GPUs, one on the CPU."""
    for run, accelerator in ((cpu, "cpu"), (gpu, "gpu")):
        ranks = ("trainer.num_nodes=1", f"trainer.devices={processes}")
        run.describe(*ranks, *words, f"trainer.accelerator={accelerator}")
        program = worker_program(snapshot.read(run.directory.config))
        run_ranks(processes, run_on_its_gpu, program, str(run.path), logs=run.directory.logs)


def assert_same_numbers(run: Run, reference: Run, *, within: float) -> None:
    """Checks that two runs read the same samples and have the same losses.

    Args:
        within: difference that losses may have. The norms of gradients may differ ten times as
            much, as a share of their size.
    """
    assert devices_of(run) == {"cuda"}
    assert devices_of(reference) == {"cpu"}
    for row, expected in zip(run.rows, reference.rows, strict=True):
        assert row["order_hash"] == expected["order_hash"]
        assert row["loss"] == pytest.approx(expected["loss"], abs=within)
        assert row["grad_norm"] == pytest.approx(expected["grad_norm"], rel=10 * within)
    assert run.validations() == pytest.approx(reference.validations(), abs=within)


def assert_same_checkpoints(run: Run, reference: Run, *, within: float) -> None:
    """Checks that two runs of the same mesh have saved the same tensors.

    Args:
        within: difference that numbers may have.
    """
    saved, expected = (complete_checkpoints(each.directory) for each in (run, reference))
    assert [one.path.name for one in saved] == [one.path.name for one in expected] != []
    for one, other in zip(saved, expected, strict=True):
        assert one.damage() is None
        assert one.files.keys() == other.files.keys()
        for name in one.files:
            if name.endswith(".safetensors"):
                tensors, theirs = load_file(one.path / name), load_file(other.path / name)
                assert tensors.keys() == theirs.keys()
                for key, tensor in tensors.items():
                    difference = (tensor - theirs[key]).abs().max().item()
                    assert difference <= within, (one.path.name, key)


def devices_of(run: Run) -> set[str]:
    """Returns the types of the devices on which a run has trained."""
    return {row["device"].partition(":")[0] for row in run.events if row["event"] == "start"}


def as_words(*changes: dict[str, object]) -> Sequence[str]:
    """Returns settings as words of a command line. Later settings replace earlier ones."""
    settings = {key: value for change in changes for key, value in change.items()}
    return [f"{key}={value}" for key, value in settings.items()]
