"""`rampcli cancel`: asks a run to save and exit."""

from typing import TYPE_CHECKING

from rampcli.cli.options import Run
from rampcli.errors import UsageError

if TYPE_CHECKING:
    from rampcli.launch.protocol import Job
    from rampcli.launch.run_lock import Holder
    from rampcli.runs.directory import RunDirectory


def cancel(run: Run) -> None:
    """Ask a run to save and exit.

    Stops the jobs of the run, or the command that trains it on this machine.
    """
    from rampcli.cli.console import build_console, say
    from rampcli.cli.jobs import jobs_table
    from rampcli.runs.directory import find_run

    asked = ask_to_save(find_run(run))
    if isinstance(asked, list):
        say(build_console(), jobs_table(asked), "a running job saves before it ends")
    else:
        say(build_console(), f"asked {asked} to save and exit")


def ask_to_save(directory: "RunDirectory") -> "Holder | list[Job]":
    """Asks a run to save and exit: its active jobs, or else its supervisor on this machine.

    Returns:
        The jobs or the supervisor that were asked.

    Raises:
        UsageError: the run is not training; or another user or machine supervises it, or a thread
            of a Python program.
        RampcliError: a job queue does not answer.
    """
    import socket

    from rampcli.launch.protocol import launchers
    from rampcli.launch.run_lock import holder_of

    # Jobs come first: the supervisor inside a running job holds the run's lock too.
    for launcher in launchers().values():
        if jobs := launcher.cancel(directory):
            return jobs
    holder = holder_of(directory)
    if holder is None:
        raise UsageError(
            f"no process is training in {directory.path}", remedy=f"rampcli status {directory.path}"
        )
    if not holder.is_here:
        raise UsageError(
            f"{directory.path} is supervised by {holder}, which is not your process on this"
            f" machine ({socket.gethostname()})",
            remedy="the same command on the host, and as the user, that started the run",
        )
    if holder.in_thread:
        raise UsageError(
            f"{holder} trains {directory.path} in a thread, and a signal would end the process",
            remedy="in that process, an observer that raises an exception",
        )
    if not holder.ask_to_stop(directory):
        raise UsageError(
            f"{holder} has just stopped supervising {directory.path}",
            remedy=f"rampcli status {directory.path}",
        )
    return holder
