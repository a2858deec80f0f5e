"""Measures what the noise scale of the gradient costs a training step on the CPU.

    python tests/benchmarks/bench_noise_scale.py [ROUNDS]

Each rank has one thread. Rounds take a step of each kind in turn: on a model without hooks (off),
on one with hooks (idle), and one that measures (measured). The optimiser's part is left out.
Processor time is the mean over the ranks. Ratios are medians over the rounds. The cost at an
interval of 16 steps is what the ratios say: 15 idle steps, and one that measures.
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
from rampcli.train.group_norms import GroupNorms
from rampcli.train.passes import Passes
from rampcli.train.step import accumulate_gradient

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


class Steps:
    """Forward and backward passes of steps, each on the same tokens."""

    def __init__(self, *, has_hooks: bool, micro_batches: int) -> None:
        config = Config(model=MODEL)
        config.data.sequence_length = TOKENS
        config.trainer.accumulate_reduce = "last"
        device = torch.device("cpu")
        meshes = build_meshes(device, config.parallel)
        parts = build_parts(config, meshes, device)
        self.passes = Passes(config, parts, meshes, device)
        self.norms = GroupNorms(parts, meshes, pieces=1) if has_hooks else None
        tokens = torch.randint(MODEL.vocabulary, (SAMPLES, TOKENS))
        self.batch = [MicroBatch(tokens, tokens)] * micro_batches

    def take(self, *, measures: bool = False) -> float:
        """Returns the processor time of a step in seconds."""
        for part in self.passes.parts:
            part.zero_grad()
        dist.barrier()
        began = time.process_time()
        accumulate_gradient(
            self.passes,
            self.batch,
            global_tokens=SAMPLES * TOKENS * len(self.batch) * dist.get_world_size(),
            gradient_clip_val=1.0,
            norms=self.norms if measures else None,
        )
        took = torch.tensor(time.process_time() - began)
        dist.all_reduce(took)
        return took.item() / dist.get_world_size()


def measure(case: str, rounds: int) -> None:
    """Prints a row of the table, as one of several ranks."""
    dist.init_process_group("gloo")
    _, micro_batches = CASES[case]
    plain, hooked = (Steps(has_hooks=each, micro_batches=micro_batches) for each in (False, True))
    kinds = {
        "off": plain.take,
        "idle": hooked.take,
        "measured": lambda: hooked.take(measures=True),
    }
    taken = [{name: take() for name, take in kinds.items()} for _ in range(1 + rounds)][1:]
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
