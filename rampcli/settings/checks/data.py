"""Checks what a run reads: its corpora, their split and their documents."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rampcli.errors import Assignments, UsageError, set_to, set_together, shown
from rampcli.settings import Config
from rampcli.settings.corpora import (
    KEYS_OF_SOURCES,
    NAMED_KEY,
    PATH_FORMS,
    corpora_of,
    validation_paths,
)
from rampcli.settings.data import SOURCES

_CORPUS_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")


def check_corpora(config: Config) -> Iterator[UsageError]:
    """Checks that the source has the paths that it needs and no others."""
    data = config.data
    if data.source not in SOURCES:  # an extension uses the settings that it wants
        return
    given = {key: value for key in KEYS_OF_SOURCES if (value := getattr(data, key)) is not None}
    for key in given:
        if data.source not in KEYS_OF_SOURCES[key]:
            yield UsageError(
                f"data.{key} does not apply to data.source={data.source}",
                keys=(f"data.{key}", "data.source"),
                remedy=[_with_source(source, key, given) for source in KEYS_OF_SOURCES[key]],
            )
            return
    if data.source not in PATH_FORMS:
        return
    places = tuple(f"data.{key}" for key in ("path", "blend", "task") if key in given)
    if not places:
        yield UsageError(
            f"data.source={data.source} needs data.path, which is not given",
            keys=("data.source", "data.path"),
            remedy=PATH_FORMS[data.source],
        )
    elif len(places) > 1:
        yield UsageError(
            f"{' and '.join(places)} are both given", keys=places, remedy="one of them"
        )
    elif data.validation_path is not None and data.validation is not None:
        yield UsageError(
            f"data.validation_path and {NAMED_KEY} are both given",
            keys=("data.validation_path", NAMED_KEY),
            remedy=set_to("data.validation_path", None, note=f", and its path in {NAMED_KEY}"),
        )
    else:
        yield from _check_held_out(config, places)


def _with_source(source: str, key: str, given: Mapping[str, Any]) -> Assignments:
    """Returns the settings of another source, which takes a key that is given."""
    values: dict[str, Any] = {"data": source}
    places = ("path", "blend", "task")
    if key in places:
        values |= {f"data.{other}": None for other in places if other in given and other != key}
    elif source in PATH_FORMS and not any(place in given for place in places):
        values["data.path"] = "PATH"
    return set_together(values)


def _check_held_out(config: Config, places: Sequence[str]) -> Iterator[UsageError]:
    """Checks the corpora that are used only for validation.

    Args:
        places: settings that name the training corpora.
    """
    data = config.data
    try:
        trained = [path for _, path in corpora_of(config)]
    except UsageError as error:
        yield error
        return
    for name, path in validation_paths(config).items():
        key = "data.validation_path" if name is None else NAMED_KEY
        if name is not None and not _CORPUS_NAME.fullmatch(name):
            yield UsageError(
                f"{key}: {name!r} cannot name a corpus",
                keys=(key,),
                remedy="up to 100 letters, digits, - and _",
            )
        elif data.task is not None or path in trained:
            yield UsageError(
                f"{key} does not apply to data.task={data.task}"
                if data.task is not None
                else f"{key}: {path} is also a training corpus",
                keys=(key, *places),
                remedy=set_to(key, None, note=", so that data.split applies"),
            )


def check_document_mask(config: Config) -> Iterator[UsageError]:
    """Checks that pairs, which are packed into samples, attend to themselves only."""
    if config.data.source == "pairs" and not config.data.document_mask:
        yield UsageError(
            "data.document_mask=false does not apply to data.source=pairs",
            keys=("data.document_mask", "data.source"),
            remedy=set_to("data.document_mask", True),
        )


def check_split(config: Config) -> Iterator[UsageError]:
    """Checks that `data.split` has three shares: the first above 0, the others at least 0."""
    split = config.data.split
    if len(split) != 3 or min(split) < 0 or split[0] <= 0:
        yield UsageError(
            f"data.split={shown(split)} is not three shares: the first above 0, the others at"
            " least 0",
            keys=("data.split",),
            remedy=set_to("data.split", [98, 1, 1]),
        )


CHECKS = (check_corpora, check_document_mask, check_split)
