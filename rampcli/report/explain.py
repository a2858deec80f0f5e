"""Explains settings: what they are, their values, and where the values come from."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import yaml

from rampcli.batch.pairs import PAIRS_KEY, PROMPTS_KEY
from rampcli.batch.plan import ACCUMULATE_KEY, GLOBAL_KEY, MICRO_KEY
from rampcli.batch.quantities import listed
from rampcli.batch.training_plan import PhasePlan, StagePlan, TrainingPlan
from rampcli.config.layers import DEFAULT, Entry, stack_of
from rampcli.config.nemo_files import NemoEffects
from rampcli.errors import UsageError, shown
from rampcli.planning.run_plan import Resolved, ResolvedPhase, run_dir_of
from rampcli.report.choices import costs_of
from rampcli.settings.by_key import extension_of, find_setting, leaves, nest, settings
from rampcli.settings.config import Config
from rampcli.settings.phase_keys import UNTIL, phase_key, split_phase_key
from rampcli.settings.rl import RLConfig, max_response_tokens, unit_of
from rampcli.settings.unknown_keys import unknown_key
from rampcli.words import FOREIGN, SPELLINGS
from rampcli.words.refused import DERIVED

MOST_OFFERED = 4


def explain(key: str, resolved: Resolved) -> dict[str, Any]:
    """Returns a setting, its value and its history.

    Args:
        key: dotted key of a setting, a spelling of another system, or a name in `DERIVED`.

    Returns:
        `key`, `value`, `derived` (the value that a null stands for, or None), `type`, `unit`,
        `default`, `range`, `doc`, `set_by`, `overrode`, a list of `{"set_by", "value"}` with the
        nearest first, `costs`, which is what `costs_of` returns, `in_run`, which is the `value` of
        the run and its `set_by` if the key is that of a phase, or None, and `in_phases`, the values
        of the phases that have another value than the run. The end of a phase has its position in
        `derived`: `samples`, `steps` and `tokens`.

    Raises:
        UsageError: there is no such setting.
    """
    if (parts := split_phase_key(key)) is not None:
        return _explain_in_phase(*parts, resolved)
    if key in DERIVED:
        return _explain_derived(key, resolved)
    if resolved.plan.has_names:
        key = _own_key(key)
    fact = _explain_setting(key, resolved.config, derived(resolved))
    if not resolved.plan.has_names:
        fact["costs"] = costs_of(key, resolved.phases[0])
    return {**fact, "in_phases": _other_values(key, fact["value"], resolved)}


def _explain_setting(key: str, config: Config, known: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `explain` of a setting in one configuration.

    Args:
        known: derived values of settings that are null.
    """
    setting = find_setting(key)
    if setting is None:
        raise unknown_key(key, offer=lambda keys: [f"rampcli explain {one}" for one in keys])
    history = stack_of(config).history(key)
    if key in FOREIGN:  # without the entry that says that the word is translated
        history = [Entry(None, DEFAULT), *(entry for entry in history if entry.by is None)]
    if not history and (extension := extension_of(key)) is not None:
        raise UsageError(
            f"{key} is a setting of an extension that this run does not use",
            keys=(key,),
            remedy=f"rampcli explain {key} {extension.key}={extension.name}",
        )
    value = history[-1].value
    return {
        "key": key,
        "value": value,
        "derived": known.get(key) if value is None else None,
        "type": setting.type_name() + (" or null" if setting.optional else ""),
        "unit": unit_of(config) if setting.unit == "samples" else setting.unit,
        "default": setting.default,
        "range": setting.range_name() or None,
        "doc": setting.doc,
        "set_by": history[-1].place,
        "overrode": [
            {"set_by": entry.place, "value": entry.value} for entry in reversed(history[:-1])
        ],
        "costs": None,
        "in_run": None,
        "in_phases": {},
    }


def explain_all(key: str, resolved: Resolved) -> list[dict[str, Any]]:
    """Returns what `explain` says of a key, or of a key of NeMo's files and what it decides here.

    Raises:
        UsageError: there is no such setting.
    """
    effects: NemoEffects | None = stack_of(resolved.config).nemo_effects
    decided = None if effects is None or key in settings() else effects.decided_by(key)
    if effects is None or decided is None:
        return [explain(key, resolved)]
    entry = effects.given.get(key)
    of_nemo: dict[str, Any] = {
        "key": key,
        "value": None if entry is None else entry.value,
        **dict.fromkeys(("derived", "type", "default", "range", "costs", "in_run", "unit")),
        "in_phases": {},
        "doc": f"NeMo's key. {effects.meaning(key)}",
        "set_by": None if entry is None else entry.place,
        "overrode": [],
    }
    return [of_nemo, *(explain(one, resolved) for one in decided if find_setting(one))]


def _own_key(key: str) -> str:
    """Returns our key for a spelling. The words of a run with phases are settings of their own.

    Raises:
        UsageError: a word of MaxText, which several settings follow from.
    """
    if key in FOREIGN and key not in SPELLINGS:
        keys = (GLOBAL_KEY, MICRO_KEY, ACCUMULATE_KEY)
        raise UsageError(
            f"{key} is not explained in a run with phases, where {listed(keys)} have its place",
            keys=(key,),
            remedy=[f"rampcli explain {one}" for one in keys],
        )
    return SPELLINGS.get(key, key)


