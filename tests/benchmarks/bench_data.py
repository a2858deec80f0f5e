"""Measures how fast samples are read from indexed files, next to a memory map and Megatron-core.

    python tests/benchmarks/bench_data.py [--tokens 200_000_000] [--sequence-lengths 1024 4096]
                                          [--rounds 9] [--round-samples 4096] [--folder FOLDER]

Writes a corpus of uint16 tokens in documents of about 700 tokens. Reads random windows of it as
int64 tokens and labels, in one process, with the files in the page cache. Each round reads the same
number of samples in every way, and starts with another way. No sample is read in two rounds. Prints
the median samples per second and processor time per token of each way, and medians of the rounds'
ratios, in which more than 1 is better. The process has the environment of a worker.

    memmap, 1      micro batches of 8 windows from a memory-mapped array, at places drawn before,
                   as new int64 tokens and labels; nothing is checked
    memmap, 32     the same, 32 micro batches held at a time, as a step holds them
    GPTDataset     megatron-core's `__getitem__`, through its shuffled index in order
    read, 1        steps of our loader in its order: one micro batch of 8 a step, no read-ahead
    read, 32       the same with 32 micro batches a step
    ahead, 32      the same as the trainer calls it, with a thread that reads ahead. Each step
                   taken starts the reading of one, and a round ends when all are read

Ratios to a memory map compare the same number of micro batches a step.
"""

import argparse
import logging
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from pathlib import Path

import numpy as np
import torch

from rampcli.batch.plan import BatchPlan
from rampcli.data.indexed import bin_of, idx_of, write_index
from rampcli.data.loader import Loader, Reading
from rampcli.data.sources import open_corpora
from rampcli.runs.worker_defaults import AT_START
from rampcli.settings.config import Config

VOCAB_SIZE = 50_257
DOCUMENT_TOKENS = 700
MICRO_BATCH_SIZE = 8
PIECE_TOKENS = 1 << 22
Way = Callable[[int], None]
"""Reads a number of samples, from where the last call stopped."""


