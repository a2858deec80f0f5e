import signal

import pytest

from rampcli.launch.elastic import World
from rampcli.launch.slurm.workers import SrunWorkers
from rampcli.launch.workers import NO_MEMORY
from rampcli.runs.directory import RunDirectory


@pytest.mark.parametrize(
    ("line", "killed"),
    [
        ("srun: error: node1: task 1: Out Of Memory", {1: NO_MEMORY}),
        ("srun: error: node1: tasks 0,2-3: Killed", dict.fromkeys((0, 2, 3), "SIGKILL")),
        (
            f"srun: error: node2: task 2: {signal.strsignal(signal.SIGSEGV)} (core dumped)",
            {2: "SIGSEGV"},
        ),
        ("srun: error: node1: task 0: Exited with exit code 1", {}),
    ],
)
def test_the_log_of_srun_says_which_ranks_were_killed_and_by_what(
    tmp_path, programs, planned, line, killed
):
    programs(srun=f"echo '{line}'; exit 1")
    run = RunDirectory(tmp_path / "run")
    run.claim()
    resolved = planned("llama3_tiny", "launch=slurm", f"run_dir={run.path}")
    world = World(nodes=(0,), ranks=4)
    workers = SrunWorkers(resolved, run, world, run.logs / "log", module="no.module")
    workers.processes[0].wait()
    assert workers.killed() == killed
    workers.end()
