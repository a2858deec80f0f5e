"""Composes a folder of configs with Hydra alone, and finds the place of each value by marking."""

import atexit
import re
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rampcli.files import bundled
from rampcli.settings.by_key import flatten

REFUSALS = (HydraException, OmegaConfBaseException, ValueError, RecursionError)
"""What Hydra raises for a tree that it does not compose: RecursionError for a cycle of files."""
MISSING = "???"
_ESCAPED = "$<"
"""Stands for `${` in a mark, which would refer to another value."""


def compose_plainly(folder: Path, config_name: str | None, words: Sequence[str]) -> dict[str, Any]:
    """Returns what Hydra composes, by dotted key, as it is written: counts may be `50M`.

    References are resolved. Arguments and errors as those of `config_of`.
    """
    return values_of(config_of(folder, config_name, words), resolve=True)


def config_of(
    folder: Path, config_name: str | None, words: Sequence[str], *, ours: Path | None = None
) -> DictConfig:
    """Returns what Hydra composes.

    Args:
        folder: of the user's configs.
        config_name: the primary config in that folder. None: the bundled `config`, with the folder
            on the search path.
        words: of the command line, without options.
        ours: what stands in place of the bundled folder.

    Raises:
        HydraException: Hydra refuses the tree. Also OmegaConfBaseException and ValueError.
    """
    ours = ours or bundled("conf")
    main, other = (ours, folder) if config_name is None else (folder, ours)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a primary config without _self_ warns
        with initialize_config_dir(str(main), version_base="1.3"):
            # Without the folder that our plugin adds, which has conf/ as it is.
            search_path = GlobalHydra.instance().config_loader().get_search_path().get_path()
            search_path[:] = [one for one in search_path if one.provider != "rampcli"]
            loader = GlobalHydra.instance().config_loader()
            loader.repository.initialize_sources(loader.get_search_path())
            return compose(
                config_name or "config", overrides=[*words, f"hydra.searchpath=[file://{other}]"]
            )


def values_of(config: DictConfig, *, resolve: bool) -> dict[str, Any]:
    """Returns the values by dotted key, with or without their references resolved.

    Raises:
        OmegaConfBaseException: a value is missing, or a reference cannot be resolved.
    """
    return flatten(OmegaConf.to_container(config, resolve=resolve, throw_on_missing=True))


def expected_places(folder: Path, config_name: str | None, words: Sequence[str]) -> dict[str, str]:
    """Returns the place of each value that Hydra composes, by dotted key.

    Each leaf of each file is replaced by its place, and each value of a word by the word. Hydra
    then composes the places themselves. The values of the tree do not matter for this, except for
    `???`, which stays.

    A place is `exp/a.yaml:4` or `seed=3 (command line)`, without the `+` of the word. That of an
    interpolation is `${.lr} (exp/a.yaml:4)`. A mapping such as `data.validation` may come from
    several files, so it has no place here.
    """
    with tempfile.TemporaryDirectory() as marked:
        _mark_files(folder, Path(marked))
        marked_words = [_marked_word(word, folder) for word in words]
        config = config_of(Path(marked), config_name, marked_words, ours=_marked_conf())
        plain = values_of(config, resolve=False)
    return {
        key: str(place).replace(_ESCAPED, "${")
        for key, place in plain.items()
        if not isinstance(place, dict)
    }


@cache
def _marked_conf() -> Path:
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    _mark_files(bundled("conf"), Path(folder.name))
    return Path(folder.name)


def _mark_files(source: Path, target: Path) -> None:
    for path in source.rglob("*.yaml"):
        name = path.relative_to(source)
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text(_marked(path.read_text(encoding="utf-8"), str(name)))


def _marked(text: str, name: str) -> str:
    """Returns a file whose leaves are their places. Its headers and its defaults list stay."""
    headers = [line for line in text.splitlines() if re.match(r"\s*#\s*@", line)]
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    tree = {} if root is None else _marks(root, name)
    return "\n".join([*headers, yaml.safe_dump(tree, sort_keys=False)])


def _marks(node: yaml.MappingNode, name: str) -> dict[str, Any]:
    marks: dict[str, Any] = {}
    for key, value in node.value:
        place = f"{name}:{key.start_mark.line + 1}"
        if key.value == "defaults":
            marks[key.value] = yaml.SafeLoader("").construct_document(value)
        elif isinstance(value, yaml.MappingNode):
            marks[key.value] = _marks(value, name)
        elif value.value == MISSING:
            marks[key.value] = MISSING
        elif "${" in value.value:
            marks[key.value] = f"{value.value.replace('${', _ESCAPED)} ({place})"
        else:
            marks[key.value] = place
    return marks


def _marked_word(word: str, folder: Path) -> str:
    """Returns a word whose value is its place.

    `+key` becomes `++key` because a mark is not null, and `~key=value` becomes `~key` because the
    value is a mark. Words that choose options stay.
    """
    override = OverridesParser.create().parse_override(word)
    key = override.key_or_group
    if any((among / key).is_dir() for among in (folder, bundled("conf"))):
        return word
    if override.is_delete():
        return f"~{key}"
    if isinstance(override.value(), dict):
        return word
    mark = f"{word.lstrip('+').replace('${', _ESCAPED)} (command line)"
    return f"{'++' if word.startswith('+') else ''}{key}='{mark}'"


@contextmanager
def written(files: dict[str, str]) -> Iterator[Path]:
    """Writes files to a folder, which is deleted at the end."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        yield Path(folder)
