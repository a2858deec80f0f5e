import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rampcli.planning.run_plan import Resolved
from slurm.cluster import PROGRAMS, Cluster, start_cluster
from tiny_runs import RAMP_OF_JOBS

# A fake interpreter that records its arguments and environment beside itself.
RECORDER = """\
#!/bin/bash
record="$(dirname "$0")/started.$SLURM_JOB_ID"
env -0 >"$record.env"
printf '%s\\0' "$PWD" "$@" >"$record"
"""


@pytest.fixture(scope="session")
def running_cluster() -> Iterator[Cluster]:
    if os.getuid() != 0 or not all(map(shutil.which, PROGRAMS)):
        pytest.skip("Slurm is not installed; make test-slurm installs it and runs these tests")
    with start_cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(running_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The idle cluster, which this process's Slurm commands use too."""
    for name in os.environ:
        if name.startswith(("SLURM_", "SBATCH_", "SQUEUE_", "SCANCEL_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_CONF", running_cluster.environment["SLURM_CONF"])
    yield running_cluster
    running_cluster.clear()


@pytest.fixture
def interpreter(tmp_path: Path) -> Path:
    """Stands in for the workers' interpreter. Tests may append commands to it."""
    path = tmp_path / "interpreter/python"
    path.parent.mkdir()
    path.write_text(RECORDER)
    path.chmod(0o755)
    return path


@pytest.fixture
def tiny(tmp_path: Path, interpreter: Path, planned) -> Callable[..., Resolved]:
    """Resolves a run of three jobs on 1, 2 and 3 nodes."""

    def build(*words: str) -> Resolved:
        settings = {
            **RAMP_OF_JOBS,
            "launch.slurm.python": str(interpreter),
            "run_dir": str(tmp_path / "run"),
        } | dict(word.split("=", 1) for word in words)
        return planned("llama3_tiny", *(f"{key}={value}" for key, value in settings.items()))

    return build
