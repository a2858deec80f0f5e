"""Asks job queues about several runs, and uses their answers for a while."""

import time
from dataclasses import dataclass

from rampcli.errors import DamagedFileError, RampcliError, UsageError
from rampcli.launch.protocol import Job, JobPhase, launchers
from rampcli.launch.run_lock import Holder
from rampcli.runs.directory import RunDirectory

ASK_EVERY_S = 30.0
"""Seconds for which an answer of a queue is used again."""
ASK_SOON_S = 10.0
"""The same in the first `SETTLING_S` after a run has started or ended, if its job has not yet."""
SETTLING_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The jobs of a run as its queue listed them.

    Attributes:
        at: time of the answer, on the monotonic clock.
        holder: which process held the locks of the run then; see `Queues.jobs`.
        holds_since: time of the first answer with this holder.
    """

    at: float
    holder: Holder | bool
    holds_since: float
    jobs: list[Job]

    def is_usable(self, holder: Holder | bool) -> bool:
        """Returns whether the queue need not be asked again."""
        now = time.monotonic()
        agrees = bool(holder) == any(job.phase is JobPhase.RUNNING for job in self.jobs)
        has_settled = agrees or now - self.holds_since > SETTLING_S
        lasts_s = ASK_EVERY_S if has_settled else ASK_SOON_S
        return holder == self.holder and now - self.at < lasts_s


class Queues:
    """Remembers the jobs of each run, and failures of queues, for `ASK_EVERY_S`."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, str], Answer] = {}
        self._failures: dict[str, tuple[float, str]] = {}

    def jobs(
        self, directory: RunDirectory, holder: Holder | bool
    ) -> tuple[tuple[Job, ...], str | None]:
        """Returns the jobs of a run in order, and why their state is unknown, or None.

        Args:
            holder: the process that supervises the run. Without one, whether workers hold its lock.
                If this has changed, the queue is asked at once.

        Raises:
            DamagedFileError: the record of the jobs is damaged.
            UsageError: the record is a symbolic link.
        """
        jobs, unknown = list[Job](), None
        for name in launchers():
            try:
                jobs += self._ask(name, directory, holder)
            except (DamagedFileError, UsageError):
                raise
            except RampcliError as error:
                unknown = error.message
        return tuple(jobs), unknown

    def _ask(self, name: str, directory: RunDirectory, holder: Holder | bool) -> list[Job]:
        launcher, now, key = launchers()[name], time.monotonic(), (name, str(directory.path))
        if not launcher.has_jobs(directory):
            return []
        known = self._answers.get(key)
        if known is not None and known.is_usable(holder):
            return known.jobs
        failed_at, message = self._failures.get(name, (-ASK_EVERY_S, ""))
        if now - failed_at < ASK_EVERY_S:
            raise RampcliError(message)
        try:
            jobs = launcher.jobs(directory)
        except RampcliError as error:
            if not isinstance(error, DamagedFileError | UsageError):
                self._failures[name] = (time.monotonic(), error.message)
            raise
        since = known.holds_since if known is not None and known.holder == holder else now
        self._answers[key] = Answer(at=now, holder=holder, holds_since=since, jobs=jobs)
        return jobs
