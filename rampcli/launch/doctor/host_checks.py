"""Checks of open files, processors and shared memory."""

import resource
import shutil

from rampcli.batch.quantities import counted
from rampcli.errors import UsageError
from rampcli.launch.doctor.check import Check, Status, format_bytes
from rampcli.launch.environment import (
    check_chosen_gpus,
    check_outer_launcher,
    check_variables,
)
from rampcli.launch.protocol import launcher_of
from rampcli.machine.gpus import visible_gpus
from rampcli.machine.processors import processors
from rampcli.planning.run_plan import Resolved

LEAST_SHARED_MEMORY_BYTES = 64 * 2**20
LEAST_OPEN_FILES = 1024
FILES_PER_PROCESS, FILES_PER_PEER = 256, 8
"""A worker opens dozens of files, or hundreds with CUDA, and one or two connections to each
other worker per process group; NCCL opens several. A supervisor has a connection to each worker."""


def skip_if_remote(name: str, resolved: Resolved | None) -> Check | None:
    """Returns a check that is not needed if the workers start on other machines, else None."""
    if resolved is None or launcher_of(resolved.config).runs_here:
        return None
    launcher = resolved.config.launch.launcher
    finding = f"launch.launcher={launcher}: the workers run on other machines"
    return Check(name, Status.not_needed, finding)


def check_open_files(resolved: Resolved | None) -> Check:
    """Checks the limit on open files against the size of the run."""
    name = "open files"
    peers = 0 if resolved is None else resolved.plan.largest_world_size
    needed = max(LEAST_OPEN_FILES, FILES_PER_PROCESS + FILES_PER_PEER * peers)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return Check(name, Status.ok, "no limit")
    if soft >= needed:
        return Check(name, Status.ok, f"up to {soft:,} per process")
    remedy = (
        f"ulimit -n {needed}"
        if hard == resource.RLIM_INFINITY or hard >= needed
        else f"the administrator can raise the hard limit, {hard:,}"
    )
    finding = f"up to {soft:,} per process, but a run may need {needed:,}"
    return Check(name, Status.warning, finding, remedy)


def check_processors(resolved: Resolved | None) -> Check:
    """Checks that each process of the largest stage has a processor."""
    name = "processors"
    if (elsewhere := skip_if_remote(name, resolved)) is not None:
        return elsewhere
    here, processes = processors(), 0 if resolved is None else resolved.plan.largest_world_size
    if here < processes:
        return Check(
            name,
            Status.warning,
            f"{here}, shared by up to {processes} processes",
            "fewer trainer.num_nodes or trainer.devices",
        )
    return Check(
        name,
        Status.ok,
        f"{here}, for up to {counted(processes, 'process')}" if processes else str(here),
    )


def check_shared_memory(resolved: Resolved | None) -> Check:
    """Checks the size of /dev/shm."""
    name = "shared memory"
    if (elsewhere := skip_if_remote(name, resolved)) is not None:
        return elsewhere
    try:
        size_bytes = shutil.disk_usage("/dev/shm").total
    except OSError:
        size_bytes = 0
    if size_bytes >= LEAST_SHARED_MEMORY_BYTES:
        return Check(name, Status.ok, f"{format_bytes(size_bytes)} in /dev/shm")
    return Check(
        name,
        Status.warning,
        f"{format_bytes(size_bytes)} in /dev/shm, which GPU processes use to communicate",
        "a larger /dev/shm; for a container, --shm-size=1g",
    )


def check_environment(resolved: Resolved | None) -> Check:
    """Checks the environment variables that decide whether workers can start."""
    name = "environment"
    try:
        check_outer_launcher()
        if (elsewhere := skip_if_remote(name, resolved)) is not None:
            return elsewhere
        if resolved is None or resolved.config.trainer.accelerator != "cpu":
            check_chosen_gpus()
        check_variables(on_gpus=bool(visible_gpus()))
    except UsageError as error:
        return Check(name, Status.failure, error.message, error.remedy)
    return Check(name, Status.ok, "no variable keeps workers from starting")
