"""The launchers by name. A new launcher is one class and one entry here."""

from collections.abc import Mapping

from rampcli.config.schema import Config
from rampcli.launch.local import LocalLauncher
from rampcli.launch.protocol import Launcher
from rampcli.launch.slurm.launcher import SlurmLauncher

LAUNCHERS: Mapping[str, Launcher] = {"local": LocalLauncher(), "slurm": SlurmLauncher()}
"""Launchers by the value of `launch.launcher`."""


def launcher_of(config: Config) -> Launcher:
    """Returns the launcher that a configuration chooses."""
    return LAUNCHERS[config.launch.launcher]
