"""The launchers by name, and what each declares to the rest of the program."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from rampcli.errors import UsageError

LAUNCHERS = {"local": "rampcli.launch.local", "slurm": "rampcli.launch.slurm"}
"""The package of each launcher, by the value of `launch.launcher`.

A package has `DECLARATION`, which every command reads, so it imports little; and the module
`launcher` with `LAUNCHER`, a `rampcli.launch.protocol.Launcher`. Packages are named as strings,
because the settings, which are below `rampcli.launch`, take the launchers' own from here. In a run
directory, the folder with the launcher's name holds its files.

To add a launcher: an entry here, a folder of `rampcli/launch` with a Launcher as in
`rampcli/launch/protocol.py:Launcher`, and a file in `conf/launch`.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Starter:
    """A program that starts processes, and the variables in which it tells each its rank.

    Attributes:
        rank: variable with the number of this process, from 0.
        world_size: variable with the number of processes.
        local_rank: variable with the number of this process among those on its host.
        local_size: variable with their number, or a text that equals `world_size` on one host only.
        address: takes the environment and returns the address of rank 0, with a number from which
            all ranks derive the same port. None if ranks on several hosts must be told.
    """

    name: str
    rank: str
    world_size: str
    local_rank: str
    local_size: str
    address: Callable[[Mapping[str, str]], tuple[str, int]] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Declaration:
    """What a launcher adds to the program.

    Attributes:
        about: where workers run, for the description of `launch.launcher`.
        section: dataclass of the settings `launch.NAME`, or None if it has none.
        checks: checks of a configuration (`rampcli.settings.checks`).
        supports_elastic: True if a stage can train on when nodes are lost.
        starter: program with which it starts workers, unless that tells ranks as torchrun does.
    """

    about: str
    section: type | None = None
    checks: Sequence[Callable[[Any], Iterator[UsageError]]] = ()
    supports_elastic: bool = False
    starter: Starter | None = None


@cache
def declarations() -> Mapping[str, Declaration]:
    """Returns the declarations of all launchers by name."""
    return {name: import_module(package).DECLARATION for name, package in LAUNCHERS.items()}
