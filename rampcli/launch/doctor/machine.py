"""All checks of `rampcli doctor`, in the order in which it prints them."""

from rampcli.launch.doctor.check import Check
from rampcli.launch.doctor.host_checks import (
    check_environment,
    check_open_files,
    check_processors,
    check_shared_memory,
)
from rampcli.launch.doctor.start import check_start
from rampcli.launch.doctor.storage_checks import check_run_directory
from rampcli.launch.doctor.torch_checks import TORCH_TIMEOUT_S, check_torch
from rampcli.launch.protocol import launchers
from rampcli.planning.run_plan import Resolved


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
