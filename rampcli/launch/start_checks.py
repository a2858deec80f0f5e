"""What a run needs to start: one list of checks for the start, for dry runs and for the doctor.

A check raises a RampcliError if the run cannot start.
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rampcli.checkpoint.compatibility import check_ended_phases, check_resumable
from rampcli.checkpoint.starting_weights import (
    check_starting_model,
    check_starting_weights,
    check_tensors,
)
from rampcli.config import snapshot
from rampcli.config.layers import sources_named, stack_of
from rampcli.errors import ErrorReport, NoCheckpointError, UsageError, set_to
from rampcli.estimate.model_size import checkpoint_bytes
from rampcli.files.hub import is_pinned
from rampcli.launch.doctor.check import format_bytes
from rampcli.launch.environment import check_outer_launcher
from rampcli.launch.files import read_corpora
from rampcli.launch.protocol import Job, launcher_of
from rampcli.launch.trackers import check_packages
from rampcli.planning.run_plan import Resolved, run_plan
from rampcli.runs.directory import RunDirectory
from rampcli.runs.manifest import NOT_NAMED, Checkpoint, complete_checkpoints, name_remedy
from rampcli.settings.config import Config
from rampcli.settings.data import missing_corpora, missing_weights
from rampcli.settings.trainer import CheckpointConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class DiskSpace:
    """The free space of a disk, and what a run will write there.

    Attributes:
        free_bytes: bytes that this user may still write.
        checkpoint_bytes: estimated size of one checkpoint.
        present: complete checkpoints that the run has, of the `keep_last` that it keeps.
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
        return f"{disk}, or {set_to(CheckpointConfig.keep_last, fewer)}" if fewer > 0 else disk


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


def check(resolved: Resolved) -> tuple[Checkpoint | None, list[Job]]:
    """Checks what a run needs before anything is written.

    Returns:
        The newest checkpoint, or None, and the jobs that train the rest, with their scripts.
    """
    directory, launcher = RunDirectory(resolved.run_dir), launcher_of(resolved.config)
    with sources_named(resolved.config):
        corpora = check_corpora(resolved)
        newest = _newest_checkpoint(resolved, corpora)
        folder = check_starting_weights(resolved.config) if newest is None else None
        if folder is not None:
            check_tensors(resolved.config, folder)
        for error in refusals(resolved, newest):
            raise error
        consumed_samples = newest.consumed_samples if newest else 0
        return newest, launcher.scripts(resolved, directory, consumed_samples)


def check_files(resolved: Resolved) -> tuple[Checkpoint | None, list[str]]:
    """Checks as `check` the files that this machine has, and downloads no weights.

    Returns:
        The newest checkpoint, or None, and the notes of `check_model_here`.
    """
    with sources_named(resolved.config):
        is_elsewhere = any(missing_corpora(each.config) for each in resolved.phases)
        newest = _newest_checkpoint(resolved, {} if is_elsewhere else check_corpora(resolved))
        return newest, check_model_here(resolved.config) if newest is None else []


def check_model_here(config: Config) -> list[str]:
    """Checks that `model.init_from` is of the configured shape, if this machine has its folder.

    Weights on the hub are not checked.

    Returns:
        A note on the tensors that the model does not have, if there are any.
    """
    text = config.model.init_from
    folder = None if missing_weights(config) else check_starting_model(config)
    return [] if folder is None or is_pinned(str(text)) else check_tensors(config, folder)


def check_corpora(resolved: Resolved) -> dict[int, tuple[str, ...]]:
    """Checks that the corpora, if any, can be read, and that prompts can be continued.

    Corpora that were opened while the configuration was resolved are not read again.

    Returns:
        The fingerprints of the training corpora, as `check_resumable` takes them; none of corpora
        that were not opened.
    """
    found: dict[int, tuple[str, ...]] = {}
    for each in resolved.phases:
        files = each.files if each.files.opened else read_corpora(each.config)
        if each.config.generate.prompts:
            from rampcli.data.prompts import check_text_prompts

            check_text_prompts(each.config)
        found[each.plan.number] = files.fingerprints
    return found


