"""Measures attention to packed documents and to a sliding window on the CPU, forward and backward.

Each way is measured in a process of its own, in turns: causal attention, which has no mask; tiles,
which rampcli computes; and a dense mask, with a number for each pair of tokens.

    python tests/benchmarks/bench_masks.py [SEQUENCE [ROUNDS]]
"""

import argparse
import random
import resource
import statistics
import time
from collections.abc import Iterator

from harness import run_apart

CASES = (
    "documents of about 20",
    "documents of about 300",
    "documents of about 1000",
    "one document",
    "window of 256",
    "window of 1024",
)
WAYS = ("causal", "tiles", "dense mask")
SAMPLES, HEADS, GROUPS, SIZE = 2, 8, 4, 64
PASSES = 5


def first_keys(case: str, sequence: int) -> list[list[int]]:
    """Returns the first key of each query, in each sample."""
    number = case.split()[-1]
    if case.startswith("window"):
        return [[max(0, row - int(number) + 1) for row in range(sequence)]]
    if case == "one document":
        return [[0] * sequence] * SAMPLES

    def lengths(sample: int) -> Iterator[int]:
        draw = random.Random(sample)
        while True:
            yield max(1, round(draw.expovariate(1 / int(number))))

    rows = []
    for sample in range(SAMPLES):
        row: list[int] = []
        for length in lengths(sample):
            row += [len(row)] * length
            if len(row) >= sequence:
                break
        rows.append(row[:sequence])
    return rows


def measure(case: str, way: str, sequence: int) -> None:
    """Prints processor seconds of a pass and the MiB that passes add to this process."""
    import torch
    import torch.nn.functional as F

    from rampcli.models.tiles import attend_in_tiles

    torch.manual_seed(0)
    query, key, value = (
        torch.randn(SAMPLES, sequence, heads, SIZE).transpose(1, 2).requires_grad_()
        for heads in (HEADS, GROUPS, GROUPS)
    )
    weights = torch.randn_like(query)
    first = torch.tensor(first_keys(case, sequence), dtype=torch.int32)

    def dense() -> torch.Tensor:
        keys = torch.arange(sequence, dtype=torch.int32)
        hidden = (keys > keys[:, None]) | (keys < first[:, None, :, None])
        mask = torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
        copied = (each.repeat_interleave(HEADS // GROUPS, dim=1) for each in (key, value))
        return F.scaled_dot_product_attention(query, *copied, attn_mask=mask)

    attend = {
        "causal": lambda: F.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=True
        ),
        "tiles": lambda: attend_in_tiles(query, key, value, first)[0],
        "dense mask": dense,
    }[way]
    before, seconds = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, []
    for _ in range(PASSES):
        began = time.process_time()
        torch.autograd.grad(attend(), (query, key, value), weights)
        seconds.append(time.process_time() - began)
    added = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(min(seconds), added / 1024)


def main() -> None:
    """Prints a table: processor time relative to causal attention, and memory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sequence", nargs="?", type=int, default=2048)
    parser.add_argument("rounds", nargs="?", type=int, default=3)
    parser.add_argument("--only", nargs=2, metavar=("CASE", "WAY"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        measure(*options.only, options.sequence)
        return
    print(f"{'':24} {'tiles':>8} {'dense':>8}   MiB: {'causal':>8} {'tiles':>8} {'dense':>8}")
    for case in CASES:
        seconds, added = {way: [] for way in WAYS}, {way: [] for way in WAYS}
        for _ in range(options.rounds):
            for way in WAYS:
                one, memory = run_apart(__file__, options.sequence, "--only", case, way)
                seconds[way].append(one)
                added[way].append(memory)
        ratios = [
            statistics.median(
                one / causal for one, causal in zip(seconds[way], seconds["causal"], strict=True)
            )
            for way in WAYS[1:]
        ]
        memory = [statistics.median(added[way]) for way in WAYS]
        print(
            f"{case:24} {ratios[0]:8.2f} {ratios[1]:8.2f}        "
            + " ".join(f"{each:8.0f}" for each in memory)
        )


if __name__ == "__main__":
    main()
