"""Asking a run to save and end, from outside."""

import socket
from collections.abc import Sequence

from rampcli.errors import UsageError
from rampcli.launch.run_lock import Holder, holder_of
from rampcli.launch.slurm import chain
from rampcli.run_directory import RunDirectory


def cancel(directory: RunDirectory) -> Holder | Sequence[chain.JobStatus]:
    """Ask whatever trains a run to save and end: the jobs of its chain, or its supervisor on this machine. Returns who was asked.

    Raises:
        UsageError: nothing trains it, or something that is not a process of this user on this machine.
        RampcliError: Slurm does not answer.
    """
    if chain.living_jobs(directory):
        return chain.cancel(directory)
    holder = holder_of(directory)
    if holder is None:
        raise UsageError(
            f"nothing trains in {directory.path}", remedy=f"rampcli status {directory.path}"
        )
    if not holder.is_here:
        raise UsageError(
            f"{directory.path} is trained by {holder}, which is not a process of yours on this machine ({socket.gethostname()})",
            remedy="the same command where and as whom it was started",
        )
    if not holder.ask_to_stop(directory):
        raise UsageError(
            f"{holder} stopped supervising {directory.path} just now",
            remedy=f"rampcli status {directory.path}",
        )
    return holder
