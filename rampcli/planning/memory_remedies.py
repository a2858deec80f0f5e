"""Settings with which a run needs less memory, by its estimate."""

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Any, get_args

from rampcli.batch.division import divisors
from rampcli.batch.plan import SHARD_KEY
from rampcli.config.layers import with_values
from rampcli.errors import Assignments, UsageError
from rampcli.estimate.memory import generating_bytes
from rampcli.planning.resolve import resolve
from rampcli.planning.run_plan import Resolved, ResolvedPhase
from rampcli.planning.same_batches import in_words, micro_batch_settings
from rampcli.planning.stage_memory import stage_memory
from rampcli.settings.trainer import ActivationCheckpointing, TrainerConfig

Change = Mapping[str, Any]
"""Other values of some settings, by key."""


def changes_that_fit(phase: ResolvedPhase, usable_bytes: int) -> list[Assignments]:
    """Returns changes with which the estimate of every stage fits.

    Each of them is enough, and keeps all batch sizes. It changes as few settings as possible, and
    these as little as possible. The list is empty if nothing fits.
    """

    def fits(*changes: Change) -> bool:
        changed = _with(phase, changes)
        return changed is not None and all(
            stage_memory(changed.of(stage), stage).peak_bytes <= usable_bytes
            for stage in changed.plan.stages
        )

    choices = _choices(phase)
    for count in range(1, len(choices) + 1):
        found = []
        for some in combinations(choices, count):
            # The strongest changes first: if they do not fit, no milder ones do.
            if fits(*(choice[-1] for choice in some)):
                found.append(next(changes for changes in product(*some) if fits(*changes)))
        if found:
            return [in_words(_together(changes), phase.config) for changes in found]
    return []


def smaller_rollouts(phase: ResolvedPhase, usable_bytes: int) -> list[Assignments]:
    """Returns the mildest change with which the estimate of a rank that only generates fits.

    It answers fewer prompts at once. The list is empty if nothing fits.
    """
    for change in _smaller_micro_batches(phase):
        changed = _with(phase, [change])
        if changed and all(
            generating_bytes(changed.config, stage.micro_batch_size) <= usable_bytes
            for stage in changed.plan.stages
        ):
            return [in_words(change, phase.config)]
    return []


def _choices(phase: ResolvedPhase) -> list[list[Change]]:
    """Returns the legal changes that can help: per setting, the mildest first."""
    trainer, parallel = phase.config.trainer, phase.config.parallel
    modes = get_args(ActivationCheckpointing)
    choices: list[list[Change]] = [
        _smaller_micro_batches(phase),
        [
            {TrainerConfig.activation_checkpointing: mode}
            for mode in modes[modes.index(trainer.activation_checkpointing) + 1 :]
        ],
        [{TrainerConfig.accumulate_reduce: "each"}] if trainer.accumulate_reduce != "each" else [],
        [{SHARD_KEY: None}] if parallel.data_parallel_shard_size is not None else [],
    ]
    legal = [[change for change in choice if _with(phase, [change])] for choice in choices]
    return [choice for choice in legal if choice]


def _smaller_micro_batches(phase: ResolvedPhase) -> list[Change]:
    """Returns smaller micro batches, the largest first, with what keeps the batch as it is."""
    largest = max(phase.passes(stage)[0] for stage in phase.plan.stages)
    smaller = reversed(divisors(largest, most=largest - 1))
    return [micro_batch_settings(phase, size) for size in smaller]


def _together(changes: Sequence[Change]) -> Change:
    return {key: value for change in changes for key, value in change.items()}


def _with(phase: ResolvedPhase, changes: Sequence[Change]) -> Resolved | None:
    """Returns the run with some changes, or None if it refuses them or has other batch sizes."""
    stack = with_values(phase.config, _together(changes), "remedy")
    # Finished stages need not fit the nodes of today.
    finished = phase.plan.stages[0].first_sample if phase.plan.passed else 0
    try:
        changed = resolve(stack, consumed_samples_in=lambda _: finished)
    except UsageError:
        return None
    before, after = (
        [stage.global_batch_size for stage in each.plan.stages] for each in (phase, changed)
    )
    return changed if before == after[-len(before) :] else None
