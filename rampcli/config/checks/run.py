"""Checks the name of the run, its run directory and the other paths."""

import re

from rampcli.config.schema import Config
from rampcli.errors import Report, UsageError, set_to

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def check_name(config: Config) -> None:
    """Checks that the name can name a folder and that the run directory is a path."""
    name = config.name
    if (
        not name
        or name in (".", "..")
        or "/" in name
        or not name.isprintable()
        or len(name.encode(errors="replace")) > 200
    ):
        raise UsageError(
            f"name={name[:100]!r} cannot name a folder",
            keys=("name",),
            remedy="letters, digits, - and _",
        )
    if config.run_dir is not None and (not config.run_dir or "\0" in config.run_dir):
        raise UsageError(
            f"run_dir={config.run_dir!r} is not a path",
            keys=("run_dir",),
            remedy=set_to("run_dir", "runs/NAME"),
        )


def check_paths(config: Config) -> None:
    """Checks that paths are not URLs such as `gs://bucket/wiki`.

    Raises:
        UsageError: all URLs together.
    """
    data, report = config.data, Report()
    paths = {
        "data.path": [data.path],
        "data.blend": data.blend,
        "data.validation_path": [data.validation_path],
        "data.validation": list((data.validation or {}).values()),
        "data.tokenizer": [data.tokenizer],
        "model.init_from": [config.model.init_from],
        "run_dir": [config.run_dir],
    }
    for key, values in paths.items():
        for path in values or ():
            with report.noting():
                _check_path(key, path)
    report.close()


def _check_path(key: str, path: str | None) -> None:
    if path is not None and (scheme := _SCHEME.match(path)):
        folder = f"/mnt/{path[scheme.end() :].lstrip('/')}"
        raise UsageError(
            f"{key}: {path} is a URL, but only files and folders can be used",
            keys=(key,),
            remedy="a mounted folder, or a copy: "
            + (folder if key in ("data.blend", "data.validation") else f"{key}={folder}"),
        )
