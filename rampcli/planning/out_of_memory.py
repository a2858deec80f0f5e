"""The error of a run that needs more memory than its devices have."""

from collections.abc import Mapping
from typing import Any

from rampcli.batch.pairs import PAIRS_KEY
from rampcli.batch.plan import MICRO_KEY
from rampcli.config.layers import stack_of
from rampcli.errors import Assignments, OutOfMemoryError, Remedy, set_to
from rampcli.estimate.memory import generating_bytes
from rampcli.planning.run_plan import Resolved
from rampcli.planning.stage_memory import (
    device_memory_bytes,
    shorten_bytes,
    stage_memory,
    usable_bytes,
)
from rampcli.settings.config import Config
from rampcli.settings.phase_keys import phase_key
from rampcli.settings.rl import RLConfig, max_response_tokens
from rampcli.settings.trainer import TrainerConfig


def out_of_memory(resolved: Resolved, *, consumed_samples: int, reason: str) -> OutOfMemoryError:
    """Returns the error of a rank that ran out of memory.

    Args:
        consumed_samples: samples consumed before the step in which memory ran out.
        reason: which rank ran out, and how that was noticed.
    """
    # Imported here, because workers that do not run out of memory never need it.
    from rampcli.planning.memory_remedies import changes_that_fit

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
        else _changes_of_phase(phase.plan.name, config, micro_batch_size)
    )
    return _error(
        reason, config, settings, needed, [*changes, "more devices that share the weights"]
    )


def _changes_of_phase(phase: str, config: Config, micro_batch_size: int) -> list[Assignments]:
    """Returns settings of a phase with which it needs less memory, and keeps its batches."""
    changes = []
    if micro_batch_size % 2 == 0:
        changes.append(set_to(phase_key(phase, MICRO_KEY), micro_batch_size // 2))
    if config.trainer.activation_checkpointing != "full":
        changes.append(set_to(phase_key(phase, TrainerConfig.activation_checkpointing), "full"))
    return changes


def rollout_out_of_memory(
    resolved: Resolved, *, consumed_samples: int, reason: str
) -> OutOfMemoryError:
    """Returns the error of a rank that only generates and ran out of memory.

    The arguments are those of `out_of_memory`.
    """
    from rampcli.planning.memory_remedies import smaller_rollouts

    phase, stage = resolved.at(consumed_samples), resolved.plan.stage_at(consumed_samples)
    config = phase.config
    longest = max_response_tokens(config)
    settings = {PAIRS_KEY: phase.passes(stage)[0], RLConfig.max_response_tokens: longest}
    needed = generating_bytes(config, stage.micro_batch_size)
    remedies: list[Remedy] = [*smaller_rollouts(phase, _enough(config, needed))]
    if longest > 1:
        remedies.append(set_to(RLConfig.max_response_tokens, longest // 2, note=" in a new run"))
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
