"""Runs commands on pretended CUDA devices, see `device.cpp` and `preload/pretended_cuda.py`."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from uuid import uuid4

from gpu_rehearsal import build
from rampcli.runs.directory import RunDirectory
from rampcli.runs.rows import read_rows

PRELOAD = Path(__file__).with_name("preload")
library = cache(build.library)
# Four steps of a tiny model, with validation.
SMALL = (
    *("data=mock", "data.sequence_length=32", "data.micro_batch_size=2"),
    *("model.num_layers=2", "model.hidden_size=32", "model.ffn_hidden_size=64"),
    *("model.vocab_size=64", "model.global_batch_size=8", "model.rampup_batch_size=null"),
    *("trainer.max_samples=32", "optim.warmup_samples=8", "trainer.devices=1"),
    *("trainer.val_samples=4", "trainer.val_every_steps=2"),
)


def on_devices(
    devices: int = 2,
    *,
    late: bool = False,
    device_bytes: int | None = None,
    record: Path | None = None,
) -> dict[str, str]:
    """Returns the environment of a process that sees pretended devices, as its children do.

    Args:
        devices: their number.
        late: work that nobody waits for does not take effect.
        device_bytes: memory of each device. If None, nothing runs out.
        record: folder for what the host does to the devices, see `recorded`.
    """
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(PRELOAD),
        # Names of its own: runs of one user do not share devices.
        "CUDA_VISIBLE_DEVICES": ",".join(f"GPU-{uuid4()}" for _ in range(devices)),
        "PRETENDED_CUDA_LIBRARY": str(library()),
    }
    if late:
        environment["PRETENDED_CUDA_LATE"] = "1"
    if device_bytes is not None:
        environment["PRETENDED_CUDA_BYTES"] = str(device_bytes)
    if record is not None:
        record.mkdir(exist_ok=True)
        environment["PRETENDED_CUDA_RECORD"] = str(record)
    return environment


def rampcli(
    words: Sequence[str], environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end. Without `environment`, it sees no devices.

    Raises:
        AssertionError: the command failed.
    """
    done = subprocess.run(
        [sys.executable, "-P", "-m", "rampcli", *words],
        env=environment or os.environ | {"OMP_NUM_THREADS": "1"},
        text=True,
        capture_output=True,
        check=False,
    )
    assert not done.returncode, done.stdout + done.stderr
    return done


def pretrain(
    run_dir: Path, *words: str, environment: dict[str, str] | None = None
) -> list[tuple[str, str]]:
    """Trains llama3_tiny and returns the `printed` figures of its steps.

    The settings are those of `SMALL`, except where `words` set others.

    It trains on devices if the environment has them, else on the CPU.
    """
    accelerator = "cpu" if environment is None else "gpu"
    given = {word.partition("=")[0] for word in words}
    small = [word for word in SMALL if word.partition("=")[0] not in given]
    rampcli(
        [
            *("pretrain", "--factory", "llama3_tiny", *small, f"run_dir={run_dir}"),
            *(f"trainer.accelerator={accelerator}", *words),
        ],
        environment,
    )
    return printed(run_dir)


def printed(run_dir: Path) -> list[tuple[str, str]]:
    """Returns the loss and gradient norm of each step of a run, with six digits."""
    return [
        (f"{row['loss']:.6g}", f"{row['grad_norm']:.6g}")
        for row in read_rows(RunDirectory(run_dir).metrics)
    ]


def recorded(folder: Path) -> list[dict]:
    """Returns what the hosts did to the devices, see `recorded_by_process`."""
    return [row for rows in recorded_by_process(folder) for row in rows]


def recorded_by_process(folder: Path) -> list[list[dict]]:
    """Returns what the host did to the devices, in order, for each process.

    Each has `kind`, `bytes`, `waits` (whether the host waits for the device) and `place`, the
    innermost line of rampcli. Kinds are the copies `pinned to device`, `strided to device`,
    `pageable to device` and the like `to host`; `item`; names of operators whose result has a size
    that the host needs, such as `nonzero`; `stream.synchronize`, `event.synchronize` and
    `device.synchronize`.
    """
    return [
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted(folder.glob("*.jsonl"))
    ]