def write_corpus(prefix: Path, tokens: int) -> None:
    """Writes random tokens in documents of random lengths."""
    generator = np.random.default_rng(1)
    lengths = generator.geometric(1 / DOCUMENT_TOKENS, size=2 * tokens // DOCUMENT_TOKENS + 2)
    lengths = lengths[: int(np.searchsorted(np.cumsum(lengths), tokens)) + 1]
    lengths[-1] -= lengths.sum() - tokens
    with bin_of(prefix).open("wb") as file:
        for first in range(0, tokens, PIECE_TOKENS):
            piece = generator.integers(
                VOCAB_SIZE, size=min(PIECE_TOKENS, tokens - first), dtype=np.uint16
            )
            file.write(piece.tobytes())
    write_index(idx_of(prefix), np.dtype("<u2"), lambda: iter([lengths]))


def read_memmap(prefix: Path, sequence_length: int, *, accumulate: int) -> Way:
    """Returns a function that reads windows at random places, in steps of micro batches."""
    stored = np.memmap(bin_of(prefix), dtype="<u2", mode="r")
    generator = np.random.default_rng(2)

    def read(samples: int) -> None:
        shape = (samples // (MICRO_BATCH_SIZE * accumulate), accumulate, MICRO_BATCH_SIZE)
        places = generator.integers(len(stored) - sequence_length - 1, size=shape)
        for step in places.tolist():
            _ = [micro_batch(firsts) for firsts in step]

    def micro_batch(firsts: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, labels = (np.empty((len(firsts), sequence_length), dtype=np.int64) for _ in "tl")
        for row, first in enumerate(firsts):
            window = stored[first : first + sequence_length + 1]
            tokens[row], labels[row] = window[:-1], window[1:]
        return torch.from_numpy(tokens), torch.from_numpy(labels)

    return read


def read_megatron(prefix: Path, sequence_length: int, cache: Path) -> Way:
    """Returns a function that reads Megatron-core's samples as its loaders do."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.utils import Split

    class Words:
        vocab_size, eod, pad, unique_identifiers = VOCAB_SIZE, 0, -1, {"class": "Words"}

    config = GPTDatasetConfig(
        random_seed=1,
        sequence_length=sequence_length,
        blend=([str(prefix)], None),
        split="1,0,0",
        path_to_cache=str(cache),
        tokenizer=Words(),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    low_level = GPTDataset.build_low_level_dataset(str(prefix), config)
    documents = np.arange(GPTDataset.numel_low_level_dataset(low_level), dtype=np.int32)
    dataset = GPTDataset(low_level, str(prefix), documents, None, Split.train, config)
    ahead: Iterator[int] = iter(range(len(dataset)))

    def read(samples: int) -> None:
        for _ in range(samples):
            dataset[next(ahead)]

    return read


def loader_of(prefix: Path, sequence_length: int) -> Loader:
    """Returns the loader of a run with one process."""
    config = Config()
    config.data.source, config.data.path, config.data.split = (
        "indexed",
        str(prefix),
        [1, 0, 0],
    )
    config.data.sequence_length, config.trainer.val_samples = sequence_length, 0
    config.model.vocab_size = VOCAB_SIZE
    blend = open_corpora(config).training
    return Loader(blend, reading=Reading(rank=0, ranks=(0,)), device=torch.device("cpu"))


def read_steps(loader: Loader, *, accumulate: int, ahead: bool) -> Way:
    """Returns a function that reads whole steps as tensors, in the order of training."""
    plan = BatchPlan.divide(
        MICRO_BATCH_SIZE * accumulate, micro_batch_size=MICRO_BATCH_SIZE, data_parallel_size=1
    )
    consumed = 0

    def read(samples: int) -> None:
        nonlocal consumed
        for _ in range(samples // plan.global_batch_size):
            if ahead:
                loader.read(consumed, plan)
            else:
                for share in loader.read_micro_batches(consumed, plan):
                    for each in share:
                        torch.from_numpy(each.tokens), torch.from_numpy(each.labels)
            consumed += plan.global_batch_size
        wait(loader._ahead.values())  # which must not disturb the next way

    return read


def measure(
    ways: dict[str, Way], *, rounds: int, samples: int
) -> dict[str, list[tuple[float, float]]]:
    """Returns the seconds of each way in each round: by the clock, and of processor time."""
    for read in ways.values():
        read(samples)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    names = list(ways)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            began, used = time.perf_counter(), time.process_time()
            ways[name](samples)
            found[name].append((time.perf_counter() - began, time.process_time() - used))
    return found


def compare(prefix: Path, sequence_length: int, *, rounds: int, samples: int) -> None:
    """Prints the table of one sequence length."""
    ways = {
        "memmap, 1": read_memmap(prefix, sequence_length, accumulate=1),
        "memmap, 32": read_memmap(prefix, sequence_length, accumulate=32),
        "GPTDataset": read_megatron(
            prefix, sequence_length, prefix.parent / f"cache_{sequence_length}"
        ),
        "read, 1": read_steps(loader_of(prefix, sequence_length), accumulate=1, ahead=False),
        "read, 32": read_steps(loader_of(prefix, sequence_length), accumulate=32, ahead=False),
        "ahead, 32": read_steps(loader_of(prefix, sequence_length), accumulate=32, ahead=True),
    }
    found = measure(ways, rounds=rounds, samples=samples)
    print(f"\nsequence length {sequence_length}: {rounds} rounds of {samples} samples\n")
    print(f"{'':<12} {'samples/s':>10} {'of memmap':>10} {'of GPTDataset':>14}", end="")
    print(f" {'processor ns/token':>19} {'of memmap':>10} {'of GPTDataset':>14}")
    for name, mine in found.items():
        memmap = found["memmap, 32" if name.endswith("32") else "memmap, 1"]
        for at, unit in enumerate((samples, 1e-9 * samples * sequence_length)):
            middle = statistics.median(each[at] for each in mine)
            shown = f"{middle / unit:19.2f}" if at else f"{name:<12} {unit / middle:10,.0f}"
            ratios = [
                statistics.median(two[at] / one[at] for one, two in zip(mine, other, strict=True))
                for other in (memmap, found["GPTDataset"])
            ]
            print(f"{shown} {ratios[0]:10.2f} {ratios[1]:14.2f}", end="\n" if at else " ")


def main() -> None:
    """Writes the corpus and prints a table for each sequence length."""
    parser = argparse.ArgumentParser(description="Measure how fast samples are read.")
    parser.add_argument("--tokens", type=int, default=200_000_000)
    parser.add_argument("--sequence-lengths", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--round-samples",
        type=int,
        default=4096,
        help="samples of 1024 tokens in a round, in steps of 256; fewer of longer ones",
    )
    parser.add_argument("--folder", help="where to write the corpus (default: a temporary folder)")
    given = parser.parse_args()
    if AT_START.keys() - os.environ.keys():
        os.execve(sys.executable, [sys.executable, *sys.argv], AT_START | os.environ)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        prefix = Path(folder) / "corpus"
        began = time.perf_counter()
        write_corpus(prefix, given.tokens)
        size = bin_of(prefix).stat().st_size
        bin_of(prefix).read_bytes()  # into the page cache
        processors = len(os.sched_getaffinity(0))
        print(
            f"{given.tokens:,} tokens, {size:,} bytes, written in"
            f" {time.perf_counter() - began:.1f} s; {processors} processors"
        )
        for sequence_length in given.sequence_lengths:
            most = given.tokens // sequence_length // (given.rounds + 1)
            samples = min(given.round_samples * 1024 // sequence_length, most) // 256 * 256
            if samples < 256:
                raise SystemExit(
                    f"{given.tokens:,} tokens are too few for {given.rounds + 1} rounds of 256"
                    f" samples of {sequence_length}"
                )
            compare(prefix, sequence_length, rounds=given.rounds, samples=samples)


if __name__ == "__main__":
    main()
