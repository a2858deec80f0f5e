"""Attributes of a configuration that are not settings: the words of other systems.

`recipe.data.global_batch_size = 16` sets `model.global_batch_size`. A word that means exactly one
of our keys is a second name of that attribute, so the last assignment applies. Other words have
values of their own, which are translated once all settings are known (`rampcli.config.translate`).
A later assignment to a setting applies over them, too.
"""

from contextlib import suppress
from dataclasses import fields
from keyword import iskeyword
from operator import attrgetter
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar

from rampcli.words import COMBINED, DECIDED, FOREIGN, SPELLINGS

WORD_SECTIONS = frozenset(
    word.rsplit(".", dots)[0] for word in FOREIGN for dots in range(1, word.count(".") + 1)
)
"""Sections in which other systems have words: `data`, `train`, `trainer.strategy`, ..."""
WORDS_FIELD = "words"
"""Field of a configuration for words that set none of our keys alone."""
_set = object.__setattr__


class Section:
    """A section of settings, in which the words of other systems are attributes, too.

    An attribute that is neither a setting nor a word raises an AttributeError with the nearest one.
    """

    __slots__ = ("_config",)
    _config: "Traced"
    """The configuration that the section was assigned to last. A section alone has none."""
    _prefix: ClassVar[str] = ""
    """Of the keys of its settings, with its dot."""

    if not TYPE_CHECKING:  # so that mypy finds attributes that do not exist

        def __setattr__(self, name: str, value: Any) -> None:
            try:
                _set(self, name, value)
            except AttributeError:
                _assign_word(self, name, value)
            else:
                _apply_over_words(self, name, value)

        def __getattr__(self, name: str) -> Any:
            return _read_word(self, name)

        def __delattr__(self, name: str) -> None:
            raise _error("deleted", _key(self, name))


class Traced(Section):
    """A whole configuration, and how it was made.

    Attributes:
        stack: the layers it was made from (`rampcli.config.layers.Stack`); None if made by hand.
        spelled: the word that was assigned for a setting, or its own key after other words, and its
            value, by key. It counts while the setting has this value.
    """

    __slots__ = ("spelled", "stack")
    stack: Any
    spelled: dict[str, tuple[str, Any]]
    words: dict[str, Any]

    def __post_init__(self) -> None:
        self.stack, self.spelled = None, {}

    if not TYPE_CHECKING:

        def __setattr__(self, name: str, value: Any) -> None:
            before = None
            with suppress(AttributeError):  # not yet set
                before = object.__getattribute__(self, name)
            if isinstance(value, Section):
                _set(value, "_config", self)
            Section.__setattr__(self, name, value)
            if not isinstance(value, Section) or before is None:
                return
            for own in (one.name for one in fields(value)):
                now = getattr(value, own)
                if _key(value, own) in DECIDED or now != getattr(before, own):
                    _apply_over_words(value, own, now)


class WordSection(Section):
    """A section that only other systems have, such as `train` and `trainer.strategy`."""

    __slots__ = ("_prefix",)

    def __init__(self, config: Traced, place: str) -> None:
        self._config = config
        _set(self, "_prefix", f"{place}.")


def _read_word(section: Section, name: str) -> Any:
    if name.startswith("_"):  # that of a protocol, such as copying
        raise AttributeError(f"{type(section).__name__} has no attribute {name}")
    key, config = _key(section, name), _config_of(section)
    if config is None or key not in FOREIGN | WORD_SECTIONS:
        raise _error("unknown", key)
    if key in WORD_SECTIONS:
        return WordSection(config, key)
    return attrgetter(SPELLINGS[key])(config) if key in SPELLINGS else config.words.get(key)


def _assign_word(section: Section, name: str, value: Any) -> None:
    key, config = _key(section, name), _config_of(section)
    if config is None or key not in FOREIGN:
        raise _error("unknown", key) from None
    if key in COMBINED:
        config.words[key] = value
        return
    ours = SPELLINGS[key]
    place, _, own_name = ours.rpartition(".")
    setattr(attrgetter(place)(config) if place else config, own_name, value)
    config.spelled[ours] = key, value


def _apply_over_words(section: Section, name: str, value: Any) -> None:
    """Lets the assignment of a setting apply over words that were assigned earlier.

    Words that only decide this setting are unset. Beside others, such as the batch per device, it
    counts as on a command line, also if it equals the value of the recipe.
    """
    config: Traced | None = getattr(section, "_config", None)
    if name.startswith("_") or config is None or not (config.words or config.spelled):
        return
    key = _key(section, name)
    if key in DECIDED:
        config.words |= {word: None for word in DECIDED[key] if config.words.get(word) is not None}
    else:
        config.spelled[key] = key, value


def words_assigned(config: Traced) -> dict[str, str]:
    """Returns the word, or its own key, that a setting was last assigned through, by key."""
    return {
        key: word
        for key, (word, value) in config.spelled.items()
        if attrgetter(key)(config) == value
    }


def _config_of(section: Section) -> Traced | None:
    return section if isinstance(section, Traced) else getattr(section, "_config", None)


def _key(section: Section, name: str) -> str:
    return f"{section._prefix}{name}"


def field_name(name: str) -> str:
    """Returns the name of a field. One that is a Python keyword ends in `_`."""
    return f"{name}_" if iskeyword(name) else name


def _error(kind: str, key: str) -> AttributeError:
    """Returns the error for a key that does not exist, or for one that would be deleted.

    It names other settings, whose sections import this module, so it is imported late.
    """
    error: AttributeError = resolve_name(f"rampcli.settings.unknown_keys:{kind}_attribute")(key)
    return error
