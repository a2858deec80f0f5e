"""How workers ended: why, and what a user can do about it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rampcli.launch.worker_log import WorkerLog
from rampcli.launch.workers import NO_MEMORY
from rampcli.settings.launch import LaunchConfig

SELF_ABORTED = "SIGABRT"


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkersExit:
    """How workers ended.

    Attributes:
        exit_code: 0, or the exit code of a worker that failed.
        killed: ranks that were killed, as `Workers.killed` returns them. Ranks that were still
            running when another one had failed are not included, nor those that the supervisor
            killed.
        oom_kills: processes that the kernel killed meanwhile for lack of memory, as
            `count_oom_kills` counts them.
        log: their output.
        late: ranks that others waited for, and what they did, if that is known.
        had_not_saved: a rank was killed before the others saved and stopped. They may do so while
            they are ended.
    """

    exit_code: int
    killed: dict[int, str]
    oom_kills: int
    log: WorkerLog
    late: str = ""
    had_not_saved: bool = False

    @property
    def killed_from_outside(self) -> dict[int, str]:
        """The ranks of `killed` that did not abort themselves.

        NCCL aborts a rank that has waited too long for another one, or when another one fails.
        """
        return {rank: name for rank, name in self.killed.items() if name != SELF_ABORTED}

    def ranks_out_of_memory(self) -> list[int]:
        """Returns the ranks that were killed because memory ran out."""
        signs = {NO_MEMORY} | ({"SIGKILL"} if self.oom_kills else set())
        return [rank for rank, name in self.killed.items() if name in signs]

    def cause(self, state: dict[str, Any], launch: LaunchConfig) -> str:
        """Returns why the workers failed, and where their log is.

        Args:
            launch: settings with the limits on how long ranks wait for others.
            state: contents of state.json, where a worker may have recorded its error.
        """
        recorded = state["error"]["message"] if state["status"] == "failed" else None
        # If a rank was killed, the errors of the others only report that it is missing. A rank that
        # aborts itself may be the first to fail, or do so because another one has failed.
        cause = _describe_killed(self.killed_from_outside) or "; ".join(
            filter(None, (_describe_killed(self.killed), recorded))
        )
        cause = cause or f"exit code {self.exit_code}"
        if timeout := self._timeout(launch):
            waited_s, limit = timeout
            allowed = f", as {limit} allows" if limit else ""
            cause = f"ranks waited {waited_s:g} s for others{allowed}{self.late}"
        return f"{cause}; {self.log.describe(quote=recorded is None)}"

    def remedy(self, launch: LaunchConfig) -> str:
        """Returns what a user can do about the cause."""
        if (timeout := self._timeout(launch)) is None:
            return "fix the error in the log"
        _, limit = timeout
        return "find out why a rank was late" + (f", or a larger {limit}" if limit else "")

    def _timeout(self, launch: LaunchConfig) -> tuple[float, str] | None:
        """Returns after how many seconds a rank stopped waiting, and the settings that say so.

        None if no rank did. The settings are "" if none of them has this value.
        """
        waited_s = self.log.timeout_s()
        if waited_s is None:
            return None
        limits = {
            "launch.start_timeout_s": launch.start_timeout_s,
            "launch.step_timeout_s": launch.step_timeout_s,
        }
        return waited_s, " or ".join(key for key, limit_s in limits.items() if limit_s == waited_s)


def _describe_killed(ranks: Mapping[int, str]) -> str:
    return " and ".join(f"rank {rank} was killed by {name}" for rank, name in ranks.items())
