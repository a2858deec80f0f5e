"""MaxText's mesh: its words for the axes of parallelism, in our settings.

Each axis has a size within a slice (`ici_*`) and one across slices (`dcn_*`). As in MaxText's
`fill_unspecified_mesh_axes`, one size of each group may be -1: it takes the remaining devices.
"""

from collections.abc import Mapping
from math import prod

from rampcli.batch.division import divisors
from rampcli.batch.plan import DEVICES_KEY, FLEET_KEYS, NUM_NODES_KEY, SHARD_KEY, ParallelSizes
from rampcli.errors import Remedy, UsageError, set_to
from rampcli.words.translation import CombinedWord, L, Layers, contradiction, given

MODEL_AXES = {axis: f"parallel.{axis}_parallel_size" for axis in ("tensor", "pipeline", "context")}
"""Canonical key of each axis that splits the model."""
DATA_AXES = ("fsdp", "data")
"""Axes of the data-parallel ranks. Ranks along the first share one copy of the weights."""
GROUPS = ("ici", "dcn")
AXES = {
    f"{group}_{axis}_parallelism": axis for axis in (*MODEL_AXES, *DATA_AXES) for group in GROUPS
}
"""The axis of each word."""
KEYS = {word: MODEL_AXES.get(axis, SHARD_KEY) for word, axis in AXES.items()}
"""The canonical key that each word decides, alone or with others."""
DECIDED = {key: tuple(word for word, ours in KEYS.items() if ours == key) for key in KEYS.values()}
"""The words that decide each canonical key."""
_AXIS_MEANINGS = {
    "tensor": "devices that share each layer",
    "pipeline": "stages of the pipeline",
    "context": "devices that share each sequence",
    "fsdp": "devices that share one copy of the weights",
    "data": "copies of the weights",
}
_PLACES = {"ici": ("within a slice", "dcn"), "dcn": ("across slices", "ici")}


def _meaning(word: str, axis: str) -> str:
    place, other = _PLACES[word[:3]]
    becomes = (
        f"is the number of copies; `{KEYS[word]}` ranks share each"
        if axis == "data"
        else f"sets `{KEYS[word]}`"
    )
    return (
        f"MaxText: {_AXIS_MEANINGS[axis]}, {place}; -1 takes the remaining devices."
        f" Its product with `{other}_{axis}_parallelism` {becomes}."
    )


WORDS = {
    word: CombinedWord(int, "1", _meaning(word, axis), MODEL_AXES.get(axis))
    for word, axis in AXES.items()
}
ICI_FSDP, DCN_DATA = "ici_fsdp_parallelism", "dcn_data_parallelism"
"""Words that are -1 in MaxText unless they are given."""
FILLS = -1
"""The size that takes the remaining devices."""


def fleet_of(layers: Layers) -> tuple[int, ParallelSizes]:
    """Returns the devices of a run, and the sizes of the axes that split its model."""
    sizes = {axis: max(1, layers.entry(key).value) for axis, key in MODEL_AXES.items()}
    num_devices = layers.entry(NUM_NODES_KEY).value * layers.entry(DEVICES_KEY).value
    return num_devices, ParallelSizes(**sizes)


def settle_mesh(layers: L) -> tuple[L, tuple[str, ...]]:
    """Returns layers in which our sizes are those of the words, and no notes.

    Raises:
        UsageError: as `read_mesh`, or one of our keys is given with another value.
    """
    words = given(layers, AXES)
    num_devices, parallel = fleet_of(layers)
    meant = read_mesh(words, num_devices=num_devices, parallel=parallel)
    for key, size in meant.items():
        used = [word for word in words if KEYS[word] == key]
        nearest = max(used, key=lambda word: (layers.precedence(word), words[word]))
        precedence, near = layers.precedence(key), layers.precedence(nearest)
        if precedence == near and layers.entry(key).value not in (None, size):
            raise contradiction(layers, key, size, used)
        if precedence <= near:
            layers = layers.decided(key, nearest, size, words=used)
    return layers, ()


