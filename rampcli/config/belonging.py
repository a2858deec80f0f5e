"""Which settings a checkpoint has to share with the run that goes on from it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rampcli.config import snapshot
from rampcli.config.schema import Config
from rampcli.errors import ForeignCheckpointError


def check_settings(theirs: Mapping[str, Any], ours: Mapping[str, Any], *, run_dir: Path) -> None:
    """Check that the checkpoints of a run belong to its configuration.

    Args:
        theirs: the `settings` of a checkpoint's manifest. A setting that is newer than the checkpoint had its default.
        ours: `snapshot.identity` of the configuration.
        run_dir: the run directory, for the message.

    Raises:
        ForeignCheckpointError: they differ.
    """
    theirs = {**snapshot.identity(Config()), **theirs}
    if differing := [key for key in ours if theirs[key] != ours[key]]:
        shown = ", ".join(f"{key}={theirs[key]} (here {ours[key]})" for key in differing[:3])
        raise ForeignCheckpointError(
            f"the checkpoints in {run_dir} belong to another configuration: {shown}{', ...' if len(differing) > 3 else ''}",
            keys=tuple(differing),
            remedy="the settings that it was trained with, or another name= or run_dir=",
        )
