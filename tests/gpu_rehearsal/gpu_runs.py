"""Runs on pretended GPUs, each beside the same run on the CPU."""

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from uuid import uuid4

import pytest
from safetensors.torch import load_file

from gpu_rehearsal import build
from rampcli.config import snapshot
from rampcli.launch.workers import worker_program
from rampcli.runs.manifest import complete_checkpoints
from ranks import run_program, run_ranks
from tiny_runs import Run

PRELOAD = Path(__file__).with_name("preload")
GPUS = 8
"""GPUs that this machine pretends to have."""
MEMORY_BYTES = 2**28
"""Memory of each."""
CLOSE = {"fp32": 1e-6, "bf16": 1e-3}
"""By precision: how much the losses of a GPU may differ from those of the CPU."""


library = cache(build.library)


def gpu_environment(gpus: int = GPUS) -> dict[str, str]:
    """Returns the environment of a process that sees pretended GPUs, as its children do."""
    return os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(PRELOAD),
        # Names of their own: runs of one user do not share GPUs.
        "CUDA_VISIBLE_DEVICES": ",".join(f"GPU-{uuid4()}" for _ in range(gpus)),
        "PRETENDED_CUDA_LIBRARY": str(library()),
        "PRETENDED_CUDA_BYTES": str(MEMORY_BYTES),
    }


def run_on_its_gpu(program: str, run_dir: str) -> None:
    """Runs the program of a rank, which uses the GPU of its number if it uses one."""
    os.environ["LOCAL_RANK"] = os.environ["RANK"]
    run_program(program, run_dir)


def recorded_on_its_gpu(program: str, run_dir: str) -> list[tuple[str, str]]:
    """Trains as `run_on_its_gpu`, and returns what `pretended_cuda.recorded` has seen."""
    from pretended_cuda import recorded  # a module of processes that have GPUs

    with recorded() as rows:
        run_on_its_gpu(program, run_dir)
    return rows


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
        assert row.get("z_loss", 0) == pytest.approx(expected.get("z_loss", 0), rel=10 * within)
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
