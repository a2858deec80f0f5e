"""Measures what the overlap of rollout and training saves, next to what `rampcli rl` predicts.

    python tests/benchmarks/bench_overlap.py [--rollouts 1 2 4 8] [--rounds 2] [--steps 12]

Trains the recipe `sort_digits` for a few steps by reinforcement learning, with 512 pairs per step
in that many micro batches. One process takes turns with both; then one process generates while
another trains. Both have one thread per process, and run in turn, in another order in each round.
The machine needs two free processors.

`predicted` is max(rollout, training) + min(rollout, training) / micro batches, from the seconds
that the overlapping processes spent on each. `measured` is the time of their steps. All figures are
medians over steps, without the first two of a run.
"""

import argparse
import random
import statistics
import tempfile
from pathlib import Path

from bench_sort_digits import train

from rampcli.runs.directory import RunDirectory
from rampcli.runs.rows import read_rows

PROMPTS, GENERATIONS = 32, 16
FIRST = 2
"""Steps at the start of a run that are left out."""
WAYS = {"turns": (), "overlap": ("trainer.devices=2", "rl.rollout_ranks=1")}


def run(command: str, folder: Path, *words: str) -> RunDirectory:
    train(command, RunDirectory(folder), "trainer.val_samples=0", *words)
    return RunDirectory(folder)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rollouts", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    rows: dict[tuple[int, str], list[dict]] = {
        (count, way): [] for count in options.rollouts for way in WAYS
    }
    with tempfile.TemporaryDirectory() as scratch:
        start = run("pretrain", Path(scratch) / "start")
        for turn in range(options.rounds):
            for count, way in random.sample(list(rows), len(rows)):
                finished = run(
                    "rl",
                    Path(scratch) / f"{turn}_{count}_{way}",
                    f"model.init_from={start.path}",
                    f"batch_size={PROMPTS}",
                    f"num_generations={GENERATIONS}",
                    f"micro_batch_size={PROMPTS * GENERATIONS // count}",
                    f"trainer.max_steps={options.steps}",
                    *WAYS[way],
                )
                rows[count, way] += list(read_rows(finished.metrics))[FIRST:]

    def median(count: int, way: str, column: str) -> float:
        return statistics.median(row[column] for row in rows[count, way])

    heads = ("micro batches", "turns s", "rollout s", "training s", "predicted s", "measured s")
    print("  ".join(f"{head:>13}" for head in (*heads, "meas./pred.", "turns/meas.")))
    for count in options.rollouts:
        turns, measured = (
            median(count, "turns", "step_time_s"),
            median(count, "overlap", "step_time_s"),
        )
        predicted = median(count, "overlap", "predicted_s")
        parts = [median(count, "overlap", f"{part}_s") for part in ("rollout", "training")]
        cells = (turns, *parts, predicted, measured, measured / predicted, turns / measured)
        print("  ".join([f"{count:>13}", *(f"{cell:>13.3f}" for cell in cells)]))


if __name__ == "__main__":
    main()
