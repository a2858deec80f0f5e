"""Asking a run to save and end, from outside."""

import os
import signal
import socket
from collections.abc import Sequence

from rampcli.errors import UsageError
from rampcli.launch.run_lock import Holder, holder_of
from rampcli.launch.slurm import chain
from rampcli.run_directory import RunDirectory


def cancel(directory: RunDirectory) -> Holder | Sequence[chain.JobStatus]:
    """Have who trains a run save and end: the jobs of its chain, or the supervisor on this machine. Says who was asked.

    Raises:
        UsageError: nobody trains it, or somebody on another machine.
        RampcliError: Slurm does not answer.
    """
    if chain.living_jobs(directory):
        return chain.cancel(directory)
    holder = holder_of(directory)
    if holder is None:
        raise UsageError(f"nothing trains in {directory.path}", remedy=f"rampcli status {directory.path}")
    if holder.host != socket.gethostname():
        raise UsageError(f"{directory.path} is trained by {holder}, and this is {socket.gethostname()}", remedy="the same command there")
    os.kill(holder.pid, signal.SIGTERM)
    return holder
