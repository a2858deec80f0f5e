"""Reads the throughput that an earlier run measured, from which a plan estimates hours."""

from collections import defaultdict
from statistics import median

from rampcli.config import snapshot
from rampcli.config.schema import Config
from rampcli.config.settings import leaves
from rampcli.errors import UsageError
from rampcli.run_directory import RunDirectory, read_rows

SAME_KEYS = (
    "model.num_",
    "model.hidden_size",
    "model.ffn_hidden_size",
    "model.vocab_size",
    "data.sequence_length",
    "data.micro_batch_size",
)
"""Beginnings of the keys that decide throughput: both runs must have the same values."""
WARM_UP_STEPS = 3
"""Steps at the start of a stage that are not counted, while memory and caches warm up."""


def measured_points(run: RunDirectory, config: Config) -> tuple[tuple[int, float], ...]:
    """Returns pairs of micro batches per rank and the median tokens per second per GPU.

    Args:
        run: earlier run.
        config: resolved settings of the run that is planned. Model, sequence length and micro batch
            size must be those of the earlier run.

    Raises:
        UsageError: the earlier run has too few steps, or another model, sequence length or micro
            batch size.
    """
    rates = defaultdict(list)
    steps: dict[tuple[int, int], int] = defaultdict(int)
    for row in read_rows(run.metrics):
        steps[row["stage"], row["world_size"]] += 1
        if steps[row["stage"], row["world_size"]] > WARM_UP_STEPS:
            rates[row["accumulate_grad_batches"]].append(row["tokens_per_s"] / row["world_size"])
    if not rates:
        raise UsageError(
            f"--measured {run.path}: no stage has more than {WARM_UP_STEPS} steps",
            remedy="the directory of a longer run",
        )
    theirs, ours = dict(leaves(snapshot.read(run.config))), dict(leaves(config))
    for key in ours:
        if (
            key.startswith(SAME_KEYS)
            and theirs[key] is not None
            and ours[key] is not None
            and theirs[key] != ours[key]
        ):
            raise UsageError(
                f"--measured {run.path}: that run had {key}={theirs[key]}, and this one has"
                f" {ours[key]}",
                keys=(key,),
                remedy=f"the directory of a run with {key}={ours[key]}",
            )
    return tuple(
        (micro_batches, round(median(found), 1)) for micro_batches, found in sorted(rates.items())
    )
