"""Measures the start-up time of commands, next to a bare Typer and Hydra application.

    python tests/benchmarks/bench_start.py [ROUNDS]

Prints, for each command, the median processor seconds of rampcli and of the bare application, and
the median ratio of pairs that ran one after the other. Prints the slowest wrong inputs of
tests/cli/bad_inputs.py and their time, and compares plans of 1e6 and 1e12 samples.
"""

import argparse
import os
import resource
import runpy
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

BARE = str(Path(__file__).with_name("bare_app.py"))
GROUPS = [f"{group}=llama3_8b" for group in ("model", "batch", "optim")] + ["data=mock"]
OURS = [sys.executable, "-m", "rampcli"]
PAIRS = {
    "--help": ([*OURS, "--help"], [sys.executable, BARE, "--help"]),
    "pretrain --help": (
        [*OURS, "pretrain", "--help"],
        [sys.executable, BARE, "pretrain", "--help"],
    ),
    "pretrain --factory llama3_8b --dry-run": (
        [*OURS, "pretrain", "--factory", "llama3_8b", "--dry-run"],
        [sys.executable, BARE, "pretrain", "--dry-run", *GROUPS],
    ),
    "pretrain --factory llama3_8b --dry-run model.num_layers=4": (
        [*OURS, "pretrain", "--factory", "llama3_8b", "--dry-run", "model.num_layers=4"],
        [sys.executable, BARE, "pretrain", "--dry-run", *GROUPS, "model.num_layers=4"],
    ),
}
PLAN = [
    *OURS,
    "plan",
    "--factory",
    "gpt3_5b",
    "model.rampup_batch_size=[256,256,{samples}]",
    "trainer.max_steps=null",
]


def processor_seconds(command: list[str], *, cwd: str | None = None) -> float:
    """Returns user and system time of a command and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def compare(ours: list[str], other: list[str], rounds: int) -> tuple[float, float, float]:
    """Returns the median seconds of both and the median ratio of the pairs."""
    pairs = [(processor_seconds(ours), processor_seconds(other)) for _ in range(rounds)]
    mine, others = zip(*pairs, strict=True)
    return (
        statistics.median(mine),
        statistics.median(others),
        statistics.median(one / two for one, two in pairs),
    )


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rounds", nargs="?", type=int, default=15, metavar="ROUNDS")
    rounds = parser.parse_args().rounds
    print(f"{'rampcli ...':<66} {'ours s':>7} {'bare s':>7} {'ratio':>6}")
    for name, (ours, bare) in PAIRS.items():
        mine, others, ratio = compare(ours, bare, rounds)
        print(f"{name:<66} {mine:7.3f} {others:7.3f} {ratio:6.2f}")
    small, large = ([word.format(samples=samples) for word in PLAN] for samples in ("1M", "1T"))
    mine, others, ratio = compare(large, small, rounds)
    name = "plan of a ramp over 1e12 samples, compared with 1e6"
    print(f"{name:<66} {mine:7.3f} {others:7.3f} {ratio:6.2f}")

    bad_inputs = runpy.run_path(str(Path(__file__).resolve().parents[1] / "cli/bad_inputs.py"))
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    times = []
    for wrong in bad_inputs["BAD_INPUTS"]:
        with tempfile.TemporaryDirectory() as folder:
            for name, content in wrong.files.items():
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content if isinstance(content, bytes) else content.encode())
            times.append((processor_seconds([*OURS, *wrong.words], cwd=folder), wrong.title))
    median_s = statistics.median(time for time, _ in times)
    print(f"\n{len(times)} wrong inputs: median {median_s:.3f} s; the slowest")
    for seconds, title in sorted(times, reverse=True)[:3]:
        print(f"  {seconds:.3f} s  {title}")


if __name__ == "__main__":
    main()
