"""Measures what an exponential moving average of the weights costs a training step on the CPU.

    python tests/benchmarks/bench_average.py [ROUNDS]

Each rank has one thread. Rounds take a step without the average and one with it in turn, on the
same model and tokens: gradients, the optimiser's update, and the average. The order changes from
round to round. Processor time is the mean over the ranks. The ratio is the median over the rounds,
with the quartiles. The average alone is timed too, as a share of a step.
"""

import statistics
from functools import partial

import torch.distributed as dist
from bench_noise_scale import MODEL, SAMPLES, TOKENS
from harness import Steps, measure_cases, quartiles, time_on_ranks

from rampcli.batch.averages import ExponentialMean
from rampcli.settings.config import Config
from rampcli.train.average import WeightAverage

CASES = {"1 rank, 1 micro batch": (1, 1), "2 ranks, sharded, 2 micro batches": (2, 2)}
HALF_LIFE = 50_000_000


def measure(case: str, rounds: int) -> None:
    """Prints a row of the table, as one of several ranks."""
    steps = Steps(Config(model=MODEL), (SAMPLES, TOKENS), micro_batches=CASES[case][1])
    average = WeightAverage(steps.parts, ExponentialMean(half_life_tokens=HALF_LIFE))

    def step() -> None:
        steps.accumulate()
        steps.update()

    ratios, shares, offs = [], [], []
    for number in range(1 + rounds):
        taken = {}
        for averages in sorted((False, True), reverse=number % 2):
            step_s, _ = time_on_ranks(step)
            follow = partial(average.follow, 0, steps.tokens)
            taken[averages] = step_s, time_on_ranks(follow)[0] if averages else 0.0
        if number:  # the first round warms up
            (off, _), (on, average_s) = taken[False], taken[True]
            ratios.append((on + average_s) / off)
            shares.append(average_s / off)
            offs.append(off)
    if dist.get_rank() == 0:
        low, middle, high = quartiles(ratios)
        print(
            f"{case:34} {1000 * statistics.median(offs):7.0f} {middle:7.3f}"
            f" ({low:.3f} to {high:.3f}) {statistics.median(shares):9.2%}"
        )


def main() -> None:
    ranks = {case: count for case, (count, _) in CASES.items()}
    header = f"{'':34}  off ms   ratio (quartiles)       average alone"
    measure_cases(__file__, __doc__, measure, ranks, rounds=30, header=header)


if __name__ == "__main__":
    main()
