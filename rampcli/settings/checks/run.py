"""Checks the name of a run, its paths and its launcher."""

import re
from collections.abc import Iterator, Sequence

from rampcli.errors import UsageError, set_to
from rampcli.plugins.launchers import declarations
from rampcli.settings import Config

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def check_name(config: Config) -> Iterator[UsageError]:
    """Checks that the name can name a folder and that the run directory is a path."""
    name = config.name
    if (
        not name
        or name in (".", "..")
        or "/" in name
        or not name.isprintable()
        or len(name.encode(errors="replace")) > 200
    ):
        yield UsageError(
            f"name={name[:100]!r} cannot name a folder",
            keys=("name",),
            remedy="letters, digits, - and _",
        )
    if config.run_dir is not None and (not config.run_dir or "\0" in config.run_dir):
        yield UsageError(
            f"run_dir={config.run_dir!r} is not a path",
            keys=("run_dir",),
            remedy=set_to("run_dir", "runs/NAME"),
        )


def check_paths(config: Config) -> Iterator[UsageError]:
    """Checks that paths are not URLs such as `gs://bucket/wiki`."""
    data = config.data
    paths: dict[str, Sequence[str | None]] = {
        "data.path": [data.path],
        "data.blend": data.blend or [],
        "data.validation_path": [data.validation_path],
        "data.validation": list((data.validation or {}).values()),
        "data.tokenizer": [data.tokenizer],
        "model.init_from": [config.model.init_from],
        "run_dir": [config.run_dir],
    }
    for key, path in ((key, path) for key, among in paths.items() for path in among if path):
        if scheme := _SCHEME.match(path):
            folder = f"/mnt/{path[scheme.end() :].lstrip('/')}"
            yield UsageError(
                f"{key}: {path} is a URL, but only files and folders can be used",
                keys=(key,),
                remedy="a mounted folder, or a copy: "
                + (folder if key in ("data.blend", "data.validation") else f"{key}={folder}"),
            )


def check_elastic(config: Config) -> Iterator[UsageError]:
    """Checks that the launcher trains on when nodes are lost, and that there are enough nodes."""
    launch, num_nodes = config.launch, config.trainer.num_nodes
    if launch.elastic and not declarations()[launch.launcher].supports_elastic:
        able = [name for name, one in declarations().items() if one.supports_elastic]
        yield UsageError(
            f"launch.elastic=true needs launch={' or '.join(able)}: with launch={launch.launcher},"
            " the nodes of a stage are fixed",
            keys=("launch.elastic", "launch.launcher"),
            remedy=set_to("launch.elastic", False),
        )
    if launch.elastic and launch.min_nodes > num_nodes:
        yield UsageError(
            f"launch.min_nodes={launch.min_nodes} is above trainer.num_nodes={num_nodes}",
            keys=("launch.min_nodes", "trainer.num_nodes"),
            remedy=set_to("launch.min_nodes", num_nodes, note=" or less"),
        )


CHECKS = (
    check_name,
    check_paths,
    check_elastic,
    *(check for declaration in declarations().values() for check in declaration.checks),
)
