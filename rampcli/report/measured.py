"""What an earlier run measured, for the hours of a plan."""

from collections import defaultdict
from statistics import median

from rampcli.config import snapshot
from rampcli.config.schema import Config
from rampcli.config.settings import leaves
from rampcli.errors import UsageError
from rampcli.run_directory import RunDirectory, read_rows

SAME = (
    "model.num_",
    "model.hidden_size",
    "model.ffn_hidden_size",
    "model.vocab_size",
    "data.sequence_length",
    "data.micro_batch_size",
)
WARMING_UP = 3
"""Steps at the start of a stage that are not counted."""


def measured_points(run: RunDirectory, config: Config) -> tuple[tuple[int, float], ...]:
    """Tokens per second per GPU at micro batches per rank, as medians over the steps of an earlier run.

    Args:
        run: its directory.
        config: the resolved settings that the figures are for; model, sequence and micro batch have to be the same.

    Raises:
        UsageError: there are no figures, or they are another model's.
    """
    rates = defaultdict(list)
    steps: dict[tuple[int, int], int] = defaultdict(int)
    for row in read_rows(run.metrics):
        steps[row["stage"], row["world_size"]] += 1
        if steps[row["stage"], row["world_size"]] > WARMING_UP:
            rates[row["accumulate_grad_batches"]].append(row["tokens_per_s"] / row["world_size"])
    if not rates:
        raise UsageError(
            f"--measured {run.path}: no stage has more than {WARMING_UP} steps there",
            remedy="the directory of a longer run",
        )
    theirs, ours = dict(leaves(snapshot.read(run.config))), dict(leaves(config))
    for key in ours:
        if (
            key.startswith(SAME)
            and theirs[key] is not None
            and ours[key] is not None
            and theirs[key] != ours[key]
        ):
            raise UsageError(
                f"--measured {run.path}: that run had {key}={theirs[key]}, and this one has {ours[key]}",
                keys=(key,),
                remedy="the directory of a run of the same model",
            )
    return tuple(
        (micro_batches, round(median(found), 1)) for micro_batches, found in sorted(rates.items())
    )
