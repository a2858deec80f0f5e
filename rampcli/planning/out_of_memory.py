"""The error of a run that needs more memory than its devices have, and settings that need less."""

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Any, get_args

from rampcli.batch.division import divisors
from rampcli.batch.pairs import PAIRS_KEY
from rampcli.batch.plan import MICRO_KEY, SHARD_KEY
from rampcli.config.layers import stack_of, with_values
from rampcli.errors import Assignments, OutOfMemoryError, Remedy, UsageError, set_to
from rampcli.estimate.memory import generating_bytes
from rampcli.planning.run_plan import Resolved, ResolvedPhase
from rampcli.planning.same_batches import in_words, micro_batch_settings
from rampcli.planning.stage_memory import (
    device_memory_bytes,
    shorten_bytes,
    stage_memory,
    usable_bytes,
)
from rampcli.settings.config import Config
from rampcli.settings.phase_keys import phase_key
from rampcli.settings.rl import RLConfig, max_response_tokens
from rampcli.settings.trainer import ActivationCheckpointing, TrainerConfig

Change = Mapping[str, Any]
"""Other values of some settings, by key."""


def out_of_memory(resolved: Resolved, *, consumed_samples: int, reason: str) -> OutOfMemoryError:
    """Returns the error of a rank that ran out of memory.

    Args:
        consumed_samples: samples consumed before the step in which memory ran out.
        reason: which rank ran out, and how that was noticed.
    """
    phase, stage = resolved.at(consumed_samples), resolved.plan.stage_at(consumed_samples)
    config, micro_batch_size = phase.config, phase.passes(stage)[0]
    key = MICRO_KEY if phase.pairs(stage) is None else PAIRS_KEY
    settings = {
        key: micro_batch_size,
        TrainerConfig.activation_checkpointing: config.trainer.activation_checkpointing,
    }
    needed = stage_memory(phase, stage).peak_bytes
    changes = (
        changes_that_fit(phase, _enough(config, needed))
        if phase.plan.name is None
        else _changes_of_phase(phase, micro_batch_size)
    )
    return _error(
        reason, config, settings, needed, [*changes, "more devices that share the weights"]
    )


def _changes_of_phase(phase: ResolvedPhase, micro_batch_size: int) -> list[Assignments]:
    """Returns settings of a phase with which it needs less memory, and keeps its batches."""
    changes = _smaller_in_phase(phase, micro_batch_size)
    if phase.config.trainer.activation_checkpointing != "full":
        key = phase_key(phase.plan.name, TrainerConfig.activation_checkpointing)
        changes.append(set_to(key, "full"))
    return changes


def _smaller_in_phase(
    phase: ResolvedPhase, size: int, *, whole_groups: bool = False
) -> list[Assignments]:
    """Returns a micro batch of at most half the size for a phase, if there is one.

    Args:
        whole_groups: leave out a part of a prompt's group, which is generated as a whole.
    """
    group = phase.config.rl.generations_per_prompt or 1
    for smaller in reversed(divisors(size, most=size // 2)):
        if smaller % group == 0 or (group % smaller == 0 and not whole_groups):
            values = {MICRO_KEY: smaller} if group == 1 else micro_batch_settings(phase, smaller)
            return [in_words(values, phase.config, phase=phase.plan.name)]
    return []


def rollout_out_of_memory(
    resolved: Resolved, *, consumed_samples: int, reason: str
) -> OutOfMemoryError:
    """Returns the error of a rank that only generates and ran out of memory.

    The arguments are those of `out_of_memory`.
    """
    phase, stage = resolved.at(consumed_samples), resolved.plan.stage_at(consumed_samples)
    config = phase.config
    longest = max_response_tokens(config)
    settings = {PAIRS_KEY: phase.passes(stage)[0], RLConfig.max_response_tokens: longest}
    needed = generating_bytes(config, stage.micro_batch_size)
    remedies: list[Remedy] = [
        *(
            smaller_rollouts(phase, _enough(config, needed))
            if phase.plan.name is None
            else _smaller_in_phase(phase, phase.passes(stage)[0], whole_groups=True)
        )
    ]
    if longest > 1:
        key = phase_key(phase.plan.name, RLConfig.max_response_tokens)
        remedies.append(set_to(key, longest // 2, note=" in a new run"))
    return _error(f"{reason} while it generated", config, settings, needed, remedies)


def _error(
    problem: str, config: Config, settings: Mapping[str, Any], needed: int, remedies: list[Remedy]
) -> OutOfMemoryError:
    values = " and ".join(f"{key}={value}" for key, value in settings.items())
    error = OutOfMemoryError(
        f"{problem}, with {values}: a rank needs an estimated {shorten_bytes(needed)}",
        keys=tuple(settings),
    )
    stack_of(config).name_sources(error)
    error.remedies = tuple(remedies)  # They are in the spellings of the run already.
    return error


def _enough(config: Config, needed: int) -> int:
    """Returns how much a rank may need that ran out of memory although its estimate was `needed`.

    Whatever the estimate says, as much is too much.
    """
    memory_bytes = device_memory_bytes(config)
    return min(needed - 1, usable_bytes(config, memory_bytes) if memory_bytes else needed)


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
    # Imported here, because workers that do not run out of memory never need it.
    from rampcli.planning.resolve import resolve

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
