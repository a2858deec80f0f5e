"""How long a step takes whose rollout and training overlap."""

from math import ceil


def overlapped_s(
    rollout_s: float,
    training_s: float,
    *,
    micro_batches: int,
    data_ranks: int,
    generators: int,
) -> float:
    """Returns the seconds of a step in which ranks train on one micro batch and generate the next.

    With as many rollouts per generating rank in every micro batch, this is

        max(rollout_s, training_s) + min(rollout_s, training_s) / micro_batches

    The second term is the first micro batch, which is generated before training starts, or the last
    one, which is trained on after generation ends. Rollouts take equally long and are dealt out to
    the generating ranks in turn.

    Args:
        rollout_s: seconds that a rank generates in a step, on average.
        training_s: seconds that a rank trains in a step.
        micro_batches: micro batches of a data-parallel rank.
        data_ranks: data-parallel ranks that train.
        generators: ranks that generate.
    """
    of_one_rollout_s = rollout_s * generators / (micro_batches * data_ranks)
    end_s = 0.0
    for number in range(1, micro_batches + 1):
        generated_s = ceil(number * data_ranks / generators) * of_one_rollout_s
        end_s = max(end_s, generated_s) + training_s / micro_batches
    return end_s


def saved_at_best(*, micro_batches: int, data_ranks: int, generators: int) -> float:
    """Returns the share of a step that overlap saves if rollout and training take equally long.

    The arguments are those of `overlapped_s`.
    """
    rollouts = micro_batches * data_ranks
    # The rank with the most rollouts generates for 1 s, others may have fewer.
    rollout_s = rollouts / generators / ceil(rollouts / generators)
    with_overlap_s = overlapped_s(
        rollout_s, 1.0, micro_batches=micro_batches, data_ranks=data_ranks, generators=generators
    )
    # Rounded, so that an overlap that saves nothing returns 0.
    return round(1 - with_overlap_s / 2, 9)
