"""Runs whose workers start on other machines than this one."""

from rampcli.config.run_plan import Resolved
from rampcli.launch.doctor.check import Check, Status
from rampcli.launch.launchers import launcher_of


def not_needed_elsewhere(name: str, resolved: Resolved | None) -> Check | None:
    """Returns the check of a part that only the workers' machines need.

    Returns None if the workers start on this machine, or no run is given.
    """
    if resolved is None or launcher_of(resolved.config).runs_here:
        return None
    launcher = resolved.config.launch.launcher
    finding = f"launch.launcher={launcher}: the workers run on other machines"
    return Check(name, Status.not_needed, finding)
