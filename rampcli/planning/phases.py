"""Plans a run in phases: each phase is planned alone, from where the one before it ends."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rampcli.batch.phased_plan import PhasedPlan, PhasePlan, placed
from rampcli.batch.position import SAMPLES, START, STEPS, TOKENS, Goal, Position, parse_goal
from rampcli.batch.quantities import listed
from rampcli.batch.run_settings import LENGTH_KEYS, FirstEnd, RunLength
from rampcli.config.layers import (
    DEFAULT,
    Entry,
    Layer,
    Precedence,
    Stack,
    sources_named,
    stack_of,
)
from rampcli.config.phases import (
    BATCH_KEYS,
    MOST_NAMED,
    REPLACED_BY,
    check_keeps_batch,
    own_keys,
    phase_configs,
    phase_entries,
    refuse_phases,
    sets_batch,
)
from rampcli.errors import Remedy, Report, UsageError, set_to
from rampcli.planning.config_plan import length_of, plan_config
from rampcli.planning.phase_rates import with_rates
from rampcli.planning.reading_start import Readings
from rampcli.planning.run_plan import Resolved, check_stages_ahead
from rampcli.settings.by_key import leaves, may_change
from rampcli.settings.config import Config
from rampcli.settings.model_parts import POSITION_EMBEDDINGS
from rampcli.settings.phase_keys import UNTIL, phase_key
from rampcli.settings.rl import is_rl
from rampcli.words import FOREIGN


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseSettings:
    """The settings of a phase.

    Attributes:
        name: its name.
        until: where it ends, as it is written, or None.
        config: the settings that apply in it, complete and checked.
        own: the settings that it sets itself, in canonical keys.
    """

    name: str
    until: str | None
    config: Config
    own: frozenset[str] = field(default_factory=frozenset)


def settings_of_phases(config: Config) -> list[PhaseSettings]:
    """Returns the settings of the phases of a resolved configuration."""
    entries = phase_entries(stack_of(config))
    return [
        PhaseSettings(name=name, until=until, config=one, own=own_keys(entries[name]))
        for name, until, one in phase_configs(config)
    ]


class PhaseErrors:
    """Errors of the phases of a run. One that all phases have is reported once, for the run."""

    def __init__(self) -> None:
        self.found: dict[str, list[tuple[str, UsageError]]] = {}

    def add(self, phase: str, errors: Iterable[UsageError]) -> None:
        """Adds the errors of a phase."""
        for error in errors:
            self.found.setdefault(error.message, []).append((phase, error))

    def report_to(self, report: Report, *, phases: int) -> None:
        """Adds the errors to a report. Those that not all of the phases have name their phase.

        What is offered for the error of a phase changes that phase alone, if it may.
        """
        for same in self.found.values():
            if len({phase for phase, _ in same}) == phases:
                report.errors.append(same[0][1])
                continue
            for phase, error in same:
                if f"of phase {phase}" not in error.message:
                    error.add_context(f"phase {phase}")
                error.remedies = tuple(_in_phase(phase, one) for one in error.remedies)
                report.errors.append(error)


def _in_phase(phase: str, remedy: Remedy) -> Remedy:
    """Returns a remedy that sets the settings of a phase, or the same one if a phase may not."""
    if isinstance(remedy, str):
        return remedy
    return remedy.renamed({key: phase_key(phase, key) for key in remedy.values if may_change(key)})


def plan_phases(config: Config, *, consumed_samples: int = 0) -> Resolved:
    """Plans a run with phases.

    Args:
        config: settings of the run, with those of its phases.
        consumed_samples: progress of the run. Stages before it are not checked.

    Raises:
        UsageError: all stages that do not divide, and ends of phases that are out of order.
    """
    settings = settings_of_phases(config)
    report, errors, planned = Report(_misfits(config, settings)), PhaseErrors(), list[Resolved]()
    first, readings, end_of_run = START, Readings(), _end_of_run(config)
    for number, one in enumerate(settings):
        if _is_reached(end_of_run, first):
            break
        found, after = Report(), None
        with found.noting(), sources_named(config), sources_named(one.config):
            is_last = number + 1 == len(settings)
            length = _length(one, first, end_of_run, is_last=is_last)
            begins = Beginning(
                number=number,
                first=first,
                first_stage=sum(each.plan.number_of_stages for each in planned),
                consumed_samples=consumed_samples,
            )
            resolved = _plan_phase(one, begins, length, readings)
            after = None if resolved.phase is None else resolved.phase.end
            if (is_last or _is_reached(end_of_run, after)) and not resolved.plan.stages:
                before = _progress_of_ramp(one, first)
                plan_config(one.config, 0, before=before, length=length, phase=one.name)  # must fit
            planned.append(resolved)
        errors.add(one.name, found.errors)
        # A guess of the end serves to find the errors of later phases, too.
        first = after or _guess(one, first) or first
    errors.report_to(report, phases=len(settings))
    report.close()
    joined = PhasedPlan.join([one.phase for one in planned if one.phase is not None])
    with sources_named(config):
        members = with_rates(planned, joined, [one.own for one in settings[: len(planned)]])
    phases: list[Resolved] = []
    for member in members:
        phases.append(replace(member, earlier=tuple(phases), whole=joined))
    return Resolved(config=config, plan=joined, phases=tuple(phases))


@dataclass(frozen=True, kw_only=True, slots=True)
class Beginning:
    """Where a phase begins.

    Attributes:
        number: its number, from 0.
        first: how far the run has come there.
        first_stage: stages of the phases before it.
        consumed_samples: progress of the run, from its start.
    """

    number: int
    first: Position
    first_stage: int
    consumed_samples: int


def _progress_of_ramp(one: PhaseSettings, first: Position) -> Position:
    """Returns how far the ramp of a phase has come when the phase begins at `first`."""
    return START if sets_batch(one.own) else first


def _plan_phase(
    one: PhaseSettings, begins: Beginning, length: FirstEnd, readings: Readings
) -> Resolved:
    """Returns a phase with its plan, in which stages count from the start of the run.

    Raises:
        UsageError: a stage that is still to come does not divide.
    """
    alone = plan_config(
        one.config,
        max(0, begins.consumed_samples - begins.first.samples),
        before=_progress_of_ramp(one, begins.first),
        length=length,
        phase=one.name,
    )
    plan = placed(alone, first=begins.first, first_stage=begins.first_stage)
    phase = PhasePlan(name=one.name, number=begins.number, first=begins.first, plan=plan)
    reading = readings.begin(one.config, begins.number, first_sample=begins.first.samples)
    readings.end(phase)
    resolved = Resolved(config=one.config, plan=plan, phase=phase, reading=reading)
    check_stages_ahead(resolved, begins.consumed_samples)
    return resolved


def _misfits(config: Config, settings: Iterable[PhaseSettings]) -> Iterator[UsageError]:
    """Yields why a run cannot have the phases that it has, whatever their plan."""
    if is_rl(config):
        report = Report()
        with report.noting():
            refuse_phases(config, "reinforcement learning")
        yield from report.errors
    lengths = {one.name: one.config.data.sequence_length for one in settings}
    embedding = config.model.position_embedding
    if POSITION_EMBEDDINGS[embedding].is_learned and len(set(lengths.values())) > 1:
        shown = [f"{name}={length}" for name, length in lengths.items()]
        error = UsageError(
            f"model.position_embedding={embedding} learns a vector for each position, so all phases"
            f" must have samples of one length, not {listed(shown, most=MOST_NAMED)}",
            keys=("model.position_embedding",),
            remedy=set_to("model.position_embedding", "rope"),
        )
        stack_of(config).name_sources(error)
        yield error


def _end_of_run(config: Config) -> Goal | None:
    """Returns where the settings of the run end it, apart from its phases."""
    length = length_of(config)
    length.check()
    counts = {STEPS: length.max_steps, SAMPLES: length.max_samples, TOKENS: length.max_tokens}
    return next((Goal(unit, count) for unit, count in counts.items() if count is not None), None)


def _is_reached(goal: Goal | None, position: Position | None) -> bool:
    return goal is not None and position is not None and position.count(goal.unit) >= goal.count


def _length(
    one: PhaseSettings, first: Position, end_of_run: Goal | None, *, is_last: bool
) -> FirstEnd:
    """Returns where a phase ends, counted from its beginning.

    Raises:
        UsageError: it ends before it begins, or has no end although other phases follow.
    """
    key = phase_key(one.name, UNTIL)
    goals = [] if end_of_run is None else [end_of_run]
    if one.until is not None:
        goal = parse_goal(one.until, key=key)
        if goal.count <= first.count(goal.unit):
            raise UsageError(
                f"{key}={one.until} is not after the beginning of the phase, at"
                f" {first.count(goal.unit):,} {goal.unit}",
                keys=(key,),
                remedy="a later end, or the phases in another order",
            )
        goals.append(goal)
    elif not is_last:
        raise UsageError(
            f"{key} is not set, and another phase follows",
            keys=(key,),
            remedy=set_to(key, "7.5T", note=" or another position"),
        )
    return FirstEnd(
        ends=tuple(
            RunLength(**{f"max_{goal.unit}": goal.count - first.count(goal.unit)}) for goal in goals
        )
    )


def _guess(one: PhaseSettings, first: Position) -> Position | None:
    """Returns about where a phase ends that cannot be planned, or None if that is unknown."""
    try:
        goal = parse_goal(one.until or "", key=UNTIL)
    except UsageError:
        return None
    if goal.unit == TOKENS:
        length = one.config.data.sequence_length
        more = max(0, goal.count - first.tokens) // length
        return Position(samples=first.samples + more, steps=first.steps + 1, tokens=goal.count)
    return replace(first, **{goal.unit: max(goal.count, first.count(goal.unit))})


def without_farther_ends(run: Stack, stack: Stack) -> Stack:
    """Returns the layers of a run without an end that is farther from the user than its phases'.

    A recipe's `trainer.max_steps` gives way to phases that the user writes, for example. It stays
    if the last phase has no end of its own.

    Args:
        run: the layers without what the phases set.
        stack: all layers.
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
    run: Stack, entries: Mapping[str, Mapping[str, Entry]], phases: Mapping[str, Config]
) -> Config:
    """Returns the settings of a run with all that applies in its phases, as a snapshot has them.

    Workers read numbers alone: what the files and the plan have decided in the first phase stands
    for the run, and what differs in another phase is a setting of that phase.

    Args:
        run: the layers in canonical keys, without what the phases set.
        entries: what each phase sets, as `phase_entries` returns it.
        phases: the complete settings of each phase.

    Raises:
        UsageError: a word of the run gives a phase another batch, although the phase sets none.
    """
    first = stack_of(next(iter(phases.values())))
    base = {key: run.entry(key) for key in run.values() if key not in FOREIGN}
    for key in first.values():
        is_decided = first.precedence(key) is not Precedence.PHASE and key not in FOREIGN
        if is_decided and (key not in base or base[key].value is None):
            base[key] = first.entry(key)
    whole = Stack(overrides=(Layer("run", Precedence.USER, base),), nemo_effects=first.nemo_effects)
    settled = dict(leaves(whole.config()))
    found: dict[str, Entry] = {}
    for name, config in phases.items():
        check_keeps_batch(name, entries[name], config, whole)
        found[phase_key(name, UNTIL)] = entries[name].get(UNTIL, Entry(None, DEFAULT))
        for key in _recorded(entries[name], config, settled):
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
    recorded = {*own_keys(own), *differing, *(BATCH_KEYS if sets_batch(own) else ())}
    recorded |= {other for key in recorded for other in REPLACED_BY.get(key, ())}
    return [key for key in values if key in recorded]
