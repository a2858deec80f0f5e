"""Files of another system's settings: how they are read, and what they mean here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rampcli.errors import UsageError

NOT_SET = "is not set"


@dataclass(frozen=True, slots=True)
class Unresolved:
    """Stands for a value whose references cannot be resolved, such as `${data_dir}/wiki`, or `???`.

    Attributes:
        text: the value as it was written.
        error: why.
    """

    text: str
    error: UsageError = field(compare=False, default_factory=lambda: UsageError(NOT_SET))


@dataclass(frozen=True, kw_only=True, slots=True)
class Decided:
    """A value of ours and their keys that decided it. Without keys, it is their default."""

    value: Any
    keys: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ForeignRun:
    """What a file of another system means here.

    Each key of the file decides settings or options, is unchanged, or is unsupported.

    Attributes:
        settings: values of our keys, complete over the defaults of our schema.
        options: options of the groups in conf/, over which the settings apply.
        unchanged: their keys that change neither the model nor the numbers here.
        unsupported: why other keys, which change them, have no equal here. Also has keys that the
            file leaves out, if their default has no equal.
        instead: our settings that replace an unsupported key if a user sets one of them.
        notes: effects that may surprise, by the key that has them.
        names: the file's key for each of our settings that takes the same values.
    """

    settings: dict[str, Decided] = field(default_factory=dict)
    options: dict[str, Decided] = field(default_factory=dict)
    unchanged: tuple[str, ...] = ()
    unsupported: dict[str, str] = field(default_factory=dict)
    instead: dict[str, tuple[str, ...]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class FileFormat:
    """How a system's files are read. Functions take values by dotted key, as `read` does.

    Attributes:
        recognises: returns whether the keys are those of such a file.
        read: returns what a file means. Lists are leaves, an empty mapping is `{}`, and a value
            with references that cannot be followed is `Unresolved`.
        names: returns `ForeignRun.names` alone.
        alone: our key for each of theirs that alone decides a setting.
        neutral: for keys that have no equal, the values that change nothing besides null, and why.
    """

    name: str
    recognises: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Mapping[str, Any]], ForeignRun]
    names: Callable[[Mapping[str, Any]], dict[str, str]]
    alone: Mapping[str, str]
    neutral: Mapping[str, tuple[tuple[Any, ...], str]]
