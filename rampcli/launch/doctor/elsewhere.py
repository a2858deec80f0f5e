"""Skips checks of parts that only the workers' machines need."""

from rampcli.launch.doctor.check import Check, Status
from rampcli.launch.protocol import launcher_of
from rampcli.planning.run_plan import Resolved


def skip_if_remote(name: str, resolved: Resolved | None) -> Check | None:
    """Returns a check that is not needed if the workers start on other machines, else None."""
    if resolved is None or launcher_of(resolved.config).runs_here:
        return None
    launcher = resolved.config.launch.launcher
    finding = f"launch.launcher={launcher}: the workers run on other machines"
    return Check(name, Status.not_needed, finding)
