"""Notes on the phases of a run: those that it does not reach, and their learning rates."""

from collections.abc import Iterator
from itertools import pairwise

from rampcli.config.phases import phases_named, sets_rate
from rampcli.errors import set_to
from rampcli.planning.phase_rates import CONTINUE
from rampcli.planning.run_plan import BEGIN_KEY, Resolved
from rampcli.settings.phase_keys import phase_key

TINY = 1e-12
JUMP = 1.5
"""Factor between the learning rates on both sides of a boundary from which on a note is due."""


def phase_notes(resolved: Resolved) -> Iterator[str]:
    """Yields notes on phases that the run does not reach, and on their learning rates."""
    names = [*resolved.config.phases]
    if unreached := names[len(resolved.phases) :]:
        yield f"the run ends before {phases_named(unreached)}"
    yield from _warmup_notes(resolved)
    for before, after in pairwise(resolved.phases):
        if before.phase is None or before.phase.end is None or _has_own_rate(resolved, after):
            continue
        last, first = (_uncoupled(one, before.phase.end.samples) for one in (before, after))
        if not 1 / JUMP <= (first + TINY) / (last + TINY) <= JUMP:
            word = set_to(phase_key(after.name, BEGIN_KEY), CONTINUE)
            yield (
                f"phase {after.name} sets no learning rate, so that of the run applies again: it"
                f" goes from {last:.3g} to {first:.3g}; {word} goes on from {last:.3g}"
            )


def _has_own_rate(resolved: Resolved, phase: Resolved) -> bool:
    return sets_rate(resolved.config.phases[phase.name])


def _warmup_notes(resolved: Resolved) -> Iterator[str]:
    """Yields a note for each schedule whose last phase ends within its warm-up."""
    last_phases: dict[str, Resolved] = {}
    for one in resolved.phases:
        last_phases[one.name if _has_own_rate(resolved, one) else ""] = one
    for own, last in last_phases.items():
        rate, end = last.phase_rate, None if last.phase is None else last.phase.end
        if rate is not None and end is not None and rate.is_warming_up(end.samples):
            whose = "its" if own else "the run's"
            yield (
                f"phase {last.name} ends within {whose} warm-up: the learning rate does not reach"
                f" {rate.schedule.peak:g}"
            )


def _uncoupled(phase: Resolved, consumed_samples: int) -> float:
    """Returns the learning rate of a phase at its boundary, before the batch scales it."""
    stages, rate = phase.plan.extents, phase.phase_rate
    assert rate is not None
    at = 0 if stages[0].first_sample == consumed_samples else -1
    size = stages[at].global_batch_size
    return rate.uncoupled_at(consumed_samples, global_batch_size=size)
