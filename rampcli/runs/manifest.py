"""Manifests of checkpoints: finds checkpoints, checks their files, removes old ones. No torch.

A checkpoint is a folder of tensor files and a manifest.json that gives the size and checksum of
each. The manifest is written last, so a folder without one is an interrupted save.
"""

import os
import re
import shlex
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rampcli.errors import DamagedFileError, RampcliError
from rampcli.files.checksums import checksum_fits
from rampcli.files.records import COUNT, read_json
from rampcli.runs.directory import ASIDE, RunDirectory, name_of_step, step_of

MANIFEST = "manifest.json"
SETTING = (str, bool, int, float, None, [(str, int, float)])
FILE = {"bytes": COUNT, "sums?": str, "sha256?": str}
CHECKPOINT_SHAPE = {
    "step": COUNT,
    "consumed_samples": COUNT,
    "order_hash": (str, None),
    "recent?": [[float]],
    "corpus": str,
    "settings": {...: SETTING},
    "phase?": {
        "name": str,
        **dict.fromkeys(("number", "first_sample", "first_step", "first_token"), COUNT),
        "reading": [[COUNT]],
    },
    "files": {...: FILE},
}
"""Shape of a manifest, in the notation of `rampcli.files.records`. A manifest may hold more."""
NOT_NAMED = "has no checkpoint that is named after its step"
"""What is wrong with a run for which `name_remedy` has a command."""
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint folder and the content of its manifest."""

    path: Path
    manifest: dict[str, Any]

    @property
    def step(self) -> int:
        """Optimiser steps taken."""
        return int(self.manifest["step"])

    @property
    def consumed_samples(self) -> int:
        """Samples consumed."""
        return int(self.manifest["consumed_samples"])

    @property
    def files(self) -> dict[str, dict[str, Any]]:
        """Facts about the other files, by name: `bytes`, and a checksum in `sums` or `sha256`."""
        return dict(self.manifest["files"])

    def damage(self, *, by_checksum: bool = True) -> str | None:
        """Returns why a file differs from the manifest, or None if all files match.

        Args:
            by_checksum: read the files and compare checksums; otherwise only sizes are compared.
        """
        for name, file in self.files.items():
            path = self.path / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != file["bytes"]:
                return f"{name} has {path.stat().st_size} bytes instead of {file['bytes']}"
            if by_checksum and not checksum_fits(path, file):
                return f"{name} does not have the checksum in its manifest"
        return None


def read_checkpoint(folder: Path) -> Checkpoint:
    """Reads the manifest of a checkpoint folder.

    Raises:
        FileNotFoundError: the folder has no manifest.
        DamagedFileError: the manifest has another shape or step, or names a file outside the folder
            or without a checksum.
    """
    path = folder / MANIFEST
    manifest = read_json(path, CHECKPOINT_SHAPE)
    if manifest["step"] != step_of(folder):
        own = folder.with_name(name_of_step(manifest["step"]))
        raise DamagedFileError(
            f"{path} is damaged: it is of step {manifest['step']}",
            remedy=None if os.path.lexists(own) else _to_rename(folder, own),
        )
    for name, facts in manifest["files"].items():
        if not _PLAIN_NAME.fullmatch(name):
            raise DamagedFileError(
                f"{path} is damaged: {name!r} is not the name of a file in its folder"
            )
        if not {"sums", "sha256"} & facts.keys():
            raise DamagedFileError(f"{path} is damaged: it has no checksum of {name}")
    if any(len(pair) != 2 for pair in manifest.get("recent", ())):
        raise DamagedFileError(f"{path} is damaged: recent is not a list of pairs")
    return Checkpoint(folder, manifest)


def read_checkpoints(run: RunDirectory) -> tuple[list[Checkpoint], dict[int, DamagedFileError]]:
    """Returns complete checkpoints and the errors of damaged manifests by step, oldest first."""
    found, damaged = [], dict[int, DamagedFileError]()
    for folder in run.checkpoint_folders():
        try:
            found.append(read_checkpoint(folder))
        except FileNotFoundError:  # an interrupted save
            continue
        except DamagedFileError as error:
            damaged[step_of(folder)] = error
    return found, damaged


def name_remedy(run: RunDirectory, *, step: int | None = None) -> str | None:
    """Returns the command that names a renamed checkpoint after its step again, or None.

    Folders of saves that are not complete are not considered.

    Args:
        step: step of the checkpoint, or None for the newest one.
    """
    found = dict[int, Path]()
    with suppress(OSError):
        for folder in run.checkpoints.iterdir():
            with suppress(RampcliError, OSError):
                if folder.suffix == ASIDE or folder.is_symlink():
                    continue
                number = read_json(folder / MANIFEST, CHECKPOINT_SHAPE)["step"]
                if not os.path.lexists(run.checkpoint_folder(number)):
                    found[number] = folder
    wanted = max(found, default=None) if step is None else step
    if wanted not in found:
        return None
    return _to_rename(found[wanted], run.checkpoint_folder(wanted))


def _to_rename(folder: Path, own: Path) -> str:
    return f"mv {shlex.quote(str(folder))} {shlex.quote(str(own))}"


def complete_checkpoints(run: RunDirectory) -> list[Checkpoint]:
    """Returns the checkpoints that have a valid manifest, oldest first. Files are not checked.

    Raises:
        DamagedFileError: there are manifests, but all of them are damaged.
    """
    found, damaged = read_checkpoints(run)
    if damaged and not found:
        raise damaged[max(damaged)]
    return found


def newest_checkpoint(run: RunDirectory) -> Checkpoint | None:
    """Returns the newest of the complete checkpoints, or None, and reads no older manifest.

    Raises:
        DamagedFileError: as `complete_checkpoints`.
    """
    damaged = None
    for folder in reversed(run.checkpoint_folders()):
        try:
            return read_checkpoint(folder)
        except FileNotFoundError:  # an interrupted save
            continue
        except DamagedFileError as error:
            damaged = damaged or error
    if damaged is not None:
        raise damaged
    return None


def consumed_samples(run: RunDirectory) -> int:
    """Returns the samples consumed at the newest complete checkpoint, or 0 if there is none.

    Raises:
        DamagedFileError: as `complete_checkpoints`.
    """
    newest = newest_checkpoint(run)
    return 0 if newest is None else newest.consumed_samples


def remove_old_checkpoints(run: RunDirectory, *, keep_last: int) -> None:
    """Removes interrupted saves and every checkpoint older than the last `keep_last` complete ones.

    Nothing but interrupted saves is removed while there are fewer complete checkpoints than that.
    """
    unfinished = [path for path in run.checkpoint_folders() if not (path / MANIFEST).is_file()]
    for path in (*run.checkpoints.glob(f"step_*{ASIDE}"), *unfinished):
        run.remove_tree(path)
    complete = complete_checkpoints(run)
    if len(complete) < keep_last:
        return
    for folder in run.checkpoint_folders():
        if step_of(folder) < complete[-keep_last].step:
            _remove(run, folder)


def remove_checkpoints_from(run: RunDirectory, step: int) -> None:
    """Removes the checkpoints of `step` and of later steps.

    They could not be loaded, so the run resumed before them and took their steps again.
    """
    for folder in run.checkpoint_folders():
        if step_of(folder) >= step:
            _remove(run, folder)


def _remove(run: RunDirectory, folder: Path) -> None:
    """Removes a checkpoint, manifest first: a half-removed checkpoint must not look complete."""
    if not folder.is_symlink():
        run.remove_file(folder / MANIFEST)
    run.remove_tree(folder)
