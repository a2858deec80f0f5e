"""A toy launcher: its jobs wait in a folder until somebody runs their scripts."""

from dataclasses import dataclass

from rampcli.errors import UsageError
from rampcli.plugins.launchers import Declaration
from rampcli.settings.facts import NOTHING, whole_run
from rampcli.settings.fields import setting


@dataclass(kw_only=True, slots=True)
class ToyConfig:
    """Options of the toy's jobs."""

    shelf: str = setting("upper", "Shelf on which jobs wait.", whole_run(NOTHING))


def check_shelf(config):
    """Checks that there is such a shelf."""
    if config.launch.toy.shelf not in ("upper", "lower"):
        yield UsageError(
            "there is no such shelf",
            keys=("launch.toy.shelf",),
            remedy="launch.toy.shelf=upper or lower",
        )


DECLARATION = Declaration(about="nowhere by itself", section=ToyConfig, checks=(check_shelf,))
