"""What a start of the run checks itself, for `rampcli doctor`."""

from rampcli.errors import RampcliError
from rampcli.launch.doctor.check import Check, Status
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
