"""Checks the launch settings."""

from collections.abc import Callable
from typing import Any

from rampcli.config.schema import Config
from rampcli.errors import UsageError, set_to
from rampcli.launchers import declarations


def check_elastic(config: Config) -> None:
    """Checks that elastic training needs no more nodes than there are."""
    launch, num_nodes = config.launch, config.trainer.num_nodes
    if launch.elastic and launch.min_nodes > num_nodes:
        raise UsageError(
            f"launch.min_nodes={launch.min_nodes} is above trainer.num_nodes={num_nodes}",
            keys=("launch.min_nodes", "trainer.num_nodes"),
            remedy=set_to("launch.min_nodes", num_nodes, note=" or less"),
        )


LAUNCH_CHECKS: tuple[Callable[[Config], Any], ...] = (
    check_elastic,
    *(check for declaration in declarations().values() for check in declaration.checks),
)
