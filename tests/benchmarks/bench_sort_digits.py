"""Measures how well, and at what cost, reinforcement learning learns to sort eight digits.

    python tests/benchmarks/bench_sort_digits.py FOLDER [--seeds 1 2 3] [--plot PICTURE.svg]

For each seed, trains the recipe `sort_digits` (supervised) and then `rampcli rl` from its weights,
each in a process with one thread, with run directories below FOLDER. A run that is complete already
is read, not repeated. Prints the share of sorted numbers of held-out prompts before and after, the
likeliest responses and drawn ones, and the processor time of both commands. Draws the reward of the
training prompts, and held-out prompts in between.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from harness import RAMPCLI, one_thread, processor_seconds
from matplotlib.axes import Axes

from rampcli.report.plots import new_figure, save_figure
from rampcli.runs.directory import RunDirectory
from rampcli.runs.rows import read_rows

WINDOW = 5
"""Steps on each side over which the reward of a step is averaged in the picture."""
GREYS = ("0.0", "0.45", "0.7")


def train(command: str, run: RunDirectory, *words: str) -> float:
    """Runs a command with one thread, and returns its processor seconds and those of its ranks."""
    recipe = (command, "--factory", "sort_digits", f"run_dir={run.path}")
    return processor_seconds([*RAMPCLI, *recipe, *words], env=one_thread())


def evaluations(run: RunDirectory) -> list[dict]:
    return [row for row in read_rows(run.events) if row["event"] == "evaluation"]


def draw(axes: Axes, run: RunDirectory, *, seed: int, grey: str) -> None:
    rewards = [row["reward"] for row in read_rows(run.metrics)]
    means = [
        sum(near) / len(near)
        for step in range(len(rewards))
        if (near := rewards[max(0, step - WINDOW) : step + WINDOW + 1])
    ]
    axes.plot(range(1, len(means) + 1), means, color=grey, label=f"training prompts, seed {seed}")
    for kind, marker in (("greedy", "^"), ("sampled", "o")):
        rows = evaluations(run)
        axes.plot(
            [row["step"] for row in rows],
            [row[kind] for row in rows],
            color=grey,
            linestyle="none",
            marker=marker,
            markersize=4,
            label=f"held-out prompts, {kind}" if grey == GREYS[0] else None,
        )


def plot(runs: dict[int, RunDirectory], path: Path) -> None:
    figure = new_figure()
    axes = figure.subplots()
    for (seed, run), grey in zip(runs.items(), GREYS, strict=False):
        draw(axes, run, seed=seed, grey=grey)
    axes.set_title("sort_digits: share of sorted numbers", fontsize=11, loc="left")
    axes.set_xlabel("steps of 32 prompts x 16 generations")
    axes.set_ylim(0, 1)
    axes.legend(frameon=False, loc="lower right", fontsize=8)
    save_figure(figure, path)


def measure(folder: Path, seeds: Sequence[int]) -> dict[int, RunDirectory]:
    runs = {}
    heads = ("seed", "greedy", "sampled", "supervised CPU s", "RL CPU s")
    print("  ".join(f"{head:>16}" for head in heads))
    for seed in seeds:
        start, run = (RunDirectory(folder / f"{kind}_{seed}") for kind in ("start", "rl"))
        supervised_s = train("pretrain", start, f"seed={seed}")
        words = (f"model.init_from={start.path}", f"seed={seed}", "trainer.val_every_steps=25")
        rl_s = train("rl", run, *words)
        first, last = evaluations(run)[0], evaluations(run)[-1]
        cells = [
            str(seed),
            *(f"{first[kind]:.3f} -> {last[kind]:.3f}" for kind in ("greedy", "sampled")),
            f"{supervised_s:.0f}",
            f"{rl_s:.0f}",
        ]
        print("  ".join(f"{cell:>16}" for cell in cells), flush=True)
        runs[seed] = run
    return runs


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    runs = measure(options.folder.resolve(), options.seeds)
    if options.plot is not None:
        plot(runs, options.plot)


if __name__ == "__main__":
    main()
