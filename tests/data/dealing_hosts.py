"""Compares samples that ranks receive from their readers with samples that they read themselves."""

from pathlib import Path

import numpy as np
import torch

from rampcli.batch.plan import BatchPlan
from rampcli.data.loader import Loader, MicroBatch, Reading, build_reading
from rampcli.data.sources import open_corpora
from rampcli.errors import RampcliError
from rampcli.settings.config import Config
from rampcli.worker.load import agreed_fingerprints
from ranks import joined

CASES = [
    {"factor": factor, "devices": devices, "data_ranks": data_ranks, "masked": masked}
    for factor, devices, data_ranks, masked in [
        (4, 1, [0, 1, 2, 3], True),
        (4, 1, [0, 1, 2, 3], False),
        (2, 1, [0, 1, 2, 3], True),
        (2, 2, [0, 1, 2, 3], True),
        (2, 1, [0, 0, 1, 1], True),
        (None, 1, [0, 1, 2, 3], True),
    ]
]
CPU = torch.device("cpu")


def plans(ranks: int) -> list[tuple[int, BatchPlan]]:
    """Returns steps of a ramp, with a jump back and one that was not prefetched."""
    small, large = (
        BatchPlan.divide(2 * ranks * steps, micro_batch_size=2, data_parallel_size=ranks)
        for steps in (1, 3)
    )
    size = small.global_batch_size
    return [
        (0, small),
        (size, small),
        (2 * size, large),
        (5 * size, large),
        (size, small),
        (1000, large),
    ]


def planes(micro_batches: list[MicroBatch]) -> list[list[list[list[int]]] | None]:
    """Returns the tokens, labels and positions of micro batches as lists."""
    return [
        None if plane is None else plane.tolist()
        for part in micro_batches
        for plane in (part.tokens, part.labels, part.positions)
    ]


def everything(loader: Loader, validation: Loader, ranks: int) -> list[object]:
    """Returns the samples that a rank receives in some steps and in two validations."""
    got: list[object] = []
    for first, plan in plans(ranks):
        batch = loader.read(first, plan)
        got.append((batch.samples.tolist(), batch.valid_tokens, planes(batch.micro_batches)))
    for samples in (5, 2 * ranks):
        got.append(planes(list(validation.read_first(samples, plans(ranks)[0][1]))))
    return got


def agreement(fingerprints: tuple[str, ...] | None) -> tuple[str, ...] | str:
    """Returns the fingerprints that the ranks agree on, or the error message."""
    try:
        return agreed_fingerprints(fingerprints)
    except RampcliError as error:
        return error.message


def read_case(case: dict, texts: Path, rank: int) -> dict:
    """Runs a case and returns its results on this rank."""
    config = Config()
    config.data.source, config.data.path = "text", str(texts)
    config.data.split, config.data.sequence_length, config.trainer.val_samples = [1, 1, 0], 7, 8
    config.data.document_mask, config.data.expansion_factor_real_data = (
        case["masked"],
        case["factor"],
    )
    config.model.vocab_size, config.trainer.devices = 256, case["devices"]
    data_ranks = case["data_ranks"]
    reading = build_reading(config, data_ranks)
    whole = open_corpora(config)
    training, validation = (
        (whole.training, whole.validation[None]) if reading.reads else (None, None)
    )
    alone = Reading(rank=data_ranks[rank], ranks=(data_ranks[rank],))
    ranks = 1 + max(data_ranks)
    dealt, own = (
        everything(
            Loader(one, reading=whom, device=CPU),
            Loader(other, reading=whom, device=CPU),
            ranks,
        )
        for one, other, whom in (
            (training, validation, reading),
            (whole.training, whole.validation[None], alone),
        )
    )
    first = Loader(training, reading=reading, device=CPU).read(0, plans(ranks)[0][1])
    return case | {
        "reads_for": list(reading.ranks),
        "is_equal": dealt == own,
        "is_masked": first.micro_batches[0].positions is not None,
        "types": sorted(
            {
                str(plane.dtype)
                for part in first.micro_batches
                for plane in (part.tokens, part.labels, part.positions)
                if plane is not None
            }
        ),
        "samples": [
            first.samples.tolist(),
            np.unique(first.micro_batches[0].tokens.numpy()).tolist(),
        ],
        "agreed": agreement(whole.training.fingerprints if reading.reads else None)
        == whole.training.fingerprints,
    }


def disagreements(rank: int) -> list[tuple[str, ...] | str]:
    """Checks fingerprints: all ranks read the same, one reads alone, one reads something else."""
    same, other = ("5a" * 32, "5c" * 32), ("5b" + "5a" * 31, "5c" * 32)
    return [
        agreement(same),
        agreement(same if rank == 2 else None),
        agreement(other if rank == 3 else same),
        agreement({0: same, 3: other}.get(rank)),
    ]


def read_cases(texts: Path) -> dict:
    """Returns the samples that this rank reads in each case.

    Args:
        texts: folder of texts, one document in each file.
    """
    with joined() as (rank, _):
        return {
            "cases": [read_case(case, texts, rank) for case in CASES],
            "fingerprints": disagreements(rank),
        }
