"""Measures the start-up time of commands, next to a bare Typer and Hydra application.

    python tests/benchmarks/bench_start.py [ROUNDS]

Prints, for each command, the least and the median processor seconds of rampcli, the median of the
bare application, and the median ratio of pairs that ran one after the other. Compares plans of 1e6
and 1e12 samples, and prints the slowest wrong inputs of tests/cli/bad_inputs.yaml and their time.
"""

import argparse
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from harness import RAMPCLI, processor_seconds

BARE = str(Path(__file__).with_name("bare_app.py"))
GROUPS = [f"{group}=llama3_8b" for group in ("model", "batch", "optim")] + ["data=mock"]
OURS = [*RAMPCLI]
BARE_DRY_RUN = [sys.executable, BARE, "pretrain", "--dry-run", *GROUPS]
PAIRS = {
    "--help": [sys.executable, BARE, "--help"],
    "pretrain --help": [sys.executable, BARE, "pretrain", "--help"],
    "plan --factory llama3_8b": BARE_DRY_RUN,
    "plan --factory llama3_8b --json": BARE_DRY_RUN,
    "plan --factory llama3_8b model.num_layers=4": [*BARE_DRY_RUN, "model.num_layers=4"],
    "plan --factory llama3_8b model.nm_layers=4": [*BARE_DRY_RUN, "model.nm_layers=4"],
    "plan --factory llama3_8b --config-dir . optim=nemo_adam": BARE_DRY_RUN,
    "plan --factory llama3_8b --config-dir mine +exp=a": [*BARE_DRY_RUN, "optim=nemo_gpt3"],
    "pretrain --factory llama3_8b --dry-run": BARE_DRY_RUN,
    "explain --factory llama3_8b optim.lr": BARE_DRY_RUN,
    "recipes": BARE_DRY_RUN,
    "status": BARE_DRY_RUN,
    "__complete plan model.": BARE_DRY_RUN,
}
"""Commands of the bare application by those of rampcli, which run in a folder with FILES."""
FILES = {
    "mine/exp/a.yaml": """\
# @package _global_
defaults:
  - override /optim: nemo_gpt3
optim:
  lr: 2e-4
  min_lr: ${divide:${optim.lr},10}
""",
}
"""A folder of a user whose file has a defaults list and a reference."""
PLAN = [
    *OURS,
    "plan",
    "--factory",
    "gpt3_5b",
    "model.rampup_batch_size=[256,256,{samples}]",
    "trainer.max_steps=null",
]


seconds_of = partial(processor_seconds, stderr=subprocess.DEVNULL, check=False)
"""Returns the processor seconds of a command, which may fail."""


def write_files(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Writes files by their paths in a folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def compare(name: str, ours: list[str], other: list[str], rounds: int, *, cwd: str) -> None:
    """Prints our least and median seconds, the other's median, and the median ratio of pairs."""
    for command in (ours, other):  # writes the bytecode
        seconds_of(command, cwd=cwd)
    pairs = [(seconds_of(ours, cwd=cwd), seconds_of(other, cwd=cwd)) for _ in range(rounds)]
    mine, others = zip(*pairs, strict=True)
    medians = f"{statistics.median(mine):7.3f} {statistics.median(others):7.3f}"
    ratio = statistics.median(one / two for one, two in pairs)
    print(f"{name:<56} {min(mine):7.3f} {medians} {ratio:6.2f}", flush=True)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rounds", nargs="?", type=int, default=15, metavar="ROUNDS")
    rounds = parser.parse_args().rounds
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    print(f"{'rampcli ...':<56} {'least s':>7} {'median':>7} {'bare s':>7} {'ratio':>6}")
    small, large = ([word.format(samples=samples) for word in PLAN] for samples in ("1M", "1T"))
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder), FILES)
        for name, bare in PAIRS.items():
            compare(name, [*OURS, *name.split()], bare, rounds, cwd=folder)
        name = "plan of a ramp over 1e12 samples, compared with 1e6"
        compare(name, large, small, rounds, cwd=folder)

    bad_inputs = runpy.run_path(str(Path(__file__).resolve().parents[1] / "cli/bad_inputs.py"))
    times = []
    for wrong in bad_inputs["BAD_INPUTS"]:
        with tempfile.TemporaryDirectory() as folder:
            write_files(Path(folder), wrong.files)
            times.append((seconds_of([*OURS, *wrong.words], cwd=folder), wrong.title))
    median_s = statistics.median(time for time, _ in times)
    print(f"\n{len(times)} wrong inputs: median {median_s:.3f} s; the slowest")
    for seconds, title in sorted(times, reverse=True)[:3]:
        print(f"  {seconds:.3f} s  {title}")


if __name__ == "__main__":
    main()
