"""Checks the settings for watching a run."""

from collections.abc import Callable
from typing import Any

from rampcli.config.schema import Config
from rampcli.config.settings import shown
from rampcli.errors import UsageError
from rampcli.tracking.tracker import TRACKERS

TRACKERS_KEY = "logging.trackers"


def check_trackers(config: Config) -> None:
    """Checks that the trackers exist and that each is named once."""
    names = config.logging.trackers
    for name in names:
        if name not in TRACKERS:
            raise UsageError(
                f"{TRACKERS_KEY}={shown(names)}: there is no tracker {name!r}",
                keys=(TRACKERS_KEY,),
                remedy=f"some of {', '.join(TRACKERS)}: {TRACKERS_KEY}={shown(list(TRACKERS))}",
            )
    if len({*names}) < len(names):
        raise UsageError(
            f"{TRACKERS_KEY}={shown(names)} names a tracker twice",
            keys=(TRACKERS_KEY,),
            remedy=f"{TRACKERS_KEY}={shown(list(dict.fromkeys(names)))}",
        )


WATCH_CHECKS: tuple[Callable[[Config], Any], ...] = (check_trackers,)
