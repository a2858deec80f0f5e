"""Explains settings: what they are, their values, and where the values come from."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import yaml

from rampcli.batch.pairs import PAIRS_KEY, PROMPTS_KEY
from rampcli.batch.plan import ACCUMULATE_KEY, GLOBAL_KEY, MICRO_KEY
from rampcli.batch.quantities import listed
from rampcli.batch.training_plan import PhasePlan, StagePlan, TrainingPlan
from rampcli.config.foreign_files import Effects
from rampcli.config.layers import DEFAULT, Entry, stack_of
from rampcli.errors import UsageError, shown
from rampcli.planning.run_plan import Resolved, ResolvedPhase, run_dir_of
from rampcli.report.plan_notes import costs_of
from rampcli.settings.by_key import Setting, extension_of, find_setting, leaves, nest, settings
from rampcli.settings.config import Config
from rampcli.settings.phase_keys import UNTIL, phase_key, split_phase_key
from rampcli.settings.rl import RLConfig, max_response_tokens, unit_of
from rampcli.settings.unknown_keys import unknown_key
from rampcli.words import DERIVED, FOREIGN, SPELLINGS

MOST_REMEDIES = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """What `rampcli explain` says of a key.

    Attributes:
        value: its value. The other facts are None if they are unknown or the key has none.
        derived: value that a null stands for. The end of a phase has its position there, as
            `samples`, `steps` and `tokens`.
        overrode: the values that `value` replaces, each with its `set_by`, the nearest first.
        costs: what `costs_of` returns.
        in_run: the `value` of the run and its `set_by`, for a key of a phase.
        in_phases: values of the phases that have another one than the run, by name.
    """

    key: str
    value: Any
    derived: Any = None
    type: str | None = None
    unit: str | None = None
    default: Any = None
    range: str | None = None
    doc: str
    set_by: str | None
    overrode: list[dict[str, Any]] = field(default_factory=list)
    costs: dict[str, Any] | None = None
    in_run: dict[str, Any] | None = None
    in_phases: dict[str, Any] = field(default_factory=dict)


def explain(key: str, resolved: Resolved) -> dict[str, Any]:
    """Returns the fields of an `Explanation` by name.

    Args:
        key: dotted key of a setting, a spelling of another system, or a name in `DERIVED`.

    Raises:
        UsageError: there is no such setting.
    """
    if key in DERIVED:
        found = _explain_largest_batch(key, resolved)
    elif (parts := split_phase_key(key)) is not None:
        found = _explain_in_phase(*parts, resolved)
    else:
        key = _own_key(key) if resolved.config.phases else key
        found = _explain_in_run(key, resolved)
        if len(resolved.phases) == 1:
            found = replace(found, costs=costs_of(key, resolved.phases[0]))
    return asdict(found)


def explain_all(key: str, resolved: Resolved) -> list[dict[str, Any]]:
    """Returns what `explain` says of a key, or of another system's key and what it decides.

    Raises:
        UsageError: there is no such setting.
    """
    effects: Effects | None = stack_of(resolved.config).effects
    decided = None if effects is None or key in settings() else effects.decided_by(key)
    if effects is None or decided is None:
        return [explain(key, resolved)]
    given, doc = effects.given.get(key), f"{effects.format.name}'s key. {effects.meaning(key)}"
    value, place = (None, None) if given is None else (given.value, given.place)
    theirs = asdict(Explanation(key=key, value=value, doc=doc, set_by=place))
    return [theirs, *(explain(one, resolved) for one in decided if find_setting(one))]


def _explain_setting(key: str, config: Config, derived: Mapping[str, Any]) -> Explanation:
    """Explains a setting in one configuration. `derived` has the values that nulls stand for."""
    setting = _setting(key)
    history = stack_of(config).history(key)
    if key in FOREIGN:  # without the entry that says that the word is translated
        history = [Entry(None, DEFAULT), *(entry for entry in history if entry.by is None)]
    if not history and (extension := extension_of(key)) is not None:
        raise UsageError(
            f"{key} is a setting of an extension that this run does not use",
            keys=(key,),
            remedy=f"rampcli explain {key} {extension.key}={extension.name}",
        )
    *earlier, (value, place) = ((entry.value, entry.place) for entry in history)
    return Explanation(
        key=key,
        value=value,
        derived=derived.get(key) if value is None else None,
        type=setting.type_name() + (" or null" if setting.optional else ""),
        unit=unit_of(config) if setting.unit == "samples" else setting.unit,
        default=setting.default,
        range=setting.range_name() or None,
        doc=setting.doc,
        set_by=place,
        overrode=[{"set_by": by, "value": other} for other, by in reversed(earlier)],
    )


def _setting(key: str) -> Setting:
    found = find_setting(key)
    if found is None:
        raise unknown_key(key, offer=lambda keys: [f"rampcli explain {one}" for one in keys])
    return found


def _explain_in_run(key: str, resolved: Resolved) -> Explanation:
    """Explains a setting of a run, which may have another value in some of its named phases."""
    found = _explain_setting(key, resolved.config, derived(resolved))
    values = {phase.name: dict(leaves(phase.config)) for phase in resolved.phases}
    others = {
        name: own[key] for name, own in values.items() if key in own and own[key] != found.value
    }
    return replace(found, in_phases=others)


def _explain_in_phase(name: str, inside: str, resolved: Resolved) -> Explanation:
    """Explains a setting as it applies in a phase, or the end of a phase."""
    inside = _own_key(inside)
    key = phase_key(name, inside)
    _setting(key)
    phase = next((one for one in resolved.phases if one.plan.name == name), None)
    if phase is None:
        raise _no_phase(key, name, inside, resolved)
    if inside == UNTIL:
        found, end = _explain_setting(key, resolved.config, {}), phase.plan.end
        return replace(found, derived=None if end is None else asdict(end), overrode=[])
    run = _explain_setting(inside, resolved.config, {})
    found = _explain_setting(inside, phase.config, _derived_in(phase))
    return replace(
        found,
        key=key,
        overrode=[entry for entry in found.overrode if entry["set_by"] != found.set_by],
        costs=costs_of(inside, phase),
        in_run={"value": run.value, "set_by": run.set_by},
    )


def _explain_largest_batch(key: str, resolved: Resolved) -> Explanation:
    """Explains a batch that another system derives, where the batch is largest."""
    stage = _largest_stage(resolved.plan)
    phase = resolved.of(stage)
    load, train = phase.samples_to_load(stage), stage.global_batch_size
    values = {
        "global_batch_to_load": load,
        "global_batch_size_to_load": load,
        "global_batch_to_train": train,
        "global_batch_size_to_train_on": train,
        "micro_batch_size_to_train_on": train // phase.plan.loads_per_step(stage),
    }
    place = "derived, for the largest batch"
    return Explanation(
        key=key, value=values[key], unit="samples", doc=DERIVED[key][0], set_by=place
    )


def _own_key(key: str) -> str:
    """Returns our key for a spelling. The words of a run with phases are settings of their own.

    Raises:
        UsageError: a word of another system, which several settings follow from.
    """
    if key in FOREIGN and key not in SPELLINGS:
        keys = (GLOBAL_KEY, MICRO_KEY, ACCUMULATE_KEY)
        raise UsageError(
            f"{key} is not explained in a run with phases, where {listed(keys)} have its place",
            keys=(key,),
            remedy=[f"rampcli explain {one}" for one in keys],
        )
    return SPELLINGS.get(key, key)


def _no_phase(key: str, name: str, inside: str, resolved: Resolved) -> UsageError:
    """Returns the error for a phase that the run does not have, or does not reach."""
    if name in resolved.config.phases:
        return UsageError(
            f"the run ends before phase {name}, so nothing applies in it",
            keys=(key,),
            remedy="a later end of the run",
        )
    names = list(resolved.config.phases)
    has = f", but {listed(names)}" if names else ""
    return UsageError(
        f"the run has no phase {name}{has}",
        keys=(key,),
        remedy=[f"rampcli explain {phase_key(one, inside)}" for one in names[:MOST_REMEDIES]]
        or f"rampcli explain {key} {phase_key(name, UNTIL)}=7.5T",
    )


def _largest_stage(plan: TrainingPlan | PhasePlan) -> StagePlan:
    return max(plan.stages, key=lambda stage: stage.global_batch_size)


def derived(resolved: Resolved) -> dict[str, Any]:
    """Returns the derived value of each setting that may be null, where the batch is largest.

    Of a run with several phases, it is the run directory alone: the others differ between phases.
    """
    if len(resolved.phases) > 1:
        return {"run_dir": str(resolved.run_dir)}
    return _derived_in(resolved.phases[0])


def _derived_in(phase: ResolvedPhase) -> dict[str, Any]:
    """Returns the derived value of each setting of a phase that may be null."""
    run_dir = {"run_dir": str(run_dir_of(phase.config))}
    if not phase.plan.stages:
        return run_dir
    stage = _largest_stage(phase.plan)
    pairs = phase.pairs(stage)
    split = (
        {MICRO_KEY: stage.micro_batch_size, ACCUMULATE_KEY: stage.accumulate_grad_batches}
        if pairs is None
        else {
            PROMPTS_KEY: phase.plan.global_batch_size,
            PAIRS_KEY: pairs.micro_batch_size,
            RLConfig.max_response_tokens: max_response_tokens(phase.config),
        }
    )
    return split | run_dir | {GLOBAL_KEY: phase.plan.global_batch_size}


def with_provenance(resolved: Resolved, section: str = "") -> str:
    """Returns a configuration as YAML, with the place of each value in a comment.

    Args:
        resolved: what is shown.
        section: the dotted key of a section or setting that is shown alone; empty for all.

    Raises:
        UsageError: there is no such section.
    """
    stack, known = stack_of(resolved.config), derived(resolved)
    values = dict(leaves(resolved.config))
    shown_part = subtree(nest(values), section)
    if isinstance(shown_part, Mapping):
        lines = list(_lines(shown_part, section and f"{section}.", 0))
    else:
        lines = [(section, _yaml(shown_part))]
    width = max((len(text) for _, text in lines), default=0)
    return "".join(
        f"{text:<{width}}  # {_provenance(stack.history(key), known.get(key))}\n"
        if key in values
        else f"{text}\n"
        for key, text in lines
    )


def subtree(tree: Mapping[str, Any], section: str) -> Any:
    """Returns a section or a setting of a tree, by its dotted key; the tree if the key is empty.

    Raises:
        UsageError: the tree has no such section.
    """
    found: Any = tree
    for name in filter(None, section.split(".")):
        if not isinstance(found, Mapping) or name not in found:
            raise UsageError(
                f"--package {section}: the configuration has no {section}",
                remedy=" or ".join(f"--package {name}" for name in list(tree)[:4]),
            )
        found = found[name]
    return found


def _lines(tree: Mapping[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, str]]:
    """Yields the lines of a tree as YAML, each with the dotted key of its section or setting."""
    for name, value in tree.items():
        key, indented = f"{prefix}{name}", f"{'  ' * depth}{name}:"
        if isinstance(value, Mapping):
            yield key, indented
            yield from _lines(value, f"{key}.", depth + 1)
        else:
            yield key, f"{indented} {_yaml(value)}"


def _yaml(value: Any) -> str:
    if isinstance(value, list):
        return shown(value)
    text: str = yaml.safe_dump(
        value, default_flow_style=True, allow_unicode=True, width=float("inf")
    )
    return text.removesuffix("\n...\n").rstrip("\n")


def _provenance(history: Sequence[Entry], derived: Any) -> str:
    """Returns the place of a value, what a null stands for, and the values that it replaces."""
    value, parts = history[-1].value, [history[-1].place]
    if value is None and derived is not None:
        parts.append(f"derived: {derived}")
    earlier = [(shown(entry.value), entry.place) for entry in reversed(history[1:-1])]
    overrode = [f"{text} ({place})" for text, place in earlier if text != shown(value)]
    if overrode:
        parts.append(f"overrides {', '.join(overrode)}")
    return "; ".join(parts)
