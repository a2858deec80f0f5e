"""Gives a checkpoint to another run, which goes on from it with other settings. No torch."""

import os
from collections.abc import Mapping
from typing import Any

from rampcli.errors import NoCheckpointError
from rampcli.files.guarded_folder import open_to_read
from rampcli.runs.directory import RunDirectory
from rampcli.runs.manifest import MANIFEST, Checkpoint


def branch_off(checkpoint: Checkpoint, run: RunDirectory, *, settings: Mapping[str, Any]) -> None:
    """Links the files of a checkpoint into another run, or copies them where links do not work.

    The manifest is written last, so an interrupted call leaves no checkpoint.

    Args:
        checkpoint: of a run with the same tensors. It stays as it is.
        run: the other run, whose directory exists.
        settings: `snapshot.identity` of the other run.

    Raises:
        NoCheckpointError: the checkpoint was removed meanwhile, as a run that trains does.
    """
    folder = run.checkpoint_folder(checkpoint.step)
    run.make_folder(folder)
    try:
        for name in checkpoint.files:
            run.remove_file(folder / name)
            try:
                os.link(checkpoint.path / name, folder / name, follow_symlinks=False)
            except FileNotFoundError:
                raise
            except OSError:  # another disk, or one without hard links
                with open_to_read(checkpoint.path / name) as file:
                    run.replace(folder / name, file)
    except FileNotFoundError as error:
        raise NoCheckpointError(
            f"{checkpoint.path} was removed while branches were made from it",
            remedy="the same command again, which takes the newest checkpoint",
        ) from error
    run.write_json(folder / MANIFEST, {**checkpoint.manifest, "settings": dict(settings)})
