"""Measures training steps with Muon and with AdamW, sharded over 1, 2 and 4 ranks over gloo.

    python tests/benchmarks/bench_muon.py [ROUNDS]

Each rank has one thread. Rounds take a step with each optimiser in turn, on the same model. Only
the optimiser's part of a step is timed. Processor time is the mean over the ranks; wall time is
the one of the slowest. The cost of Muon is the median difference of a round's two steps.
"""

import statistics
import time

import torch
import torch.distributed as dist
from local_ranks import measure_cases

from rampcli.data.loader import MicroBatch
from rampcli.parallel.mesh import build_meshes
from rampcli.settings.config import Config
from rampcli.settings.model import ModelConfig
from rampcli.train.build import build_parts
from rampcli.train.optimizers import build_optimizers
from rampcli.train.passes import Passes
from rampcli.train.step import accumulate_gradient, update_weights

MODEL = ModelConfig(
    num_layers=6, hidden_size=512, ffn_hidden_size=1536, num_attention_heads=8, vocab_size=512
)
RANKS = (1, 2, 4)
SAMPLES, TOKENS = 1, 64


class Steps:
    """Training steps with one optimiser, each on the same tokens."""

    def __init__(self, optimizer: str) -> None:
        config = Config(model=MODEL)
        config.data.sequence_length = TOKENS
        config.optim.optimizer = optimizer
        device = torch.device("cpu")
        meshes = build_meshes(device, config.parallel)
        parts = build_parts(config, meshes, device)
        self.passes = Passes(config, parts, meshes, device)
        self.optimizers = build_optimizers(parts, config.optim)

    def take(self) -> tuple[float, float]:
        """Returns the processor time and the wall time of the update, in seconds."""
        tokens = torch.zeros(SAMPLES, TOKENS, dtype=torch.int64)
        accumulate_gradient(
            self.passes, [MicroBatch(tokens, tokens)], global_tokens=TOKENS, gradient_clip_val=1.0
        )
        dist.barrier()
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        update_weights(self.optimizers, lr=1e-3)
        took = torch.tensor([time.process_time() - cpu_s, time.perf_counter() - wall_s])
        slowest = took[1].clone()
        dist.all_reduce(took)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        return took[0].item() / dist.get_world_size(), slowest.item()


def measure(case: str, rounds: int) -> None:
    """Prints a row of the table, as one of several ranks."""
    dist.init_process_group("gloo")
    contenders = {name: Steps(name) for name in ("adamw", "muon")}
    for steps in contenders.values():
        steps.take()
    taken = [{name: steps.take() for name, steps in contenders.items()} for _ in range(rounds)]
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
