"""Measures the cost of a boundary between two stages, and the imports of a worker.

    python tests/benchmarks/bench_relaunch.py [--rounds 3] [--checkouts FOLDER ...]

Each round trains a ramp of `llama3_tiny` with three boundaries in two processes on this machine,
and then the same ramp with `rampup.at_boundary=continue`. For the first it prints the parts of
every boundary, as the event `boundary` has them; for the second, the step after each boundary and
the median step of its batch size. Medians follow. With several checkouts of the project, each
round goes through all of them in turn. The processor time of the whole command is printed with
each ramp.

At the end it prints what `python -X importtime` reports for a worker: the seconds that imports
took, and the packages that took most of them.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from functools import partial
from pathlib import Path

from harness import one_thread, processor_seconds

from rampcli.runs.rows import read_rows

PARTS = ("lost_s", "save_s", "exit_s", "wait_s", "start_s", "import_s", "load_s", "first_step_s")
PRETRAIN = [sys.executable, "-m", "rampcli", "pretrain", "--factory", "llama3_tiny"]
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
    """Trains the ramp and returns the processor seconds of all its processes."""
    command = [*PRETRAIN, *RAMP, f"run_dir={run_dir}", *words]
    return processor_seconds(command, cwd=checkout, env=one_thread())


def boundaries(run_dir: Path) -> list[dict]:
    """Returns the events `boundary` of a run."""
    return [row for row in read_rows(run_dir / "events.jsonl") if row["event"] == "boundary"]


def steps_after_boundaries(run_dir: Path) -> list[tuple[float, float]]:
    """Returns, for each stage but the first, the seconds of its first step and its median step.

    These runs write no checkpoint between steps, so `step_time_s` leaves nothing out.
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
    """Returns the import seconds of a worker that takes one step, in all and per package.

    The packages are sorted, the slowest first.
    """
    run_dir = folder / "imports"
    run_dir.mkdir(exist_ok=True)
    run = partial(
        subprocess.run, cwd=checkout, env=one_thread(), capture_output=True, text=True, check=True
    )
    settings = run([*PRETRAIN, *ALONE, f"run_dir={run_dir}", "--cfg"]).stdout
    (run_dir / "config.yaml").write_text(settings, encoding="utf-8")
    worker = [sys.executable, "-X", "importtime", "-m", "rampcli.worker", str(run_dir)]
    said = run(worker).stderr
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
    """Prints the tables."""
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
                    f"round {number}, {checkout}: {time.monotonic() - began:.1f} s,"
                    f" processor time {processor_s:.1f} s"
                )
                for row in boundaries(Path(folder) / "stop"):
                    print(" ".join(f"{row[name]:12}" for name in ("step", *PARTS)))
                    parts[checkout].append(row)
                train(checkout, Path(folder) / "continue", "rampup.at_boundary=continue")
                for first, median in steps_after_boundaries(Path(folder) / "continue"):
                    print(
                        f"continue: the step after the boundary took {first:.3f} s,"
                        f" the median step of its stage {median:.3f} s"
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
        print(f"\n{checkout}: imports of a worker took {total:.2f} s; seconds per package")
        print("  " + "  ".join(f"{name} {seconds:.2f}" for name, seconds in largest_packages[:16]))


if __name__ == "__main__":
    main()
