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
    _step: int | None = None

    def after_crash(self, step: int | None) -> float | str:
        """Seconds to wait before the next start; or, in words, why there is none.

        Args:
            step: steps that were taken when the workers crashed; None where they had not started to train.
        """
        before, self._step = self._step, step
        self.crashes += 1
        if step is not None and step == before:
            return f"they crashed in step {step + 1} twice, one start after the other"
        if self.crashes > self.max_restarts:
            return f"they crashed {self.crashes} time{'s' if self.crashes > 1 else ''}, with launch.max_restarts={self.max_restarts}"
        return min(LONGEST_BACKOFF_S, self.backoff_s * 2.0 ** (self.crashes - 1))
