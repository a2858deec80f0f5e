"""Checks that a checkpoint fits the settings and corpus of a run that resumes. Imports no torch.

World size, mesh and batch sizes may differ: a checkpoint loads on any number of ranks.
"""

from collections.abc import Mapping
from typing import Any

from rampcli.config import snapshot
from rampcli.config.schema import Config
from rampcli.errors import ForeignCheckpointError
from rampcli.runs.manifest import Checkpoint

REMEDY = "another name= or run_dir="


def check_compatible(
    checkpoint: Checkpoint, *, settings: Mapping[str, Any], corpus: tuple[str, ...] = ()
) -> None:
    """Checks that a run may resume from a checkpoint.

    Args:
        checkpoint: the checkpoint. Settings that its version did not have count as the default.
            Two kinds of settings are not compared if the checkpoint lacks them: those of
            reinforcement learning, and those of an extension, which its name implies.
        settings: `snapshot.identity` of the run's configuration.
        corpus: fingerprints of the run's corpora: the one that checkpoints get, and the one that
            earlier versions gave them. Empty if the corpora are not open.

    Raises:
        ForeignCheckpointError: it was trained with other settings or on another corpus.
    """
    unrecorded = {key: value for key, value in settings.items() if key.startswith("rl.")}
    saved = {**snapshot.identity(Config()), **unrecorded, **checkpoint.manifest["settings"]}
    if differing := [key for key in settings if key in saved and saved[key] != settings[key]]:
        shown = [f"{key}={saved[key]} (here {settings[key]})" for key in differing[:3]]
        if len(differing) > 3:
            shown.append("...")
        run_dir = checkpoint.path.parents[1]
        raise ForeignCheckpointError(
            f"the checkpoints in {run_dir} belong to another configuration: {', '.join(shown)}",
            keys=tuple(differing),
            remedy=f"the settings that they were saved with, or {REMEDY}",
        )
    if corpus and checkpoint.manifest["corpus"] not in corpus:
        raise ForeignCheckpointError(
            f"{checkpoint.path} was trained on another corpus than this run reads",
            remedy=f"the corpus of the checkpoint, or {REMEDY}",
        )
