"""Trains a small model with fixed batches, ramps and Seesaw, and compares what they reach.

    python tests/benchmarks/bench_critical_batch.py FOLDER [--optimizers adamw muon] [--seeds 1 2 3]

The model is that of the recipe llama3_tiny, on the source of Python's standard library: 8,192
samples of 128 bytes, each read once, on one process. A round, with an optimiser and a seed, is:

    fixed small      a batch of 4, which measures its noise scale in every eighth step
    branches         `rampcli cbs` after a quarter, a half and three quarters of that run
    proposed         what `rampcli propose` proposes from the branches
    beta2 fixed      the same, without the coupling of beta2
    no ramp          the fixed batch that it proposes instead
    fixed large      a batch of 32
    late switch      a batch of 4, and of 32 for the last quarter
    Seesaw           a batch that grows from 4 where the learning rate would fall

Settings that are tied to the batch follow it as `--retune` has it; the learning rate grows as the
batch to the power of 0.5. The rate of the small batch is the best of 1.5, 3, 6 and 12 x 1e-3.

A run that FOLDER holds is not repeated. The table shows the mean of the validation losses over the
seeds with its standard deviation, and that of the differences to the small batch of the same seed.
"""

import argparse
import json
import shlex
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

SAMPLES, SMALL, LARGE = 8192, 4, 32
LR = {"adamw": 3e-3, "muon": 3e-3}
WORDS = (
    *("model.rampup_batch_size=null", "trainer.num_nodes=1", f"trainer.max_samples={SAMPLES}"),
    *(f"model.global_batch_size={SMALL}", f"data.micro_batch_size={SMALL}"),
    *("trainer.max_val_samples=512", "optim.warmup_samples=400", "rampup.at_boundary=continue"),
    *("noise_scale.every_steps=8", "checkpoint.every_steps=512", "checkpoint.keep_last=8"),
)
POINTS = (SAMPLES // 4, SAMPLES // 2, SAMPLES * 3 // 4)
RAMPCLI = (sys.executable, "-m", "rampcli")


def run_command(*words: str) -> str:
    """Runs a command of rampcli and returns what it prints."""
    done = subprocess.run([*RAMPCLI, *words], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def train(folder: Path, words: Sequence[str]) -> None:
    """Trains a run, unless it is complete."""
    state = folder / "state.json"
    if not state.exists() or json.loads(state.read_text())["status"] != "complete":
        run_command("pretrain", *words, f"name={folder.name}", f"run_dir={folder}")


def loss_and_steps(folder: Path) -> tuple[float, int]:
    """Returns the last validation loss of a run, and its optimiser steps."""
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    last = [event for event in events if event["event"] == "validation"][-1]
    return last["loss"], last["step"]


def train_round(folder: Path, optimizer: str, seed: int) -> dict[str, tuple[float, int]]:
    """Trains all runs with an optimiser and a seed, and returns their losses and steps."""
    lr = LR[optimizer]
    small = folder / f"{optimizer}_{seed}_fixed_small"
    rate = (f"optim.optimizer={optimizer}", f"optim.lr={lr}", f"optim.min_lr={lr / 100}")
    train(small, ["--factory", "llama3_tiny", *WORDS, *rate, f"seed={seed}"])
    for samples in POINTS:
        run_command("cbs", str(small), "--at", str(samples), "--multiples", "1,2,4,8", "--json")
    proposal = json.loads(
        run_command("propose", str(small), "--largest", str(LARGE), "--exponent", "0.5", "--json")
    )
    words = {
        name: one["words"]
        for one in proposal["candidates"]
        for name in one["name"].split(", ")
        if one["error"] is None
    }
    words["beta2 fixed"] = [word for word in words["proposed"] if "beta2" not in word]
    large = words["fixed large"]
    words["late switch"] = [
        *(word for word in large if not word.startswith("model.")),
        f"model.step_batch_size_schedule='samples: 0:{SMALL} {POINTS[-1]}:{LARGE}'",
        "model.global_batch_size=null",
        "schedule.batch_coupling=0.5",
        "schedule.beta2_coupling=half_life",
        *(["schedule.weight_decay_coupling=timescale"] if optimizer == "adamw" else []),
    ]
    found = {"fixed small": loss_and_steps(small)}
    for name in ("proposed", "beta2 fixed", "no ramp", "fixed large", "late switch", "Seesaw"):
        run = folder / f"{optimizer}_{seed}_{name.replace(' ', '_')}"
        if words[name]:
            train(run, ["--factory", str(small / "config.yaml"), *words[name]])
        found[name] = loss_and_steps(run if words[name] else small)
        print(f"{optimizer} {seed} {name}: {found[name]} {shlex.join(words[name])}", flush=True)
    return found


def show(optimizer: str, rounds: Mapping[int, Mapping[str, tuple[float, int]]]) -> None:
    """Prints the table of an optimiser."""
    print(f"\n{optimizer:<12} {'steps':>6} {'loss':>8} {'sd':>7} {'to small':>9} {'sd':>7}")
    for name in next(iter(rounds.values())):
        losses = [found[name][0] for found in rounds.values()]
        differences = [found[name][0] - found["fixed small"][0] for found in rounds.values()]
        steps = statistics.mean(found[name][1] for found in rounds.values())
        spreads = [
            statistics.stdev(values) if len(values) > 1 else 0.0 for values in (losses, differences)
        ]
        print(
            f"{name:<12} {steps:6.0f} {statistics.mean(losses):8.4f} {spreads[0]:7.4f}"
            f" {statistics.mean(differences):+9.4f} {spreads[1]:7.4f}"
        )


def main() -> None:
    """Trains all rounds and prints a table for each optimiser."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--optimizers", nargs="+", default=[*LR], choices=[*LR])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    given = parser.parse_args()
    for optimizer in given.optimizers:
        show(
            optimizer,
            {seed: train_round(given.folder, optimizer, seed) for seed in given.seeds},
        )


if __name__ == "__main__":
    main()
