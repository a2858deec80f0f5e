"""Warns about steps of reinforcement learning whose rewards teach nothing."""

from rampcli.checkpoint.state import TrainingState
from rampcli.runs.directory import RunDirectory
from rampcli.train.observers.observer import LoopObserver, record_event
from rampcli.train.step import TakenStep

STEPS = 3
"""Steps in a row after which a warning is due. A single step may be flat by chance."""
REMEDIES = (
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
        """Counts a step, and writes the event at the first `STEPS` in a row."""
        if self._steps == STEPS:  # the event is written
            return
        self._steps = self._steps + 1 if step.columns.get("flat_groups") == 1 else 0
        if self._steps == STEPS:
            reward = step.columns.get("reward")
            shown = "no response got a reward" if reward is None else f"mean reward {reward:.3g}"
            reason = (
                f"for {STEPS} steps, all responses to a prompt got the same reward ({shown}), so"
                f" the rewards teach nothing. {REMEDIES}"
            )
            record_event(self.run, "flat_rewards", state, reason=reason)
