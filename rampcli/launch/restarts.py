"""Decides whether and when crashed workers are restarted."""

from dataclasses import dataclass

LONGEST_BACKOFF_S = 60.0


@dataclass(slots=True)
class Restarts:
    """Counts the crashes of a stage.

    Attributes:
        max_restarts: crashes that are followed by a restart.
        backoff_s: seconds before the first restart. Each later wait is twice as long, up to
            `LONGEST_BACKOFF_S`.
        crashes: crashes and lost nodes so far.
    """

    max_restarts: int
    backoff_s: float
    crashes: int = 0
    _last_crash: str | None = None

    def after_crash(self, step: int | None) -> float | str:
        """Returns the seconds to wait before the next start, or the reason for giving up.

        Args:
            step: steps taken when the workers crashed; None if training had not begun.
        """
        before = self._last_crash
        self._last_crash = "before the first step" if step is None else f"at step {step + 1}"
        if before == self._last_crash:
            self.crashes += 1
            return f"workers crashed {before} on two consecutive starts"
        return self._count()

    def after_lost_node(self) -> float | str:
        """Returns the same after a lost node, for which no step is to blame."""
        self._last_crash = None
        return self._count()

    def _count(self) -> float | str:
        self.crashes += 1
        if self.crashes > self.max_restarts:
            return (
                f"workers crashed {self.crashes} time{'s' if self.crashes > 1 else ''}"
                f", with launch.max_restarts={self.max_restarts}"
            )
        return min(LONGEST_BACKOFF_S, self.backoff_s * 2.0 ** (self.crashes - 1))
