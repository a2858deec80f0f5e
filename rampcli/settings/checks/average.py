"""Checks the settings for averages of the weights."""

from collections.abc import Iterator

from rampcli.batch.averages import LAST, MERGE_KEY, merge_start, merged_checkpoints
from rampcli.errors import UsageError, set_to
from rampcli.settings import Config
from rampcli.settings.rl import is_rl

KEEP_KEY = "checkpoint.keep_last"


def check_merge(config: Config) -> Iterator[UsageError]:
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
            f"{MERGE_KEY}={text} needs {count} checkpoints, and {KEEP_KEY}={kept} keeps fewer",
            keys=(MERGE_KEY, KEEP_KEY),
            remedy=[
                set_to(KEEP_KEY, count),
                set_to(MERGE_KEY, f"{LAST}{kept}" if kept > 1 else None),
            ],
        )


CHECKS = (check_merge,)
