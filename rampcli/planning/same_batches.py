"""Settings that give a run other micro batches and leave its batches as they are."""

from collections.abc import Mapping
from typing import Any

from rampcli.batch.pairs import PAIRS_KEY, SPLIT_KEY
from rampcli.batch.plan import ACCUMULATE_KEY, GLOBAL_KEY, MICRO_KEY
from rampcli.config.layers import is_spelling, stack_of
from rampcli.errors import Assignments, set_together
from rampcli.planning.run_plan import ResolvedPhase
from rampcli.settings.config import Config
from rampcli.settings.phase_keys import phase_key
from rampcli.words import FOREIGN


def micro_batch_settings(phase: ResolvedPhase, size: int) -> dict[str, Any]:
    """Returns the settings, by key, that give a phase a micro batch size and keep its batches.

    Args:
        size: samples per micro batch; pairs in reinforcement learning.
    """
    config, values = phase.config, {MICRO_KEY: size}
    if (generations := config.rl.generations_per_prompt) is not None:
        return {PAIRS_KEY: size} | ({SPLIT_KEY: True} if size % generations else {})
    if size == phase.plan.micro_batch_rule.size:
        return values
    accumulates = config.trainer.accumulate_grad_batches is not None
    batch = stack_of(config).entry(GLOBAL_KEY)
    is_product = batch.by in FOREIGN and not is_spelling(GLOBAL_KEY, batch)
    is_derived = config.model.global_batch_size is None or (accumulates and is_product)
    pinned: dict[str, Any] = {ACCUMULATE_KEY: None} if accumulates else {}
    if is_derived and config.model.step_batch_size_schedule is None:
        pinned[GLOBAL_KEY] = phase.plan.global_batch_size
    return values | pinned


def in_words(values: Mapping[str, Any], config: Config, *, phase: str | None = None) -> Assignments:
    """Returns settings in the spellings that a run uses for them, whose words they replace.

    Args:
        config: of the run, or of a phase.
        phase: its name, for words that set them in the phase alone.
    """
    entries = {key: stack_of(config).entry(key) for key in values}
    if phase is not None:
        words = {key: phase_key(phase, key) for key in values}
        typed = {key: dict(entries[key].words).get(word) for key, word in words.items()}
        words |= {key: one.by for key, one in typed.items() if one is not None and one.by}
        return set_together(values).renamed(words)
    spellings = {key: str(entry.by) for key, entry in entries.items() if is_spelling(key, entry)}
    return set_together(values).renamed(spellings)