def _explain_in_phase(name: str, inside: str, resolved: Resolved) -> dict[str, Any]:
    """Returns a setting as it applies in a phase, and what the run has."""
    inside = _own_key(inside)
    key = phase_key(name, inside)
    if (setting := find_setting(key)) is None:
        raise unknown_key(key, offer=lambda keys: [f"rampcli explain {one}" for one in keys])
    phase = next((one for one in resolved.phases if one.plan.name == name), None)
    if phase is None:
        raise _no_phase(key, name, inside, resolved)
    if inside != UNTIL:
        fact = _explain_setting(inside, phase.config, _derived_in(phase))
        run = _explain_setting(inside, resolved.config, {})
        overrode = [entry for entry in fact["overrode"] if entry["set_by"] != fact["set_by"]]
        in_run = {"value": run["value"], "set_by": run["set_by"]}
        costs = costs_of(inside, phase)
        return {**fact, "key": key, "overrode": overrode, "costs": costs, "in_run": in_run}
    entry = stack_of(resolved.config).entry(key)
    end = phase.plan.end
    return {
        "key": key,
        "value": entry.value,
        "derived": None if end is None else asdict(end),
        "type": f"{setting.type_name()} or null",
        "unit": setting.unit,
        "default": setting.default,
        "range": None,
        "doc": setting.doc,
        "set_by": entry.place,
        "overrode": [],
        "costs": None,
        "in_run": None,
        "in_phases": {},
    }


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
        remedy=[f"rampcli explain {phase_key(one, inside)}" for one in names[:MOST_OFFERED]]
        or f"rampcli explain {key} {phase_key(name, UNTIL)}=7.5T",
    )


def _other_values(key: str, value: Any, resolved: Resolved) -> dict[str, Any]:
    """Returns the values of the phases that have another value than the run, by name."""
    values = {phase.name: dict(leaves(phase.config)) for phase in resolved.phases}
    return {name: own[key] for name, own in values.items() if key in own and own[key] != value}


def _explain_derived(key: str, resolved: Resolved) -> dict[str, Any]:
    """Returns a batch that MaxText derives, where the batch is largest."""
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
    return {
        "key": key,
        "value": values[key],
        **dict.fromkeys(("derived", "type", "default", "range", "costs", "in_run")),
        "in_phases": {},
        "unit": "samples",
        "doc": DERIVED[key][0],
        "set_by": "derived, for the largest batch",
        "overrode": [],
    }


def _largest_stage(plan: TrainingPlan | PhasePlan) -> StagePlan:
    return max(plan.stages, key=lambda stage: stage.global_batch_size)


def derived(resolved: Resolved) -> dict[str, Any]:
    """Returns the derived value of each setting that may be null, where the batch is largest.

    Of a run with named phases, it is the run directory alone: the others differ between phases.
    """
    if resolved.plan.has_names:
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
    stack = stack_of(resolved.config)
    known = derived(resolved)
    values = dict(leaves(resolved.config))
    part = part_of(nest(values), section)
    of_part = (
        _lines(part, f"{section}." if section else "", 0)
        if isinstance(part, Mapping)
        else [(section, _yaml(part), 0)]
    )
    lines = []
    for key, text, depth in of_part:
        is_section = key not in values
        comment = "" if is_section else _provenance(key, stack.history(key), known)
        lines.append((f"{'  ' * depth}{text}", comment))
    width = max((len(text) for text, _ in lines), default=0)
    return "".join(
        f"{text:<{width}}  # {comment}\n" if comment else f"{text}\n" for text, comment in lines
    )


def part_of(tree: Mapping[str, Any], section: str) -> Any:
    """Returns a section or a setting of a tree, by its dotted key; the tree if the key is empty.

    Raises:
        UsageError: the tree has no such section.
    """
    part: Any = tree
    for name in filter(None, section.split(".")):
        if not isinstance(part, Mapping) or name not in part:
            raise UsageError(
                f"--package {section}: the configuration has no {section}",
                remedy=" or ".join(f"--package {name}" for name in list(tree)[:4]),
            )
        part = part[name]
    return part


def _lines(tree: Mapping[str, Any], prefix: str, depth: int) -> list[tuple[str, str, int]]:
    lines = []
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            lines += [(key, f"{name}:", depth), *_lines(value, f"{key}.", depth + 1)]
        else:
            lines.append((key, f"{name}: {_yaml(value)}", depth))
    return lines


def _yaml(value: Any) -> str:
    if isinstance(value, list):
        return shown(value)
    text: str = yaml.safe_dump(
        value, default_flow_style=True, allow_unicode=True, width=float("inf")
    )
    return text.removesuffix("\n...\n").rstrip("\n")


def _provenance(key: str, history: list[Entry], known: Mapping[str, Any]) -> str:
    value, parts = history[-1].value, [history[-1].place]
    if value is None and key in known:
        parts.append(f"derived: {known[key]}")
    now = shown(value)
    earlier = [(shown(entry.value), entry.place) for entry in reversed(history[1:-1])]
    overrode = [f"{text} ({place})" for text, place in earlier if text != now]
    if overrode:
        parts.append(f"overrides {', '.join(overrode)}")
    return "; ".join(parts)
