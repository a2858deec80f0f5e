"""Checks settings on their own and against each other, before anything is planned.

A check yields an error for each misfit that it finds. Each file has the checks of some sections.
"""

from collections.abc import Callable, Iterator

from rampcli.errors import UsageError
from rampcli.settings import Config
from rampcli.settings.checks import average, data, model, optim, rl, run, splits, watch

CHECKS: tuple[Callable[[Config], Iterator[UsageError]], ...] = (
    *run.CHECKS,
    *model.CHECKS,
    *data.CHECKS,
    *splits.CHECKS,
    *rl.CHECKS,
    *watch.CHECKS,
    *average.CHECKS,
)
"""Every check of settings against each other. They rely on `ranges.check_ranges`."""
CHECKS_OF_WORDS = (rl.check_reward, optim.check_used, optim.check_coupled)
"""Further checks of what a user sets now, which a snapshot may contradict. They also take a
function that returns whether the user has set a key."""
