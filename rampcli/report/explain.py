"""Explains settings: what they are, their values, and where the values come from."""

from collections.abc import Mapping
from typing import Any

import yaml

from rampcli.batch.pairs import PAIRS_KEY, PROMPTS_KEY
from rampcli.batch.plan import ACCUMULATE_KEY, GLOBAL_KEY, MICRO_KEY
from rampcli.batch.training_plan import StagePlan
from rampcli.config.layers import DEFAULT, Entry, stack_of
from rampcli.config.rl import RESPONSE_KEY, max_response_tokens, unit_of
from rampcli.config.settings import extension_of, find_setting, leaves, nest
from rampcli.config.unknown_keys import unknown_key
from rampcli.errors import UsageError, shown
from rampcli.planning.run_plan import Resolved
from rampcli.report.choices import costs_of
from rampcli.words import FOREIGN
from rampcli.words.refused import DERIVED


def explain(key: str, resolved: Resolved) -> dict[str, Any]:
    """Returns a setting, its value and its history.

    Args:
        key: dotted key of a setting, a spelling of another system, or a name in `DERIVED`.

    Returns:
        `key`, `value`, `derived` (the value that a null stands for, or None), `type`, `unit`,
        `default`, `range`, `doc`, `set_by`, `overrode`, a list of `{"set_by", "value"}` with the
        nearest first, and `costs`, which is what `costs_of` returns.

    Raises:
        UsageError: there is no such setting.
    """
    if key in DERIVED:
        return _explain_derived(key, resolved)
    setting = find_setting(key)
    if setting is None:
        raise unknown_key(key, offer=lambda keys: [f"rampcli explain {one}" for one in keys])
    history = stack_of(resolved.config).history(key)
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
        "derived": derived(resolved).get(key) if value is None else None,
        "type": setting.type_name() + (" or null" if setting.optional else ""),
        "unit": unit_of(resolved.config) if setting.unit == "samples" else setting.unit,
        "default": setting.default,
        "range": setting.range_name() or None,
        "doc": setting.doc,
        "set_by": history[-1].place,
        "overrode": [
            {"set_by": entry.place, "value": entry.value} for entry in reversed(history[:-1])
        ],
        "costs": costs_of(key, resolved),
    }


def _explain_derived(key: str, resolved: Resolved) -> dict[str, Any]:
    """Returns a batch that MaxText derives, where the batch is largest."""
    stage = _largest_stage(resolved)
    load, train = resolved.samples_to_load(stage), stage.global_batch_size
    values = {
        "global_batch_to_load": load,
        "global_batch_size_to_load": load,
        "global_batch_to_train": train,
        "global_batch_size_to_train_on": train,
        "micro_batch_size_to_train_on": train // resolved.plan.loads_per_step(stage),
    }
    return {
        "key": key,
        "value": values[key],
        **dict.fromkeys(("derived", "type", "default", "range", "costs")),
        "unit": "samples",
        "doc": DERIVED[key][0],
        "set_by": "derived, for the largest batch",
        "overrode": [],
    }


def _largest_stage(resolved: Resolved) -> StagePlan:
    return max(resolved.plan.stages, key=lambda stage: stage.global_batch_size)


def derived(resolved: Resolved) -> dict[str, Any]:
    """Returns the derived value of each setting that may be null, where the batch is largest."""
    stage = _largest_stage(resolved)
    pairs = resolved.pairs(stage)
    split = (
        {MICRO_KEY: stage.micro_batch_size, ACCUMULATE_KEY: stage.accumulate_grad_batches}
        if pairs is None
        else {
            PROMPTS_KEY: resolved.plan.global_batch_size,
            PAIRS_KEY: pairs.micro_batch_size,
            RESPONSE_KEY: max_response_tokens(resolved.config),
        }
    )
    return split | {
        GLOBAL_KEY: resolved.plan.global_batch_size,
        "run_dir": str(resolved.run_dir),
    }


def with_provenance(resolved: Resolved) -> str:
    """Returns the whole configuration as YAML, with the place of each value in a comment."""
    stack = stack_of(resolved.config)
    known = derived(resolved)
    values = dict(leaves(resolved.config))
    lines = []
    for key, text, depth in _lines(nest(values), "", 0):
        is_section = key not in values
        comment = "" if is_section else _provenance(key, stack.history(key), known)
        lines.append((f"{'  ' * depth}{text}", comment))
    width = max(len(text) for text, _ in lines)
    return "".join(
        f"{text:<{width}}  # {comment}\n" if comment else f"{text}\n" for text, comment in lines
    )


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
