"""Phases: parts of a run, each with settings of its own over those of the run.

The settings of a phase apply from the end of the phase before it up to its own `until`. What it
does not set is as in the run. A run without phases is a run of one.
"""

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rampcli.batch.pairs import GENERATIONS_KEY
from rampcli.batch.plan import ACCUMULATE_KEY, FLEET_KEYS, GLOBAL_KEY, MICRO_KEY
from rampcli.batch.quantities import MOST_NAMED, listed
from rampcli.batch.ramp import RAMP_KEY
from rampcli.batch.run_settings import LENGTH_KEYS
from rampcli.config.layers import (
    DEFAULT,
    PLAN_PLACE,
    Entry,
    Layer,
    Precedence,
    Stack,
    merged,
    sources_named,
    stack_of,
)
from rampcli.errors import ErrorReport, Remedy, UsageError, set_to, shown
from rampcli.settings.by_key import (
    changes,
    changing,
    facts_of,
    leaves,
    may_change,
    replaced_by,
)
from rampcli.settings.config import Config
from rampcli.settings.facts import BATCH, LEARNING_RATE
from rampcli.settings.phase_keys import (
    PHASES,
    UNTIL,
    is_phase,
    phase_key,
    split_phase_key,
)
from rampcli.settings.rl import is_rl
from rampcli.words import FOREIGN, SPELLINGS


def phase_entries(stack: Stack) -> dict[str, dict[str, Entry]]:
    """Returns what each phase sets, in the order in which the phases are first named.

    The end of a phase is under `UNTIL`.
    """
    found: dict[str, dict[str, Entry]] = {}
    for key in stack.values():
        if (parts := split_phase_key(key)) is not None:
            name, inside = parts
            found.setdefault(name, {})[inside] = stack.entry(key)
    return found


def check_dropped_phases(layer: Layer, below: Stack) -> Iterator[UsageError]:
    """Checks that the layers below one have each phase that its `phases.NAME=null` drops."""
    drops = {k: one for k, one in layer.entries.items() if k != PHASES and is_phase(k)}
    names = [*phase_entries(below)] if drops else []
    for key, entry in drops.items():
        name = key.removeprefix(f"{PHASES}.")
        if name not in names:
            near = difflib.get_close_matches(name, names)
            have = f"phase{'s' * (len(names) > 1)} {listed(names)}" if names else "no phases"
            yield UsageError(
                f"{key}=null drops nothing: the recipe and its files have {have}",
                keys=(key,),
                remedy=[set_to(f"{PHASES}.{one}", None) for one in near]
                or "the same words without it",
                set_by=entry.sources(key),
            )


def run_stack(stack: Stack) -> Stack:
    """Returns the layers without what the phases set: the settings of the run."""
    return stack.changed(lambda key, one: one if split_phase_key(key) is None else None)


def without_phases(stack: Stack, names: Collection[str]) -> Stack:
    """Returns the layers without what some phases set."""
    return stack.changed(
        lambda key, one: None if (split_phase_key(key) or ("",))[0] in names else one
    )


def phase_stack(run: Stack, name: str, own: Mapping[str, Entry], *, report: ErrorReport) -> Stack:
    """Returns the layers of a phase: those of the run, and what the phase sets on top.

    Args:
        report: receives the errors, also those of settings that a phase may not set.
    """
    entries: dict[str, Entry] = {}
    for inside, entry in own.items():
        if inside == UNTIL:
            continue
        with report.noting():
            check_may_change(name, inside, entry, run)
            made = Layer.of(name, Precedence.PHASE, {inside: entry.value}, report=report)
            for key, one in made.entries.items():
                word = phase_key(name, inside)
                by = one.by if key in FOREIGN else word
                words = () if entry.place == PLAN_PLACE else ((word, entry),)
                one = replace(entry, value=one.value, by=by, words=words)
                entries[key] = merged(key, entries.get(key), one)
    for key, entry in [*entries.items()]:
        for other, value in replaced_by(key).items():
            entries.setdefault(other, replace(entry, value=value))
    return run.above(Layer(f"phase {name}", Precedence.PHASE, entries))


def own_keys(own: Iterable[str]) -> frozenset[str]:
    """Returns the settings that a phase sets, in canonical keys."""
    return frozenset(SPELLINGS.get(key, key) for key in own) - {UNTIL}


def sets_batch(own: Iterable[str]) -> bool:
    """Returns whether a phase sets the batch, and so has its own ramp or none."""
    return any(changes(key, BATCH) for key in own_keys(own))