def refusals(resolved: Resolved, newest: Checkpoint | None) -> Iterator[UsageError]:
    """Yields why this machine, as it is now, would not start the run.

    Args:
        newest: the checkpoint that the run resumes from, or None.
    """
    yield from launcher_refusals(resolved)
    if newest is None or not resolved.plan.is_complete(newest.consumed_samples):
        yield from _errors_of(check_place, resolved)
        yield from _errors_of(_check_disk, resolved)


def launcher_refusals(resolved: Resolved) -> Iterator[UsageError]:
    """Yields why the launcher or the trackers would not start the run on this machine."""
    yield from _errors_of(check_launcher, resolved)
    yield from _errors_of(_check_packages, resolved)


def check_launcher(resolved: Resolved) -> None:
    """Checks that this machine has what the launcher needs, and that no other one started this.

    Also checks that the run does all that its files of another system say.
    """
    for phase in resolved.phases:
        if (effects := stack_of(phase.config).effects) is not None:
            effects.check()
    check_outer_launcher()
    launcher_of(resolved.config).check(resolved)


def check_place(resolved: Resolved) -> None:
    """Checks that this user can write where the run directory is or will be."""
    place = existing_part(resolved.run_dir)
    if not place.is_dir():
        reason = "it is not a folder"
    elif not os.access(place, os.W_OK | os.X_OK):
        is_read_only = os.statvfs(place).f_flag & os.ST_RDONLY
        reason = "its disk is mounted read-only" if is_read_only else "this user may not"
    else:
        return
    raise UsageError(
        f"cannot write in {place}: {reason}",
        remedy="run_dir= in a folder that you may write to",
    )


def disk_warnings(resolved: Resolved) -> list[str]:
    """Returns a warning if one checkpoint fits on the disk, but not all that the run keeps."""
    space = disk_space(resolved)
    if not 1 <= space.fitting < space.more:
        return []
    place = existing_part(resolved.run_dir)
    return [f"the disk of {place} has {space.describe()}; try: {space.remedy()}"]


def _newest_checkpoint(
    resolved: Resolved, corpora: Mapping[int, tuple[str, ...]]
) -> Checkpoint | None:
    """Returns the checkpoint that the run resumes from, as `resume` allows, or None.

    Its configuration must be the run's, and its corpora too if their fingerprints are known here.
    """
    config, directory = resolved.config, RunDirectory(resolved.run_dir)
    found = complete_checkpoints(directory)
    if not found:
        renamed = None if config.resume == "never" else name_remedy(directory)
        if renamed is not None:
            raise NoCheckpointError(
                f"{directory.path} {NOT_NAMED}",
                remedy=[renamed, "resume=never to start again at step 0"],
            )
        if config.resume == "must":
            raise NoCheckpointError(
                f"resume=must, but {directory.path} has no checkpoint",
                remedy="resume=auto, or the run_dir= of a run that has a checkpoint",
            )
        return None
    if config.resume == "never":
        raise UsageError(
            f"resume=never, but {directory.path} has a checkpoint of step {found[-1].step}",
            keys=("resume",),
            remedy="another name= or run_dir=, or resume=auto",
        )
    check_resumable(found[-1], resolved, corpora=corpora)
    if resolved.config.phases:
        consumed = found[-1].consumed_samples
        try:
            earlier = run_plan(snapshot.read(directory.config), consumed_samples=consumed)
        except UsageError:
            return found[-1]  # a start says that the earlier settings are not known
        check_ended_phases(earlier, resolved, consumed_samples=consumed)
    return found[-1]


def _errors_of(check_here: Callable[[Resolved], None], resolved: Resolved) -> list[UsageError]:
    report = ErrorReport()
    with sources_named(resolved.config), report.noting():
        check_here(resolved)
    return report.errors


def _check_packages(resolved: Resolved) -> None:
    """Checks the packages of trackers, unless the workers use another Python than this one."""
    if launcher_of(resolved.config).interpreter(resolved.config) == sys.executable:
        check_packages(resolved.config.logging.trackers)


def _check_disk(resolved: Resolved) -> None:
    space = disk_space(resolved)
    if not space.fitting:
        raise UsageError(
            f"the disk of {existing_part(resolved.run_dir)} cannot hold one checkpoint:"
            f" {space.describe()}",
            remedy=space.remedy(),
        )
