"""Whether the checkpoints that a run keeps at once fit on the disk of its run directory."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from rampcli.errors import set_to
from rampcli.estimate.model_size import checkpoint_bytes
from rampcli.launch.doctor.check import format_bytes
from rampcli.planning.run_plan import Resolved
from rampcli.runs.directory import RunDirectory
from rampcli.runs.manifest import complete_checkpoints


@dataclass(frozen=True, kw_only=True, slots=True)
class DiskSpace:
    """The free space of a disk, and what a run will write there.

    Attributes:
        free_bytes: bytes that this user may still write.
        checkpoint_bytes: estimated size of one checkpoint.
        present: complete checkpoints that the run has, of those that it keeps.
        keep_last: checkpoints that it keeps.
    """

    free_bytes: int
    checkpoint_bytes: int
    present: int
    keep_last: int

    @property
    def more(self) -> int:
        """Checkpoints that must fit: the oldest is deleted only after the newest is complete."""
        return self.keep_last + 1 - self.present

    @property
    def fitting(self) -> int:
        """Checkpoints that fit into the free space."""
        return self.free_bytes // self.checkpoint_bytes

    def describe(self) -> str:
        """Returns the free space, and the checkpoints that will fit or not."""
        needed = f"{self.more} more checkpoints" if self.more > 1 else "one more checkpoint"
        return (
            f"{format_bytes(self.free_bytes)} free; {needed} of"
            f" {format_bytes(self.checkpoint_bytes)} will"
            f" {'fit' if self.fitting >= self.more else 'not fit'}"
        )

    def remedy(self) -> str:
        """Returns what to do if not all checkpoints fit."""
        disk = f"run_dir= on a disk with {format_bytes(self.more * self.checkpoint_bytes)} free"
        fewer = self.present + self.fitting - 1
        return f"{disk}, or {set_to('checkpoint.keep_last', fewer)}" if fewer > 0 else disk


def disk_space(resolved: Resolved) -> DiskSpace:
    """Returns the free space where the run directory is or will be, and what the run needs.

    Raises:
        OSError: the disk cannot be asked.
    """
    keep_last = resolved.config.checkpoint.keep_last
    return DiskSpace(
        free_bytes=shutil.disk_usage(existing_part(resolved.run_dir)).free,
        checkpoint_bytes=checkpoint_bytes(resolved.config),
        present=min(keep_last, len(complete_checkpoints(RunDirectory(resolved.run_dir)))),
        keep_last=keep_last,
    )


def existing_part(path: Path) -> Path:
    """Returns the path, or the nearest folder above it that exists, as an absolute path."""
    # lexists, because exists fails below a folder that cannot be entered, and misses broken links.
    return next(
        above for above in (path.absolute(), *path.absolute().parents) if os.path.lexists(above)
    )
