"""A run that trains and takes no steps: for how long, and which ranks the others wait for."""

from dataclasses import dataclass
from typing import Any

from rampcli.runs.directory import RunDirectory
from rampcli.runs.facts import RunFacts
from rampcli.runs.heartbeats import Ranks, read_ranks, touched_s

LEAST_QUIET_S, QUIET_STEPS = 60.0, 20
"""A run stands still after this many seconds, and the time of this many steps, without a step.

If a rank is silent, the seconds alone count. While processes start, they count if ranks are behind.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Standstill:
    """A run that has taken no step for much longer than a step takes, or cannot take one.

    Attributes:
        quiet_s: seconds without a step or an event.
        step_s: seconds of a step, or None before the first one.
        ranks: what its ranks do.
    """

    quiet_s: float
    step_s: float | None
    ranks: Ranks

    def to_json(self) -> dict[str, Any]:
        """Returns the facts that `rampcli status --json` prints."""
        return {"quiet_s": self.quiet_s, "step_s": self.step_s, **self.ranks.to_json()}


def find_standstill(directory: RunDirectory, facts: RunFacts, *, now: float) -> Standstill | None:
    """Returns the standstill of a run, or None if it takes steps, or its last step is unknown.

    Args:
        now: the present time in seconds since 1970. The processes are training or starting.
    """
    quiet_s, step_s, written_s = facts.quiet_s(now=now), facts.step_s, directory.last_written_at()
    # The clock of the host that trains may differ from this one: times of files are compared, too.
    if quiet_s is None or max(quiet_s, touched_s(directory) - written_s) <= LEAST_QUIET_S:
        return None
    ranks = read_ranks(directory)
    if ranks.now_s is not None:
        quiet_s = ranks.now_s - written_s
    if quiet_s <= LEAST_QUIET_S:
        return None
    # Processes may take long to start. Then only those that are behind show a standstill.
    is_overdue = not facts.is_starting and quiet_s > QUIET_STEPS * (step_s or 0.0)
    has_reason = ranks.silent or (facts.is_starting and (ranks.behind or ranks.missing))
    if not (is_overdue or has_reason):
        return None
    return Standstill(quiet_s=quiet_s, step_s=step_s, ranks=ranks)
