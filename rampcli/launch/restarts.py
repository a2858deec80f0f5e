"""When workers that crash are started again."""

from dataclasses import dataclass

LONGEST_BACKOFF_S = 60.0


@dataclass(slots=True)
class Restarts:
    """Counts the crashes of a stage.

    Attributes:
        max_restarts: how many are followed by another start.
        backoff_s: seconds before the first of these; each further one waits twice as long, up to a minute.
    """

    max_restarts: int
    backoff_s: float
    crashes: int = 0
    _last_crash: str | None = None

    def after_crash(self, step: int | None) -> float | str:
        """Returns the seconds to wait before the next start, or the reason not to start again.

        Args:
            step: steps that were taken when the workers crashed; None if they had not begun to train.
        """
        before, self._last_crash = (
            self._last_crash,
            "before the first step" if step is None else f"in step {step + 1}",
        )
        if before == self._last_crash:
            self.crashes += 1
            return f"they crashed {before} twice, one start after the other"
        return self._next()

    def after_loss(self) -> float | str:
        """Returns the same after a node was lost, which says nothing against a step."""
        self._last_crash = None
        return self._next()

    def _next(self) -> float | str:
        self.crashes += 1
        if self.crashes > self.max_restarts:
            return f"they crashed {self.crashes} time{'s' if self.crashes > 1 else ''}, with launch.max_restarts={self.max_restarts}"
        return min(LONGEST_BACKOFF_S, self.backoff_s * 2.0 ** (self.crashes - 1))
