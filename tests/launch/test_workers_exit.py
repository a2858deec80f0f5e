import pytest

from rampcli.launch.worker_log import WorkerLog
from rampcli.launch.workers import NO_MEMORY
from rampcli.launch.workers_exit import WorkersExit
from rampcli.settings.launch import LaunchConfig
from run_files import state


@pytest.mark.parametrize(
    ("oom_kills", "ranks"), [(0, [1]), (1, [0, 1])], ids=["elsewhere", "on this host"]
)
def test_ranks_out_of_memory_are_those_that_their_starter_or_the_kernel_of_this_host_tells(
    tmp_path, oom_kills, ranks
):
    killed = {0: "SIGKILL", 1: NO_MEMORY, 2: "SIGSEGV"}
    log = WorkerLog(tmp_path / "log")
    ended = WorkersExit(exit_code=1, killed=killed, oom_kills=oom_kills, log=log)
    assert ended.ranks_out_of_memory() == ranks


@pytest.mark.parametrize(
    ("killed", "cause"),
    [
        ({0: "SIGABRT"}, "rank 0 was killed by SIGABRT; boom"),
        ({0: "SIGABRT", 1: "SIGKILL"}, "rank 1 was killed by SIGKILL"),
    ],
)
def test_what_a_rank_recorded_is_named_beside_ranks_that_abort_but_not_beside_killed_ones(
    tmp_path, killed, cause
):
    ended = WorkersExit(exit_code=1, killed=killed, oom_kills=0, log=WorkerLog(tmp_path / "log"))
    failed = state(status="failed", error={"message": "boom"})
    assert ended.cause(failed, LaunchConfig()).startswith(f"{cause}; log: ")
