"""Warns once about steps that wait for their samples, or whose rewards teach nothing."""

from collections import deque

from rampcli.checkpoint.state import TrainingState
from rampcli.runs.directory import RunDirectory
from rampcli.train.observers.observer import LoopObserver, record_event
from rampcli.train.step import TakenStep

WATCHED_STEPS = 50
MAX_SHARE = 0.05
"""Largest share of the time of the last `WATCHED_STEPS` steps that may be spent waiting."""
SLOW_DATA_REMEDIES = (
    "`rampcli data build` writes files that load fastest. A local disk or more memory for the"
    " page cache also helps, as do more reading hosts if data.expansion_factor_real_data is above 1"
)


class SlowData(LoopObserver):
    """Writes the event `slow_data` the first time that steps wait too long for samples."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self._recent: deque[tuple[float, float]] | None = deque(maxlen=WATCHED_STEPS)
        self._is_first = True

    def after_step(self, state: TrainingState, step: TakenStep) -> None:
        """Writes the event if the share of waiting becomes too high."""
        share = self.add(step_time_s=step.step_time_s, data_time_s=step.batch.data_time_s)
        if share is not None:
            reason = (
                f"{share:.0%} of the last {WATCHED_STEPS} steps' time was spent waiting for data."
                f" {SLOW_DATA_REMEDIES}"
            )
            record_event(self.run, "slow_data", state, reason=reason)

    def add(self, *, step_time_s: float, data_time_s: float) -> float | None:
        """Adds a step. Returns the share of waiting when it first exceeds `MAX_SHARE`, else None.

        The first step does not count, because no earlier step gave time to read its samples.
        """
        if self._recent is None or self._is_first:
            self._is_first = False
            return None
        self._recent.append((step_time_s, data_time_s))
        if len(self._recent) < WATCHED_STEPS:
            return None
        steps_s, waits_s = map(sum, zip(*self._recent, strict=True))
        share = waits_s / steps_s
        if share <= MAX_SHARE:
            return None
        self._recent = None
        return share


FLAT_STEPS = 3
"""Steps in a row after which a warning is due. A single step may be flat by chance."""
FLAT_REWARDS_REMEDIES = (
    "rl.samples_every_steps=1 writes the responses with their rewards to responses.jsonl. More"
    " rl.generations_per_prompt, a higher rl.temperature, or prompts that the model solves"
    " sometimes give rewards that differ"
)


class FlatRewards(LoopObserver):
    """Writes the event `flat_rewards` once steps in a row give each prompt equal rewards.

    The advantages of a group whose rewards are equal are 0, so it has no gradient.
    """

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self._steps = 0

    def after_step(self, state: TrainingState, step: TakenStep) -> None:
        """Counts a step, and writes the event at the first `FLAT_STEPS` in a row."""
        if self._steps == FLAT_STEPS:  # the event is written
            return
        self._steps = self._steps + 1 if step.columns.get("flat_groups") == 1 else 0
        if self._steps == FLAT_STEPS:
            reward = step.columns.get("reward")
            shown = "no response got a reward" if reward is None else f"mean reward {reward:.3g}"
            reason = (
                f"for {FLAT_STEPS} steps, all responses to a prompt got the same reward ({shown}),"
                f" so the rewards teach nothing. {FLAT_REWARDS_REMEDIES}"
            )
            record_event(self.run, "flat_rewards", state, reason=reason)
