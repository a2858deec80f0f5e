"""How long a step takes whose rollout and training overlap."""


def overlapped_s(rollout_s: float, training_s: float, *, micro_batches: int) -> float:
    """Returns the seconds of a step in which ranks train on one micro batch and generate the next.

    The slower side is never idle, but it has to wait for the first micro batch, or the faster one
    has to take the last one alone: `max + min / micro_batches`.

    Args:
        rollout_s: seconds that a rank generates in a step.
        training_s: seconds that a rank trains in a step.
        micro_batches: micro batches of a data-parallel rank.
    """
    return max(rollout_s, training_s) + min(rollout_s, training_s) / micro_batches


def saved_at_best(micro_batches: int) -> float:
    """Returns the share of a step that overlap saves if rollout and training take equally long."""
    return 1 - overlapped_s(1.0, 1.0, micro_batches=micro_batches) / 2
