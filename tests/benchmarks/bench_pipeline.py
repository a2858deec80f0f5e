"""Measures the bubble of a pipeline of two ranks over gloo, next to the estimate of a plan.

    python tests/benchmarks/bench_pipeline.py [ROUNDS]

Each rank has one thread and half of the layers of a Llama with a small vocabulary, so that the
ranks have the same work. A step takes m micro batches forward and backward. Rounds time each m in
turn; the fastest step of each m counts, because other programs only make steps slower.

A step of m micro batches takes (m + idle) times the time of one micro batch. A straight line
through the steps yields both; what a step takes beyond m times the time of one is its bubble.
"""

import statistics
from functools import partial

import torch.distributed as dist
from harness import Steps, measure_cases, time_on_ranks

from rampcli.batch.pipeline import bubble
from rampcli.batch.plan import ParallelSizes
from rampcli.settings.config import Config
from rampcli.settings.model import ModelConfig
from rampcli.settings.parallel import ParallelConfig

MODEL = ModelConfig(
    num_layers=8, hidden_size=256, ffn_hidden_size=768, num_attention_heads=8, vocab_size=64
)
RANKS, SAMPLES, TOKENS = 2, 2, 256
MICRO_BATCHES = (2, 4, 8, 16)
VIRTUAL = {"1F1B": 1, "interleaved": 2}
"""Stages of each rank, by schedule."""


def measure(schedule: str, rounds: int) -> None:
    """Prints the bubbles of a schedule, as one rank of two."""
    sizes = ParallelConfig(
        pipeline_parallel_size=RANKS, virtual_pipeline_parallel_size=VIRTUAL[schedule]
    )
    piped = Steps(Config(model=MODEL, parallel=sizes), (SAMPLES, TOKENS))
    steps: dict[int, list[float]] = {count: [] for count in MICRO_BATCHES}
    for _ in range(1 + rounds):
        for count, times in steps.items():
            step = partial(piped.passes.forward_backward, piped.batch * count, scale=1.0)
            times.append(time_on_ranks(step)[1])
    fastest = {count: min(times[1:]) for count, times in steps.items()}
    each, idle_s = statistics.linear_regression(list(fastest), list(fastest.values()))
    parallel = ParallelSizes(pipeline=RANKS, virtual_pipeline=VIRTUAL[schedule])
    if dist.get_rank() == 0:
        idle = f"idle for {idle_s / each:.2f} of them"
        print(f"\n{schedule}: {1000 * each:.1f} ms per micro batch, {idle}")
        print(" m  step, ms  bubble  estimate")
        for count, took in fastest.items():
            expected = bubble(parallel, accumulate_grad_batches=count)
            print(f"{count:2} {1000 * took:9.1f} {1 - count * each / took:7.1%} {expected:9.1%}")


def main() -> None:
    ranks = dict.fromkeys(VIRTUAL, RANKS)
    header = f"{MODEL.num_layers} layers, width {MODEL.hidden_size}, {SAMPLES} x {TOKENS} tokens"
    measure_cases(__file__, __doc__, measure, ranks, rounds=8, header=header)


if __name__ == "__main__":
    main()
