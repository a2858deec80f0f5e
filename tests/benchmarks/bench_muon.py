"""Measures training steps with Muon and with AdamW, sharded over 1, 2 and 4 ranks over gloo.

    python tests/benchmarks/bench_muon.py [ROUNDS]

Each rank has one thread. Rounds take a step with each optimiser in turn, on the same model. Only
the optimiser's part of a step is timed. Processor time is the mean over the ranks; wall time is
the one of the slowest. The cost of Muon is the median difference of a round's two steps.
"""

import statistics

import torch.distributed as dist
from harness import Steps, measure_cases, time_on_ranks

from rampcli.settings.config import Config
from rampcli.settings.model import ModelConfig

MODEL = ModelConfig(
    num_layers=6, hidden_size=512, ffn_hidden_size=1536, num_attention_heads=8, vocab_size=512
)
RANKS = (1, 2, 4)
SAMPLES, TOKENS = 1, 64


def build(optimizer: str) -> Steps:
    config = Config(model=MODEL)
    config.optim.optimizer = optimizer
    return Steps(config, (SAMPLES, TOKENS))


def time_update(steps: Steps) -> tuple[float, float]:
    """Returns the processor time and the wall time of the update, in seconds."""
    steps.accumulate()
    return time_on_ranks(steps.update)


def measure(case: str, rounds: int) -> None:
    """Prints a row of the table, as one of several ranks."""
    contenders = {name: build(name) for name in ("adamw", "muon")}
    taken = [
        {name: time_update(steps) for name, steps in contenders.items()} for _ in range(1 + rounds)
    ][1:]
    if dist.get_rank() == 0:
        cells = []
        for clock in range(2):
            cells += [statistics.median(each[name][clock] for each in taken) for name in contenders]
            cells.append(statistics.median(e["muon"][clock] - e["adamw"][clock] for e in taken))
        print(f"{case:>5}", *(f"{1000 * cell:8.0f}" for cell in cells))


def main() -> None:
    header = (
        f"{MODEL.num_layers} layers, width {MODEL.hidden_size}; ms per update\n"
        "         processor time per rank            wall time\n"
        "ranks    adamw     muon     cost    adamw     muon     cost"
    )
    ranks = {str(count): count for count in RANKS}
    measure_cases(__file__, __doc__, measure, ranks, rounds=10, header=header)


if __name__ == "__main__":
    main()
