import os
import resource

import pytest

from rampcli.launch.doctor.check import Status
from rampcli.launch.doctor.host_checks import check_open_files, check_processors


@pytest.mark.parametrize(("limit", "processes", "needed"), [(512, 2, 1024), (1100, 128, 1280)])
def test_the_limit_on_open_files_is_compared_with_the_processes_of_the_run(
    run_of, limit, processes, needed
):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        found = check_open_files(run_of(recipe={2: "llama3_tiny", 128: "gpt3_5b"}[processes]))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (found.status, f"{needed:,}" in found.finding) == (Status.warning, True)
    assert (
        str(needed if hard == resource.RLIM_INFINITY or hard >= needed else f"{hard:,}")
        in found.remedy
    )


def test_processors_are_compared_with_the_largest_stage(run_of):
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        two, one = check_processors(run_of()), check_processors(run_of("trainer.num_nodes=1"))
    finally:
        os.sched_setaffinity(0, before)
    assert (two.status, two.finding) == (Status.warning, "1, shared by up to 2 processes")
    assert (one.status, one.finding) == (Status.ok, "1, for up to 1 process")
