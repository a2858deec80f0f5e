"""All checks of `rampcli doctor`, in the order in which it prints them."""

from rampcli.errors import RampcliError
from rampcli.launch.doctor.check import Check, Status
from rampcli.launch.doctor.host_checks import (
    check_environment,
    check_open_files,
    check_processors,
    check_run_directory,
    check_shared_memory,
)
from rampcli.launch.doctor.torch_checks import TORCH_TIMEOUT_S, check_torch
from rampcli.launch.protocol import launchers
from rampcli.launch.start_checks import check_files, launcher_refusals
from rampcli.planning.run_plan import Resolved
from rampcli.settings.corpora import missing_here


def check_start(resolved: Resolved) -> list[Check]:
    """Returns why a start would be refused, one failure for each reason, or a check that is ok.

    The check of the disk is another one.
    """
    name = "start"
    missing = [
        Check(name, Status.failure, f"{setting} does not exist on this machine", "its path here")
        for setting in missing_here(resolved.config)
    ]
    found: list[RampcliError] = []
    try:
        check_files(resolved)
        found += launcher_refusals(resolved)
    except RampcliError as error:
        found.append(error)
    failures = [
        Check(name, Status.failure, error.message, str(error.remedy or "") or None)
        for error in found
    ]
    return missing + failures or [
        Check(name, Status.ok, "corpora, weights and checkpoint fit the run")
    ]


def check_machine(
    resolved: Resolved | None = None, *, torch_timeout_s: float = TORCH_TIMEOUT_S
) -> list[Check]:
    """Checks this machine, and leaves no files behind.

    Args:
        resolved: run that is to start here; None checks what any run needs.
        torch_timeout_s: seconds that torch may take to start and to test itself.
    """
    checks = [
        *check_torch(resolved, torch_timeout_s),
        *(check for each in launchers().values() for check in each.machine_checks(resolved)),
        *check_run_directory(resolved),
        check_environment(resolved),
        check_open_files(resolved),
        check_processors(resolved),
        check_shared_memory(resolved),
    ]
    if resolved is None:
        return checks
    told = {check.finding for check in checks}
    return checks + [check for check in check_start(resolved) if check.finding not in told]
