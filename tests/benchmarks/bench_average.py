"""Measures what an exponential moving average of the weights costs a training step on the CPU.

    python tests/benchmarks/bench_average.py [ROUNDS]

Each rank has one thread. Rounds take a step without the average and one with it in turn, on the
same model and tokens: gradients, the optimiser's update, and the average. The order changes from
round to round. Processor time is the mean over the ranks. The ratio is the median over the rounds,
with the quartiles. The average alone is timed too, as a share of a step.
"""

import statistics
import time

import torch
import torch.distributed as dist
from bench_noise_scale import MODEL, SAMPLES, TOKENS
from local_ranks import measure_cases

from rampcli.batch.averages import ExponentialMean
from rampcli.data.loader import MicroBatch
from rampcli.parallel.mesh import build_meshes
from rampcli.settings.config import Config
from rampcli.train.average import WeightAverage
from rampcli.train.build import build_parts
from rampcli.train.optimizers import build_optimizers
from rampcli.train.passes import Passes
from rampcli.train.step import accumulate_gradient, update_weights

CASES = {"1 rank, 1 micro batch": (1, 1), "2 ranks, sharded, 2 micro batches": (2, 2)}
HALF_LIFE = 50_000_000


class Steps:
    """Training steps, each on the same tokens."""

    def __init__(self, *, micro_batches: int) -> None:
        config = Config(model=MODEL)
        config.data.sequence_length = TOKENS
        config.trainer.accumulate_reduce = "last"
        device = torch.device("cpu")
        meshes = build_meshes(device, config.parallel)
        parts = build_parts(config, meshes, device)
        self.passes = Passes(config, parts, meshes, device)
        self.optimizers = build_optimizers(parts, config.optim)
        self.average = WeightAverage(parts, ExponentialMean(half_life_tokens=HALF_LIFE))
        tokens = torch.randint(MODEL.vocabulary, (SAMPLES, TOKENS))
        self.batch = [MicroBatch(tokens, tokens)] * micro_batches
        self.tokens = SAMPLES * TOKENS * micro_batches * dist.get_world_size()

    def take(self, *, averages: bool) -> tuple[float, float]:
        """Returns the processor time of a step, and of the average in it, in seconds."""
        dist.barrier()
        began = time.process_time()
        accumulate_gradient(
            self.passes, self.batch, global_tokens=self.tokens, gradient_clip_val=1.0
        )
        update_weights(self.optimizers, lr=1e-4)
        stepped = time.process_time()
        if averages:
            self.average.follow(0, self.tokens)
        ended = time.process_time()
        took = torch.tensor([ended - began, ended - stepped], dtype=torch.float64)
        dist.all_reduce(took)
        whole, average = (took / dist.get_world_size()).tolist()
        return whole, average


def measure(case: str, rounds: int) -> None:
    """Prints a row of the table, as one of several ranks."""
    dist.init_process_group("gloo")
    _, micro_batches = CASES[case]
    steps = Steps(micro_batches=micro_batches)
    ratios, shares, offs = [], [], []
    for number in range(1 + rounds):
        taken = {on: steps.take(averages=on) for on in sorted((False, True), reverse=number % 2)}
        if number:  # the first round warms up
            (off, _), (on, average) = taken[False], taken[True]
            ratios.append(on / off)
            shares.append(average / off)
            offs.append(off)
    if dist.get_rank() == 0:
        low, middle, high = torch.tensor(ratios).quantile(torch.tensor([0.25, 0.5, 0.75])).tolist()
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
