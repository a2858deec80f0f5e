"""Trains a small model with fixed batches, ramps and Seesaw, and compares what they reach.

    python tests/benchmarks/bench_critical_batch.py FOLDER [--optimizers adamw muon] [--seeds 1 2 3]
        [--plot PICTURE.svg]

The model is that of the recipe llama3_tiny, on the source of Python's standard library: 8,192
samples of 128 bytes, each read once, on one process. A round, with an optimiser and a seed, is:

    fixed small      a batch of 4, which measures its noise scale in every eighth step
    branches         `rampcli cbs` after a quarter, a half and three quarters of that run
    proposed         what `rampcli propose` proposes from the branches
    beta2 fixed      the same, without the coupling of beta2
    no ramp          the largest fixed batch that is nowhere above a critical batch of the branches;
                     often that of the small run, which is then not repeated
    by constant      what is proposed from branches with a constant learning rate
    fixed large      a batch of 32
    late switch      a batch of 4, and of 32 for the last quarter
    Seesaw           a batch that grows from 4, to 256 in the end, where the rate would fall

Settings that are tied to the batch follow it as `--retune` has it; the learning rate grows as the
batch to the power of 0.5. With the small batch and seed 1, 3e-3 was the best of the rates 1.5, 3, 6
and 12 x 1e-3 with AdamW. With Muon, 1.5e-3 was better by 0.003. The rates of larger batches follow
from it and are not tuned. What the branches cost, 9,600 samples, is not counted.

A run that FOLDER holds is not repeated. The tables show the critical batches, the noise scales at
the same places, and for each way to train the mean of the validation losses over the seeds with its
standard deviation, and that of the differences to the small batch of the same seed.
"""

import argparse
import json
import math
import shlex
import shutil
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness import RAMPCLI
from matplotlib.axes import Axes

from rampcli.cbs.folder import read_branches
from rampcli.cbs.measured import read_noise
from rampcli.report.plots import new_figure, sample_ticks, save_figure
from rampcli.runs.directory import RunDirectory
from rampcli.runs.rows import read_rows

