"""A configuration as dotted keys and values, and back: the one place where values become typed."""

import copy
import dataclasses
import difflib
import math
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import cache
from typing import Any, get_args

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException, ValidationError

from rampcli.batch.quantities import parse_count
from rampcli.config.schema import Config
from rampcli.errors import UsageError


def leaves(settings: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of a dataclass instance, as (dotted key, value), in the order of the schema."""
    for field in dataclasses.fields(settings):
        key, value = f"{prefix}{field.name}", getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            yield from leaves(value, f"{key}.")
        else:
            yield key, value


@cache
def known_keys() -> dict[str, Any]:
    """`{dotted key: type}` of every setting there is, spellings included."""
    return dict(_leaf_types(Config, ""))


def _leaf_types(schema: type, prefix: str) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(schema):
        key = f"{prefix}{field.name}"
        if dataclasses.is_dataclass(field.type):
            yield from _leaf_types(field.type, f"{key}.")  # type: ignore[arg-type]
        else:
            yield key, field.type


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested mapping as dotted keys. An empty mapping stays a leaf, so that a wrong one is seen."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{key}.")
        else:
            flat[key] = value
    return flat


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as a nested mapping."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *parents, name = key.split(".")
        branch = tree
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[name] = value
    return tree


def build(values: Mapping[str, Any], *, place: Callable[[str], str]) -> Config:
    """The typed configuration with these leaves; the rest are defaults.

    Args:
        values: by dotted key. Counts may be written `50M`.
        place: names where the value of a key came from, for errors.

    Raises:
        UsageError: an unknown key, or a value of the wrong type.
    """
    node = copy.deepcopy(_blank())
    for key, value in values.items():
        try:
            _set(node, key, value)
        except UsageError as error:
            error.set_by = (place(key),)
            raise
    config = OmegaConf.to_object(node)
    assert isinstance(config, Config)
    return config


@cache
def _blank() -> DictConfig:
    blank: DictConfig = OmegaConf.structured(Config)
    return blank


def _set(node: DictConfig, key: str, value: Any) -> None:
    if key not in known_keys():
        raise unknown_key(key)
    expected = known_keys()[key]
    items = value if isinstance(value, list) else [value]
    if any(isinstance(item, str) and ("${" in item or item == "???") for item in items):
        raise UsageError(
            f"{key}={_shown(value)}: references (${{...}}) and ??? are not resolved here", keys=(key,), remedy="the value itself"
        )
    if _takes_integers(expected):
        value = _count(value)
    try:
        if any(isinstance(item, list | dict) for item in items):
            raise ValidationError("a list in a list")
        OmegaConf.update(node, key, value.value if isinstance(value, Enum) else value)
    except OmegaConfBaseException as error:
        raise UsageError(f"{key}={_shown(value)} is not {_type_name(expected)}", keys=(key,), remedy=_example(key)) from error
    number = OmegaConf.select(node, key)
    if isinstance(number, float) and not math.isfinite(number):
        raise UsageError(f"{key}={_shown(value)} is not a finite number", keys=(key,), remedy=_example(key))


def _takes_integers(expected: Any) -> bool:
    return expected is int or int in get_args(expected) or list[int] in get_args(expected)


def _count(value: Any) -> Any:
    if isinstance(value, list):
        return [_count(item) for item in value]
    count = parse_count(value) if isinstance(value, str) else None
    return value if count is None else count


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    return f"[{','.join(map(str, value))}]" if isinstance(value, list) else str(value)


def _type_name(expected: Any) -> str:
    options = [option for option in (get_args(expected) or (expected,)) if option is not type(None)]
    return " or ".join(_TYPE_NAMES.get(option) or f"one of {', '.join(member.value for member in option)}" for option in options)


_TYPE_NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "a text", list[int]: "a list of integers"}


def _example(key: str) -> str | None:
    examples = {"model.rampup_batch_size": "model.rampup_batch_size=[256,128,50000000]"}
    if key in examples:
        return examples[key]
    default = dict(leaves(Config()))[key]
    return None if default is None else f"{key}={str(default).lower() if isinstance(default, bool) else default}"


def unknown_key(key: str) -> UsageError:
    """The error for a key that does not exist, with the nearest that do."""
    sections = [known for known in known_keys() if known.startswith(f"{key}.")]
    if sections:
        return UsageError(f"{key} is a section, not a setting", keys=(key,), remedy=", ".join(sections[:3]) + ", ...")
    remedy = " or ".join(nearest_keys(key)) or "rampcli pretrain --factory NAME --cfg lists all"
    return UsageError(f"there is no setting {key}", keys=(key,), remedy=remedy)


def nearest_keys(key: str) -> list[str]:
    """Up to three settings that a mistyped key may have meant: alike as a whole, or alike in their last word."""
    whole = difflib.get_close_matches(key, known_keys(), n=3, cutoff=0.75)
    names: dict[str, list[str]] = {}
    for known in known_keys():
        names.setdefault(known.rpartition(".")[2], []).append(known)
    by_name = [known for name in difflib.get_close_matches(key.rpartition(".")[2], names, n=2, cutoff=0.75) for known in names[name]]
    return list(dict.fromkeys(whole + by_name))[:3]