def read_mesh(
    words: Mapping[str, int], *, num_devices: int, parallel: ParallelSizes
) -> dict[str, int | None]:
    """Returns what MaxText's words mean in our settings, by canonical key.

    rampcli has no slices. If a size of each group is -1, all devices are one slice.

    Args:
        words: sizes by name in `AXES`; absent if not given.
        parallel: sizes of the axes that no word gives.

    Returns:
        The sizes of the axes that words give. `SHARD_KEY` is None if `fsdp` takes all ranks.

    Raises:
        UsageError: a size is below one, or the sizes do not use the devices exactly.
    """
    _check_sizes(words)
    known = {word: max(1, size) for word, size in words.items()}
    given = {AXES[word] for word in words}
    model = {
        key: _size(axis, known) if axis in given else getattr(parallel, axis)
        for axis, key in MODEL_AXES.items()
    }
    filling = _find_filling(words)
    splits_data = not given.isdisjoint(DATA_AXES)
    ranks, rest = divmod(num_devices, prod(model.values()))
    # The plan refuses devices that do not divide into the model, and names their keys.
    if ranks > 0 and not rest and (filling or splits_data):
        left = _divide(ranks, words, filling, model)
        known |= {filling: left} if filling else {}
    meant: dict[str, int | None] = {
        key: _size(axis, known) for axis, key in MODEL_AXES.items() if axis in given
    }
    if splits_data:
        takes_all = filling == ICI_FSDP and _size("data", known) == 1
        meant[SHARD_KEY] = None if takes_all else _size("fsdp", known)
    return meant


def _size(axis: str, known: Mapping[str, int]) -> int:
    return prod(known.get(f"{group}_{axis}_parallelism", 1) for group in GROUPS)


def _check_sizes(words: Mapping[str, int]) -> None:
    for word, size in words.items():
        if size < 1 and size != FILLS:
            raise UsageError(
                f"{word}={size} must be 1 or more, or -1", keys=(word,), remedy=set_to(word, 1)
            )


def _find_filling(words: Mapping[str, int]) -> str | None:
    """Returns the word whose size takes the remaining devices, or None.

    Raises:
        UsageError: two sizes of a group are -1; or one of each group, and one splits the model.
    """
    by_group = {
        group: [word for word, size in words.items() if size == FILLS and word.startswith(group)]
        for group in GROUPS
    }
    splits_data = any(AXES[word] in DATA_AXES for word in words)
    # Sizes of the model alone leave the data-parallel ranks to our own settings.
    if splits_data or by_group["dcn"]:
        if ICI_FSDP not in words:
            by_group["ici"].append(ICI_FSDP)
        if not any(by_group.values()) and DCN_DATA not in words:
            by_group["dcn"] = [DCN_DATA]
    filling = [word for group in GROUPS for word in by_group[group]]
    splits_model = any(AXES[word] in MODEL_AXES for word in filling)
    if max(map(len, by_group.values())) > 1 or (len(filling) > 1 and splits_model):
        shown = [
            f"{word}=-1" + ("" if word in words else " (MaxText's default)") for word in filling
        ]
        both = "both" if len(shown) == 2 else "all"
        raise UsageError(
            f"{' and '.join(shown)} cannot {both} take the remaining devices",
            keys=tuple(word for word in filling if word in words),
            remedy=set_to(filling[0], 1),
        )
    return filling[0] if filling else None


def _divide(
    ranks: int, words: Mapping[str, int], filling: str | None, model: Mapping[str, int]
) -> int:
    """Returns the ranks divided by the given sizes of the data-parallel axes.

    Raises:
        UsageError: they do not divide the ranks, or leave some and no size is -1.
    """
    sizes = {word: size for word, size in words.items() if AXES[word] in DATA_AXES and size > 0}
    taken = prod(sizes.values())
    if ranks % taken == 0 and (filling or ranks == taken):
        return ranks // taken
    *_, last = sizes
    room, rest = divmod(ranks, taken // sizes[last])
    if rest:
        remedy: Remedy = f"sizes with the product {ranks}"
    else:
        remedy = set_to(last, divisors(room, most=sizes[last])[-1] if filling else room)
    product = " x ".join(f"{word}={size}" for word, size in sizes.items())
    raise UsageError(
        f"{product}{f' = {taken}' if len(sizes) > 1 else ''} does not divide"
        f" {ranks} data-parallel ranks"
        if filling
        else f"{product} = {taken}, but there are {ranks} data-parallel ranks",
        keys=(*sizes, *FLEET_KEYS, *(key for key, size in model.items() if size > 1)),
        remedy=remedy,
    )