SAMPLES, SMALL, LARGE = 8192, 4, 32
LR = {"adamw": 3e-3, "muon": 3e-3}
WORDS = (
    *("model.rampup_batch_size=null", "trainer.num_nodes=1", f"trainer.max_samples={SAMPLES}"),
    *(f"model.global_batch_size={SMALL}", f"data.micro_batch_size={SMALL}"),
    *("trainer.max_val_samples=512", "optim.warmup_samples=400", "rampup.at_boundary=continue"),
    *("noise_scale.every_steps=8", "checkpoint.every_steps=512", "checkpoint.keep_last=8"),
)
POINTS = (SAMPLES // 4, SAMPLES // 2, SAMPLES * 3 // 4)
PROPOSED = ("proposed", "no ramp", "fixed large", "Seesaw")
ARMS = ("proposed", "beta2 fixed", "no ramp", "by constant", "fixed large", "late switch", "Seesaw")


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
    last = [row for row in read_rows(folder / "events.jsonl") if row["event"] == "validation"][-1]
    return last["loss"], last["step"]


def small_run(folder: Path, optimizer: str, seed: int, *, decay: str = "decay") -> Path:
    """Returns the directory of a run with the small batch and branches of that kind."""
    name = f"{optimizer}_{seed}_fixed_small"
    return folder / (name if decay == "decay" else f"{name}_{decay}")


def branch(run: Path, decay: str) -> dict[str, list[str]]:
    """Trains branches of a run, and returns the words of what is proposed from them, by name."""
    for samples in POINTS:
        place = ("--at", str(samples), "--multiples", "1,2,4,8")
        run_command("cbs", str(run), *place, f"--{decay}", "--json")
    proposal = json.loads(
        run_command("propose", str(run), "--largest", str(LARGE), "--exponent", "0.5", "--json")
    )
    words = {
        name: one["words"]
        for one in proposal["candidates"]
        for name in one["name"].split(", ")
        if one["error"] is None
    }
    return {name: words[name] for name in PROPOSED}


def train_round(folder: Path, optimizer: str, seed: int) -> dict[str, tuple[float, int]]:
    """Trains all runs with an optimiser and a seed, and returns their losses and steps."""
    lr = LR[optimizer]
    small = small_run(folder, optimizer, seed)
    rate = (f"optim.optimizer={optimizer}", f"optim.lr={lr}", f"optim.min_lr={lr / 100}")
    train(small, ["--factory", "llama3_tiny", *WORDS, *rate, f"seed={seed}"])
    constant = small_run(folder, optimizer, seed, decay="constant")
    if not constant.exists():
        part = constant.with_suffix(".part")
        shutil.copytree(small, part, ignore=shutil.ignore_patterns("cbs"), dirs_exist_ok=True)
        part.rename(constant)
    words = branch(small, "decay")
    words["by constant"] = branch(constant, "constant")["proposed"]
    words["beta2 fixed"] = [word for word in words["proposed"] if "beta2" not in word]
    words["late switch"] = [
        *(word for word in words["fixed large"] if not word.startswith("model.")),
        f"model.step_batch_size_schedule='samples: 0:{SMALL} {POINTS[-1]}:{LARGE}'",
        "model.global_batch_size=null",
        "schedule.batch_coupling=0.5",
        "schedule.beta2_coupling=half_life",
        *(["schedule.weight_decay_coupling=timescale"] if optimizer == "adamw" else []),
    ]
    found = {"fixed small": loss_and_steps(small)}
    for name in ARMS:
        run = folder / f"{optimizer}_{seed}_{name.replace(' ', '_')}"
        if words[name]:
            train(run, ["--factory", str(small / "config.yaml"), *words[name]])
        found[name] = loss_and_steps(run if words[name] else small)
        print(f"{optimizer} {seed} {name}: {found[name]} {shlex.join(words[name])}", flush=True)
    return found


def show_measured(folder: Path, optimizer: str, seeds: Sequence[int]) -> None:
    """Prints the critical batches by branches and the noise scales of the same places."""
    print(f"\n{optimizer:<12} {'samples':>8} {'decay':>6} {'constant':>9}   noise scale")
    for seed in seeds:
        noise = read_noise(RunDirectory(small_run(folder, optimizer, seed)))
        found = [
            {one["consumed_samples"]: one for one in read_branches(RunDirectory(run))}
            for decay in ("decay", "constant")
            for run in [small_run(folder, optimizer, seed, decay=decay)]
        ]
        for samples in POINTS:
            near = min(noise, key=lambda point: abs(point.consumed_samples - samples))
            batches = [
                f"{'>=' * one[samples]['is_lower_bound']}{one[samples]['critical_batch_size']}"
                for one in found
            ]
            high = "" if near.high is None else f"to {near.high:.1f}"
            print(
                f"seed {seed:<7} {samples:8,} {batches[0]:>6} {batches[1]:>9}"
                f"   {near.low:.1f} {high}"
            )


def spread(values: Sequence[float]) -> float:
    """Returns the standard deviation of values, or 0 of a single one."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


Rounds = Mapping[int, Mapping[str, tuple[float, int]]]
"""Losses and steps by seed and name."""


def show(optimizer: str, rounds: Rounds) -> None:
    """Prints the table of an optimiser."""
    print(f"\n{optimizer:<12} {'steps':>6} {'loss':>8} {'sd':>7} {'to small':>9} {'sd':>7}")
    for name in ("fixed small", *ARMS):
        losses = [found[name][0] for found in rounds.values()]
        differences = [found[name][0] - found["fixed small"][0] for found in rounds.values()]
        steps = statistics.mean(found[name][1] for found in rounds.values())
        print(
            f"{name:<12} {steps:6.0f} {statistics.mean(losses):8.4f} {spread(losses):7.4f}"
            f" {statistics.mean(differences):+9.4f} {spread(differences):7.4f}"
        )


def draw_measured(axes: Axes, folder: Path, optimizer: str, seeds: Sequence[int]) -> None:
    """Draws the noise scale over a run, and the critical batches that branches found."""
    for number, seed in enumerate(seeds):
        run = small_run(folder, optimizer, seed)
        noise = read_noise(RunDirectory(run))
        places = [point.consumed_samples for point in noise]
        is_first = number == 0
        axes.plot(
            places,
            [point.low or math.nan for point in noise],
            color="0.6",
            linewidth=1,
            label="noise scale, lower end" if is_first else None,
        )
        for decay, marker, color, label in (
            ("constant", "x", "0.45", "branches, constant rate"),
            ("decay", "o", "black", "branches, rate falls"),
        ):
            found = read_branches(RunDirectory(small_run(folder, optimizer, seed, decay=decay)))
            axes.plot(
                [one["consumed_samples"] + 90 * (number - 1) for one in found],
                [one["critical_batch_size"] for one in found],
                linestyle="none",
                marker=marker,
                markersize=5,
                color=color,
                fillstyle="none",
                label=label if is_first else None,
            )
    axes.set_yscale("log", base=2)
    ticks = [SMALL * 2**power for power in range(6)]
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    axes.set_ylim(SMALL / 2, 1.5 * ticks[-1])
    sample_ticks(axes)
    axes.set_title(optimizer, fontsize=11, loc="left")
    axes.set_xlabel("consumed samples")
    axes.set_ylabel("batch (samples)")


def draw_losses(axes: Axes, rounds: Rounds) -> None:
    """Draws the mean loss of each way to train over its steps, with standard deviations."""
    for name, marker in zip(("fixed small", *ARMS), "so^vDPX*", strict=True):
        losses = [found[name][0] - found["fixed small"][0] for found in rounds.values()]
        steps = statistics.mean(found[name][1] for found in rounds.values())
        axes.errorbar(
            [steps],
            [statistics.mean(losses)],
            yerr=[spread(losses)],
            marker=marker,
            markersize=6,
            color="black",
            markerfacecolor="0.8",
            capsize=2,
            linestyle="none",
            label=name,
        )
    axes.axhline(0, color="0.8", linewidth=1, zorder=0)
    axes.set_yscale("symlog", linthresh=0.02)
    axes.set_ylim(-0.015, 1)
    losses = [0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5]
    axes.set_yticks(losses, [f"{loss:g}" for loss in losses])
    axes.set_xscale("log")
    ticks = [256, 512, 1024, 2048]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("optimiser steps")
    axes.set_ylabel("loss, compared with fixed small")


def main() -> None:
    """Trains all rounds, prints the tables and draws the picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--optimizers", nargs="+", default=[*LR], choices=[*LR])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    found = {
        optimizer: {seed: train_round(given.folder, optimizer, seed) for seed in given.seeds}
        for optimizer in given.optimizers
    }
    for optimizer, rounds in found.items():
        show_measured(given.folder, optimizer, given.seeds)
        show(optimizer, rounds)
    if given.plot is not None:
        figure = new_figure()
        figure.set_size_inches(8, 6.5)
        for column, (optimizer, rounds) in enumerate(found.items()):
            upper, lower = (
                figure.add_subplot(2, len(found), row * len(found) + column + 1) for row in (0, 1)
            )
            draw_measured(upper, given.folder, optimizer, given.seeds)
            draw_losses(lower, rounds)
        upper.legend(frameon=False, fontsize=8)
        names = lower.get_legend_handles_labels()
        figure.legend(*names, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
        save_figure(figure, given.plot)


if __name__ == "__main__":
    main()
