"""Keys of phases: `phases.NAME.KEY` sets KEY in one phase, and `phases.NAME.until` ends it."""

PHASES, UNTIL = "phases", "until"


def phase_key(name: str, key: str) -> str:
    """Returns the key that sets `key` in a phase."""
    return f"{PHASES}.{name}.{key}"


def split_phase_key(key: str) -> tuple[str, str] | None:
    """Returns the phase that a key names, and the key in it; None for a setting of the run."""
    section, _, rest = key.partition(".")
    name, _, inner = rest.partition(".")
    is_inside = section == PHASES and name.isidentifier() and inner
    return (name, inner) if is_inside and inner.partition(".")[0] != PHASES else None


def key_inside(key: str) -> str:
    """Returns the key that a key of a phase sets in it, or the same key outside phases."""
    parts = split_phase_key(key)
    return key if parts is None else parts[1]