def check_keeps_batch(name: str, own: Mapping[str, Entry], config: Config, run: Stack) -> None:
    """Checks that a phase which sets no batch has the one of the run.

    Words of other systems count per device, so they mean another batch on other devices.

    Raises:
        UsageError: it has another batch.
    """
    stack = stack_of(config)
    changed = [key for key in changing(BATCH) if stack.entry(key).value != run.entry(key).value]
    if sets_batch(own) or not changed:
        return
    decided = [pair for key in changed for pair in _words_of(key, stack, run)]
    counted = [
        source
        for key, entry in own.items()
        if SPELLINGS.get(key, key) in (*FLEET_KEYS, ACCUMULATE_KEY, MICRO_KEY)
        for source in entry.sources(phase_key(name, key))
    ]
    words = [f"{word}={shown(entry.value)}" for word, entry in dict(decided).items()]
    means = [f"{key}={shown(stack.entry(key).value)}" for key in changed]
    instead = [shown(run.entry(key).value) for key in changed]
    raise UsageError(
        f"phase {name} sets no batch, but {listed(words)} gives it another one than the"
        f" run: {listed(means)} instead of {listed(instead)}",
        keys=tuple(changed),
        remedy=set_to(
            phase_key(name, GLOBAL_KEY),
            stack.entry(GLOBAL_KEY).value,
            note=" or another batch" + ", without a ramp" * (RAMP_KEY in changed),
        ),
        set_by=[source for word, entry in decided for source in entry.sources(word)] + counted,
    )


def _words_of(key: str, *stacks: Stack) -> tuple[tuple[str, Entry], ...]:
    """Returns the words that decide a key in the first of some stacks in which words do."""
    return next((one.entry(key).words for one in stacks if one.entry(key).words), ())


def sets_rate(own: Iterable[str]) -> bool:
    """Returns whether a phase has its own schedule of the learning rate."""
    return any(changes(key, LEARNING_RATE) for key in own_keys(own))


def phases_named(names: Sequence[str]) -> str:
    """Returns the names of phases: `phase long`, `phases warm and main`."""
    return f"phase{'' if len(names) == 1 else 's'} {listed(names, most=MOST_NAMED)}"


def lines_by_phase(lines: Iterable[tuple[str, str]], *, phases: int) -> Iterator[str]:
    """Yields each line once. One on some of the phases says which.

    Args:
        lines: names of phases, each with a line on it.
    """
    found: dict[str, list[str]] = {}
    for name, line in lines:
        found.setdefault(line, []).append(name)
    for line, names in found.items():
        yield line if len(names) == phases else f"{phases_named(names)}: {line}"


def check_may_change(name: str, key: str, entry: Entry, run: Stack) -> None:
    """Checks that a phase may set a key.

    Args:
        run: the layers of the run, without what the phases set.

    Raises:
        UsageError: it holds for the whole run; says why.
    """
    reason = facts_of(key).not_in_phases
    if key == GENERATIONS_KEY and (entry.value is None) != (run.entry(key).value is None):
        reason = "either all phases of a run are reinforcement learning, or none is"
    if reason is None:
        return
    word = phase_key(name, key)
    raise UsageError(
        f"{word}: a phase cannot set {key}: {reason}",
        keys=(word,),
        remedy=f"{key} for the whole run",
        set_by=entry.sources(word),
    )


def refuse_rl(config: Config, message: str, *, remedy: str) -> None:
    """Refuses a run of reinforcement learning, for commands that take pretraining only.

    Raises:
        UsageError: the run is one; the message and the remedy say what the command wants.
    """
    if is_rl(config):
        with sources_named(config):
            raise UsageError(message, keys=(GENERATIONS_KEY,), remedy=remedy)


def without_farther_ends(run: Stack, stack: Stack) -> Stack:
    """Returns the layers of a run without an end that is farther from the user than its phases'.

    A recipe's `trainer.max_steps` gives way to phases that the user writes, for example. It stays
    if the last phase has no end of its own.
    """
    *_, last = phase_entries(stack)
    end = phase_key(last, UNTIL)
    if not stack.history(end) or stack.entry(end).value is None:
        return run
    nearest = stack.precedence(end)
    entries = {
        key: Entry(None, "phases", by=end)
        for key in LENGTH_KEYS
        if run.entry(key).value is not None and run.precedence(key) < nearest
    }
    return run.above(Layer("phases", Precedence.USER, entries)) if entries else run


