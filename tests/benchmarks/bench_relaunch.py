"""What a boundary between two stages costs: real ramps of `llama3_tiny` in two processes of this machine, and what a worker imports.

    python tests/benchmarks/bench_relaunch.py [--rounds 3] [--checkouts FOLDER ...]

Each round trains a ramp of three boundaries with new processes, and then the same ramp with `rampup.at_boundary=continue`. Of the first
it prints the parts of every boundary, as the event `boundary` has them; of the second, the step after each boundary against the median
step of its batch size. Then the medians. With several checkouts of the project, each round goes through all of them, one after the other.
Last, what `python -X importtime` says of a worker: the seconds that imports took, and the largest packages in them. The processor time
that the whole command took is printed with each ramp.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from rampcli.run_directory import read_rows

PARTS = ("lost_s", "save_s", "exit_s", "wait_s", "start_s", "import_s", "load_s", "first_step_s")
RAMP = [
    *(
        "trainer.num_nodes=1",
        "trainer.devices=2",
        "trainer.accelerator=cpu",
        "trainer.val_samples=0",
        "trainer.max_samples=800",
    ),
    *(
        "rampup.node_policy=fixed",
        "data.micro_batch_size=2",
        "model.global_batch_size=16",
        "model.rampup_batch_size=[4,4,600]",
    ),
]

ALONE = [
    *(
        "trainer.num_nodes=1",
        "trainer.devices=1",
        "trainer.accelerator=cpu",
        "trainer.max_samples=4",
    ),
    *(
        "data.micro_batch_size=4",
        "model.rampup_batch_size=null",
        "model.global_batch_size=4",
        "optim.warmup_samples=0",
    ),
]


def train(checkout: Path, run_dir: Path, *words: str) -> float:
    """Train the ramp; seconds of processor time, of all its processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [
        sys.executable,
        "-m",
        "rampcli",
        "pretrain",
        "--factory",
        "llama3_tiny",
        *RAMP,
        f"run_dir={run_dir}",
        *words,
    ]
    subprocess.run(command, cwd=checkout, env=environment(), stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def environment() -> dict[str, str]:
    """One thread for each process. Modules come from the folder where a process is started."""
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def boundaries(run_dir: Path) -> list[dict]:
    """The events of that name."""
    return [row for row in read_rows(run_dir / "events.jsonl") if row["event"] == "boundary"]


def steps_after_boundaries(run_dir: Path) -> list[tuple[float, float]]:
    """The seconds between the end of the last step before each boundary and the end of the first one after it; the median of its stage.

    Within a process, what lies between two steps is in neither's `step_time_s`; here it is nothing but a checkpoint, which is not made.
    """
    by_stage = defaultdict(list)
    for row in read_rows(run_dir / "metrics.jsonl"):
        by_stage[row["stage"]].append(row["step_time_s"])
    return [
        (times[0], statistics.median(times[1:]))
        for stage, times in sorted(by_stage.items())
        if stage > 0
    ]


def imports_of_worker(checkout: Path, folder: Path) -> tuple[float, list[tuple[str, float]]]:
    """Seconds that imports take in a worker that takes a step, as -X importtime measures them, and the largest packages' own."""
    run_dir = folder / "imports"
    run_dir.mkdir(exist_ok=True)
    words = [*ALONE, f"run_dir={run_dir}"]
    command = [
        sys.executable,
        "-m",
        "rampcli",
        "pretrain",
        "--factory",
        "llama3_tiny",
        *words,
        "--cfg",
    ]
    done = subprocess.run(
        command, cwd=checkout, env=environment(), capture_output=True, text=True, check=True
    )
    (run_dir / "config.yaml").write_text(done.stdout, encoding="utf-8")
    worker = [sys.executable, "-X", "importtime", "-m", "rampcli.worker", str(run_dir)]
    said = subprocess.run(
        worker, cwd=checkout, env=environment(), capture_output=True, text=True, check=True
    ).stderr
    seconds: dict[str, float] = defaultdict(float)
    for line in said.splitlines():
        if line.startswith("import time:") and "self" not in line:
            own, _, name = line.removeprefix("import time:").split("|")
            parts = name.strip().split(".")
            seconds[".".join(parts[:2]) if parts[0] in ("torch", "rampcli") else parts[0]] += (
                int(own) / 1e6
            )
    return sum(seconds.values()), sorted(seconds.items(), key=lambda item: -item[1])


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--checkouts", type=Path, nargs="+", default=[Path(__file__).resolve().parents[2]]
    )
    arguments = parser.parse_args()
    parts: dict[Path, list[dict]] = defaultdict(list)
    after: dict[Path, list[float]] = defaultdict(list)
    print(" ".join(f"{name:>12}" for name in ("step", *PARTS)))
    for number in range(arguments.rounds):
        for checkout in arguments.checkouts:
            with tempfile.TemporaryDirectory() as folder:
                began = time.monotonic()
                processor_s = train(checkout, Path(folder) / "stop")
                print(
                    f"round {number}, {checkout}: {time.monotonic() - began:.1f} s, processor time {processor_s:.1f} s"
                )
                for row in boundaries(Path(folder) / "stop"):
                    print(" ".join(f"{row[name]:12}" for name in ("step", *PARTS)))
                    parts[checkout].append(row)
                train(checkout, Path(folder) / "continue", "rampup.at_boundary=continue")
                for first, median in steps_after_boundaries(Path(folder) / "continue"):
                    print(
                        f"continue: the step after the boundary took {first:.3f} s, the median step of its stage {median:.3f} s"
                    )
                    after[checkout].append(first / median)
    print(
        "\nmedians",
        *(f"{name:>12}" for name in PARTS),
        "largest lost_s",
        "continue, of a median step",
    )
    for checkout in arguments.checkouts:
        medians = [statistics.median(row[name] for row in parts[checkout]) for name in PARTS]
        largest = max(row["lost_s"] for row in parts[checkout])
        print(
            checkout,
            *(f"{value:12.3f}" for value in medians),
            f"{largest:14.3f}",
            f"{statistics.median(after[checkout]):.2f}",
        )
    for checkout in arguments.checkouts:
        with tempfile.TemporaryDirectory() as folder:
            total, largest_packages = imports_of_worker(checkout, Path(folder))
        print(f"\n{checkout}: imports of a worker took {total:.2f} s; the packages' own seconds")
        print("  " + "  ".join(f"{name} {seconds:.2f}" for name, seconds in largest_packages[:16]))


if __name__ == "__main__":
    main()
