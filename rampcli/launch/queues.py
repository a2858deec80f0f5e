"""Asks job queues about several runs, and uses their answers for a while."""

import time

from rampcli.errors import DamagedFileError, RampcliError, UsageError
from rampcli.launch.launchers import LAUNCHERS
from rampcli.launch.protocol import Job
from rampcli.run_directory import RunDirectory

ASK_EVERY_S = 30.0
"""Seconds for which an answer of a queue is used again."""


class Queues:
    """Remembers the jobs of each run, and failures of queues, for `ASK_EVERY_S`."""

    def __init__(self) -> None:
        self._jobs: dict[tuple[str, str], tuple[float, list[Job]]] = {}
        self._failures: dict[str, tuple[float, str]] = {}

    def jobs(self, directory: RunDirectory) -> tuple[tuple[Job, ...], str | None]:
        """Returns the jobs of a run in order, and why their state is unknown, or None.

        Raises:
            DamagedFileError: the record of the jobs is damaged.
            UsageError: the record is a symbolic link.
        """
        jobs, unknown = list[Job](), None
        for name in LAUNCHERS:
            try:
                jobs += self._ask(name, directory)
            except (DamagedFileError, UsageError):
                raise
            except RampcliError as error:
                unknown = error.message
        return tuple(jobs), unknown

    def _ask(self, name: str, directory: RunDirectory) -> list[Job]:
        launcher, now, key = LAUNCHERS[name], time.monotonic(), (name, str(directory.path))
        if not launcher.has_jobs(directory):
            return []
        asked_at, known = self._jobs.get(key, (-ASK_EVERY_S, []))
        if now - asked_at < ASK_EVERY_S:
            return known
        failed_at, message = self._failures.get(name, (-ASK_EVERY_S, ""))
        if now - failed_at < ASK_EVERY_S:
            raise RampcliError(message)
        try:
            jobs = launcher.jobs(directory)
        except RampcliError as error:
            if not isinstance(error, DamagedFileError | UsageError):
                self._failures[name] = (time.monotonic(), error.message)
            raise
        self._jobs[key] = (now, jobs)
        return jobs