def completed_run(
    run: Stack, entries: Mapping[str, Mapping[str, Entry]], phases: Mapping[str | None, Config]
) -> Config:
    """Returns the settings of a run with all that applies in its phases, as a snapshot has them.

    Workers read numbers alone: what the files and the plan have decided in the first phase stands
    for the run, and what differs in another phase is a setting of that phase.

    Args:
        run: the layers in canonical keys, without what the phases set.
        phases: the complete settings of each phase. A phase without a name is the run.

    Raises:
        UsageError: a word of the run gives a phase another batch, although the phase sets none.
    """
    if None in phases:
        return phases[None]
    first = stack_of(next(iter(phases.values())))
    base = {key: run for key in run.values() if key not in FOREIGN}
    for key in first.values():
        is_decided = first.precedence(key) is not Precedence.PHASE and key not in FOREIGN
        if is_decided and (key not in base or run.entry(key).value is None):
            base[key] = first
    layers = (
        Layer("run", level, {k: at.entry(k) for k, at in base.items() if at.precedence(k) is level})
        for level in Precedence
    )
    whole = Stack(overrides=tuple(layers), effects=first.effects)
    settled = dict(leaves(whole.config()))
    found: dict[str, Entry] = {}
    for name, own in entries.items():
        config = phases[name]
        check_keeps_batch(name, own, config, whole)
        found[phase_key(name, UNTIL)] = own.get(UNTIL, Entry(None, DEFAULT))
        for key in _recorded(own, config, settled):
            entry = stack_of(config).entry(key)
            word = phase_key(name, key)
            found[word] = dict(entry.words).get(word, entry)
    return whole.above(Layer("phases", Precedence.USER, found)).config()


def _recorded(own: Mapping[str, Entry], config: Config, settled: Mapping[str, Any]) -> list[str]:
    """Returns the settings of a phase that a snapshot records.

    They are those that the phase sets, those that differ from the run, and those that a recorded
    setting would replace otherwise.
    """
    values = dict(leaves(config))
    differing = {key for key, value in values.items() if value != settled.get(key)}
    recorded = {*own_keys(own), *differing, *(changing(BATCH) if sets_batch(own) else ())}
    recorded |= {other for key in recorded for other in replaced_by(key)}
    return [key for key in values if key in recorded]


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseSettings:
    """The settings of a phase.

    Attributes:
        name: its name, or None for a run without named phases, which is one phase.
        until: where it ends, as it is written, or None.
        config: the settings that apply in it, complete and checked.
        own: the settings that it sets itself, in canonical keys.
    """

    name: str | None
    until: str | None
    config: Config
    own: frozenset[str] = frozenset()


def settings_of_phases(config: Config) -> list[PhaseSettings]:
    """Returns the settings of the phases of a resolved configuration.

    Raises:
        UsageError: a phase sets what it may not set, or a value is of the wrong type.
    """
    if not config.phases:
        return [PhaseSettings(name=None, until=None, config=config)]
    stack = stack_of(config)
    run, found = run_stack(stack), list[PhaseSettings]()
    for name, own in phase_entries(stack).items():
        report = ErrorReport()
        one = phase_stack(run, name, own, report=report)
        report.close()
        until = own[UNTIL].value if UNTIL in own else None
        found.append(PhaseSettings(name=name, until=until, config=one.config(), own=own_keys(own)))
    return found


class PhaseErrors:
    """Errors of the phases of a run. One that all phases have is reported once, for the run."""

    def __init__(self) -> None:
        self.found: dict[str, list[tuple[str | None, UsageError]]] = {}

    def add(self, phase: str | None, errors: Iterable[UsageError]) -> None:
        """Adds the errors of a phase."""
        for error in errors:
            self.found.setdefault(error.message, []).append((phase, error))

    def report_to(self, report: ErrorReport, *, phases: int) -> None:
        """Adds the errors to a report. Those that not all of the phases have name their phase.

        What is offered for the error of a phase changes that phase alone, if it may.
        """
        for same in self.found.values():
            for_all = len({phase for phase, _ in same}) == phases
            for phase, error in same[:1] if for_all else same:
                report.errors.append(error)
                if for_all or phase is None:
                    continue
                if f"of phase {phase}" not in error.message:
                    error.add_context(f"phase {phase}")
                error.remedies = tuple(_in_phase(phase, one) for one in error.remedies)


def _in_phase(phase: str, remedy: Remedy) -> Remedy:
    """Returns a remedy that sets the settings of a phase, or the same one if a phase may not."""
    if isinstance(remedy, str):
        return remedy
    return remedy.renamed({key: phase_key(phase, key) for key in remedy.values if may_change(key)})
