"""Measures what the noise scale of the gradient costs a training step on the CPU.

    python tests/benchmarks/bench_noise_scale.py [ROUNDS]

Each rank has one thread. Rounds take a step of each kind in turn: on a model without hooks (off),
on one with hooks (idle), and one that measures (measured). The optimiser's part is left out.
Processor time is the mean over the ranks. Ratios are medians over the rounds. The cost at an
interval of 16 steps is what the ratios say: 15 idle steps, and one that measures.
"""

import statistics
from functools import partial

import torch.distributed as dist
from harness import Steps, measure_cases, time_on_ranks

from rampcli.settings.config import Config
from rampcli.settings.model import ModelConfig
from rampcli.train.group_norms import GroupNorms

MODEL = ModelConfig(
    num_layers=6,
    hidden_size=256,
    ffn_hidden_size=768,
    num_attention_heads=8,
    num_query_groups=4,
    vocab_size=8192,
)
SAMPLES, TOKENS = 4, 256
CASES = {
    "1 rank, 4 micro batches": (1, 4),
    "1 rank, 1 micro batch": (1, 1),
    "2 ranks, sharded, 2 micro batches": (2, 2),
}
INTERVAL = 16


def measure(case: str, rounds: int) -> None:
    """Prints a row of the table, as one of several ranks."""
    shape, micro_batches = (SAMPLES, TOKENS), CASES[case][1]
    plain, hooked = (
        Steps(Config(model=MODEL), shape, micro_batches=micro_batches) for _ in range(2)
    )
    norms = GroupNorms(hooked.parts, hooked.meshes, pieces=1)
    kinds = {
        "off": plain.accumulate,
        "idle": hooked.accumulate,
        "measured": partial(hooked.accumulate, norms=norms),
    }
    taken = [
        {name: time_on_ranks(take)[0] for name, take in kinds.items()} for _ in range(1 + rounds)
    ][1:]
    if dist.get_rank() == 0:
        off_s = statistics.median(each["off"] for each in taken)
        idle, measured = (
            statistics.median(each[name] / each["off"] for each in taken)
            for name in ("idle", "measured")
        )
        cost = ((INTERVAL - 1) * idle + measured) / INTERVAL - 1
        print(f"{case:34} {1000 * off_s:7.0f} {idle:7.3f} {measured:9.3f} {cost:9.1%}")


def main() -> None:
    ranks = {case: count for case, (count, _) in CASES.items()}
    header = f"{'':34}  off ms    idle  measured  cost at {INTERVAL}"
    measure_cases(__file__, __doc__, measure, ranks, rounds=10, header=header)


if __name__ == "__main__":
    main()
