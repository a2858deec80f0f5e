"""Environment variables that workers get unless the user has set them, each with its reason."""

import os
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path

from rampcli.files.guarded_folder import private_folder
from rampcli.runs.directory import RunDirectory

AT_START = {
    # By default, OpenMP threads that wait spin for a long time. On a shared machine, they take
    # processor time from threads that have work.
    "GOMP_SPINCOUNT": "3000",
    # Every step frees and reallocates large tensors. Memory returned to the kernel would come back
    # as new zeroed pages. So glibc keeps freed pieces of up to 1 GiB, and up to 4 GiB in all. It
    # does so in its first arena only, so all threads use that one. Huge pages need fewer entries of
    # the processor's page tables.
    "GLIBC_TUNABLES": f"glibc.malloc.mmap_threshold={2**30}:glibc.malloc.trim_threshold={2**32}"
    ":glibc.malloc.arena_max=1:glibc.malloc.hugetlb=1",
}
"""Variables that a process must have when it starts."""
ON_GPUS = {
    # Pieces of GPU memory grow in place, so less of it is lost between tensors of other sizes.
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    # A rank whose collective takes too long ends without cleaning up, which could hang as well.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
    # Such a rank first writes its last collectives to TORCH_FR_DUMP_TEMP_FILE.
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
}
"""Variables that torch reads when it is imported or when ranks join. The CPU ignores them."""
OTHER_NAMES = {
    "PYTORCH_ALLOC_CONF": "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_FR_BUFFER_SIZE": "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_FR_DUMP_TEMP_FILE": "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
}
"""Earlier names, which torch still reads."""
FLIGHT_RECORDER, COMPILED = "TORCH_FR_DUMP_TEMP_FILE", "TORCHINDUCTOR_CACHE_DIR"
RECORDED = (*ON_GPUS, FLIGHT_RECORDER, COMPILED)
"""Variables whose values a run records."""


def set_defaults(
    run: RunDirectory, *, rank: str, environment: MutableMapping[str, str] = os.environ
) -> None:
    """Sets the variables of this rank that are not set. Call it before torch is imported.

    Args:
        rank: number of this rank.

    Raises:
        UsageError: the run's log folder is a symbolic link.
    """
    # Torch appends the rank. All ranks of a start share the rest.
    record = run.logs / f"flight_record_{environment.get('MASTER_PORT', os.getppid())}_rank_"
    run.remove_file(record.with_name(f"{record.name}{rank}"))  # torch would write through a link
    for name, value in {**ON_GPUS, FLIGHT_RECORDER: str(record.absolute())}.items():
        if OTHER_NAMES.get(name, name) not in environment:
            environment.setdefault(name, value)
    if COMPILED not in environment and (cache := _compile_cache(environment)) is not None:
        environment[COMPILED] = str(cache)


def recorded(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the variables that a run records and that are set."""
    names = (*RECORDED, *OTHER_NAMES.values())
    return {name: environment[name] for name in names if name in environment}


def _compile_cache(environment: Mapping[str, str]) -> Path | None:
    """Returns the folder for compiled layers, shared by later stages and runs, or None.

    Torch executes what it finds there. So the folder is neither in the run directory nor torch's
    default `/tmp/torchinductor_NAME`, which another user may have created. In a job of Slurm, each
    node has its own: the home directory is usually on a network disk, where thousands of small
    files are slow.
    """
    if "SLURM_JOB_ID" not in environment:
        with suppress(OSError, RuntimeError):  # containers may have no writable home
            home = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
            cache = home / "rampcli" / "compiled"
            cache.mkdir(parents=True, exist_ok=True)
            if os.access(cache, os.W_OK):
                return cache
    with suppress(OSError):
        return private_folder("compiled")
    return None
