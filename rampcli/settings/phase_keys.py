"""Keys of phases: `phases.NAME.KEY` sets KEY in one phase, and `phases.NAME.until` ends it."""

from collections.abc import Container, Iterable

from rampcli.errors import UsageError

PHASES, UNTIL = "phases", "until"


def phase_key(name: str | None, key: str) -> str:
    """Returns the key that sets `key` in a phase: `key` itself in one without a name."""
    return key if name is None else f"{PHASES}.{name}.{key}"


def split_phase_key(key: str) -> tuple[str, str] | None:
    """Returns the phase that a key names, and the key in it; None for a setting of the run."""
    section, _, rest = key.partition(".")
    name, _, inner = rest.partition(".")
    is_inside = section == PHASES and name.isidentifier() and inner
    return (name, inner) if is_inside and inner.partition(".")[0] != PHASES else None


def is_phase(key: str) -> bool:
    """Returns whether a key is a phase itself, `phases.NAME`, or all of them, `phases`.

    Only null can be set there. It drops what the layers below say about the phase.
    """
    section, dot, name = key.partition(".")
    return section == PHASES and (not dot or name.isidentifier())


def is_dropped(key: str, by: Iterable[str]) -> bool:
    """Returns whether one of some keys is the phase that a key is about, or all phases."""
    return any(key.startswith(f"{one}.") for one in by if is_phase(one))


def key_inside(key: str) -> str:
    """Returns the key that a key of a phase sets in it, or the same key outside phases."""
    parts = split_phase_key(key)
    return key if parts is None else parts[1]


def checked_name(name: object, earlier: Container[str], *, place: str) -> str:
    """Returns the name of a phase in a list.

    Args:
        name: None if the phase has none.
        place: of the phase in the list, to follow `phases` in a message.

    Raises:
        UsageError: the name is not an identifier, or an earlier phase has it.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise UsageError(
            f"{PHASES}{place}: each phase is a mapping with a name of letters, digits and _",
            keys=(PHASES,),
            remedy='{"name": "main", "until": "7.5T", "data.sequence_length": 4096}',
        )
    if name in earlier:
        raise UsageError(
            f"{PHASES}{place}: there are two phases with the name {name}",
            keys=(PHASES,),
            remedy="a name for each phase",
        )
    return name
