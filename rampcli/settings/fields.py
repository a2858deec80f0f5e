"""Declares the fields of the schema."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, get_origin, overload

from rampcli.settings.attributes import Section
from rampcli.settings.facts import Facts

__all__ = ["settings_class"]
T = TypeVar("T")
S = TypeVar("S", bound=Section)

if TYPE_CHECKING:  # mypy takes a class variable of a class with slots for an error
    from dataclasses import dataclass as settings_class
else:
    settings_class = partial(dataclass, slots=True)


class Keyed(Generic[T]):
    """A setting of a section: `config.optim.lr` is its value, and `OptimConfig.lr` is its key."""

    def __init__(self, key: str, slot: Any) -> None:
        self.key, self.slot = key, slot

    @overload
    def __get__(self, section: None, owner: type) -> str: ...
    @overload
    def __get__(self, section: object, owner: type) -> T: ...
    def __get__(self, section: object, owner: type) -> Any:
        return self.key if section is None else self.slot.__get__(section, owner)

    def __set__(self, section: object, value: T) -> None:
        self.slot.__set__(section, value)


def keyed(prefix: str) -> Callable[[type[S]], type[S]]:
    """Returns a decorator that gives each setting of a section its key, see `Keyed`.

    Args:
        prefix: of the section, with its dot. A field whose name ends in `_` has a key without it.
    """

    def with_keys(schema: type[S]) -> type[S]:
        schema._prefix = prefix
        for one in fields(schema):  # type: ignore[arg-type]
            if get_origin(one.type) is Keyed:
                slot = schema.__dict__[one.name]
                setattr(schema, one.name, Keyed(f"{prefix}{one.name.removesuffix('_')}", slot))
        return schema

    return with_keys


def setting(default: Any, doc: str, facts: Facts, **about: Any) -> Any:
    """Returns a field of the schema: one that `own_setting` describes, and what is true of it.

    To add a setting: a field in its section's file in `rampcli/settings`, with its facts
    (`rampcli/settings/facts.py`); then `make docs`.

    Args:
        about: as `own_setting` takes it.
    """
    field = own_setting(default, doc, **about)
    field.metadata = {**field.metadata, "facts": facts}
    return field


def own_setting(
    default: Any,
    doc: str,
    *,
    choices: Iterable[str] = (),
    former: Mapping[str, str | None] | None = None,
    unit: str | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    extensible: bool = False,
    example: Any = None,
) -> Any:
    """Returns a field with its description and range.

    Args:
        default: value if neither conf/ nor a recipe sets one.
        doc: description for `rampcli explain` and the reference; it says what `null` means.
        choices: accepted values, where a table names them and not the type.
        former: other words for values, such as choices that were renamed, and what they mean; both
            are accepted.
        unit: unit of the value, in words.
        at_least, at_most, above, below: accepted range. The items of a list need a check of their
            own for it.
        extensible: also accept names of extensions (`rampcli.plugins.extensions`).
        example: value for error messages. None stands for the default.
    """
    about = {
        "doc": doc,
        "choices": tuple(choices),
        "former": former or {},
        "unit": unit,
        "at_least": at_least,
        "at_most": at_most,
        "above": above,
        "below": below,
        "extensible": extensible,
        "example_value": example,
    }
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata=about)
    return field(default=default, metadata=about)


def section(schema: type) -> Any:
    """Returns a field for a section, with its defaults."""
    # Python's own __setattr__ fills a section in a tenth of the time that `Section` takes.
    quick = type(schema.__name__, (schema,), {"__slots__": (), "__setattr__": object.__setattr__})

    def with_defaults() -> Any:
        made = quick()
        made.__class__ = schema
        return made

    return field(default_factory=with_defaults)


@dataclass(kw_only=True, slots=True)
class Extensible(Section):
    """A section in which extensions have settings of their own.

    Attributes:
        of_extensions: what is true of each of these settings.
        extensions: values by the name of the extension and of the setting.
    """

    of_extensions: ClassVar[Facts]
    extensions: dict[str, dict[str, Any]] = field(default_factory=dict)


def with_meanings(text: str, table: Mapping[str, Any]) -> str:
    """Returns a description that ends with the `about` of each choice of a table."""
    return " ".join((text, *(f"`{name}`: {one.about}." for name, one in table.items())))
