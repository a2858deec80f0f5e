"""Settings for averages of the weights."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rampcli.batch.averages import LAST, MERGE_KEY, merge_start, merged_checkpoints
from rampcli.errors import UsageError, set_to
from rampcli.settings.attributes import Section
from rampcli.settings.facts import COST, whole_run
from rampcli.settings.fields import Keyed, keyed, setting, settings_class
from rampcli.settings.rl import is_rl
from rampcli.settings.trainer import CheckpointConfig

if TYPE_CHECKING:
    from rampcli.settings.config import Config


@keyed("average.")
@settings_class(kw_only=True)
class AverageConfig(Section):
    """Averages of the weights, which are saved beside the weights and do not change training."""

    ema: Keyed[int | None] = setting(
        None,
        "Half-life of an exponential moving average of the weights: after this many tokens, the"
        " weights of a step count half as much in the average, whatever the batch size. The average"
        " is kept in fp32. `null`: no average.",
        whole_run(COST).unread_by_rl(", whose steps have no fixed number of tokens"),
        unit="tokens",
        at_least=1,
        example=50_000_000,
    )
    merge: Keyed[str | None] = setting(
        None,
        "Mean of the weights. `from:7.5T`: the mean over all steps from a position on. Each step's"
        " weights count by its tokens. The position is in tokens, or is `from:samples:2B` or"
        " `from:steps:10000`. `last:8`: the mean of the last eight checkpoints, so"
        " `checkpoint.keep_last` must be at least 8. `null`: no mean.",
        whole_run(COST),
        example="last:2",
    )


def check_merge(config: "Config") -> Iterator[UsageError]:
    """Checks that a mean can be computed, and that its checkpoints are kept."""
    text, kept = config.average.merge, config.checkpoint.keep_last
    if text is None:
        return
    try:
        if merge_start(text) is not None:
            if is_rl(config):
                yield UsageError(
                    f"{MERGE_KEY}={text} does not apply to reinforcement learning, whose steps have"
                    " no fixed number of tokens",
                    keys=(MERGE_KEY,),
                    remedy=set_to(MERGE_KEY, f"{LAST}2"),
                )
            return
        count = merged_checkpoints(text)
    except UsageError as error:
        yield error
        return
    if count > kept:
        yield UsageError(
            f"{MERGE_KEY}={text} needs {count} checkpoints, and"
            f" {CheckpointConfig.keep_last}={kept} keeps fewer",
            keys=(MERGE_KEY, CheckpointConfig.keep_last),
            remedy=[
                set_to(CheckpointConfig.keep_last, count),
                set_to(MERGE_KEY, f"{LAST}{kept}" if kept > 1 else None),
            ],
        )
