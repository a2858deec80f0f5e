import os
import socket
import subprocess
import sys

import pytest

from rampcli.launch.workers import (
    MOST_LOG_BYTES,
    NO_MEMORY,
    WorkerLog,
    WorkersExit,
    reserve_port,
    worker_environment,
)
from rampcli.settings.launch import LaunchConfig
from run_files import state

ALLOCATES_TWICE = """
import ctypes, resource, sys, threading
c = ctypes.CDLL(None)
c.malloc.restype, c.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
c.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
size, number = map(int, sys.argv[1:])
def allocate():
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        blocks = [c.malloc(size) for _ in range(number)]
        for block in blocks:
            c.memset(block, 1, size)
        for block in blocks:
            c.free(block)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
thread = threading.Thread(target=allocate)
thread.start()
thread.join()
"""


def test_a_reserved_port_is_given_out_once_and_its_owner_can_listen_on_it():
    reserved = [reserve_port() for _ in range(200)]
    ports = [each.getsockname()[1] for each in reserved]
    assert len(set(ports)) == 200
    with (
        socket.create_server(("127.0.0.1", ports[0])),
        socket.socket() as other,
        pytest.raises(OSError, match="in use"),
    ):
        other.bind(("127.0.0.1", ports[1]))
    for each in reserved:
        each.close()


@pytest.mark.parametrize(("size", "number"), [(2**28, 1), (2**18, 2**10)])
def test_memory_that_a_thread_of_a_worker_has_freed_is_reused_without_page_faults(
    size, number, monkeypatch
):
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    environment = worker_environment(threads=1)
    faults = subprocess.run(
        [sys.executable, "-c", ALLOCATES_TWICE, str(size), str(number)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert int(faults.stdout) < 2**28 / 2**21  # fewer faults than the allocations have huge pages


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "GOMP_SPINCOUNT", "GLIBC_TUNABLES"])
def test_variables_that_the_user_has_set_are_kept(monkeypatch, name):
    monkeypatch.delenv(name, raising=False)
    assert name in worker_environment(threads=1)
    monkeypatch.setenv(name, "as the user has it")
    assert worker_environment(threads=1)[name] == "as the user has it"


def test_the_last_new_line_is_quoted_without_control_characters(tmp_path):
    log = tmp_path / "stage_0.log"
    log.write_text("before\n")
    printed = WorkerLog(log)
    assert (printed.lines(), printed.describe()) == ([], f"log: {log}")
    with log.open("a") as file:
        file.write("x" * 2 * MOST_LOG_BYTES + "\nfirst\n  last \x1b[2J\n \n")
    assert printed.lines()[1:] == ["first", "last \x1b[2J"]
    assert printed.describe() == rf"log: {log}, which ends: last \x1b[2J"
    assert printed.describe(quote=False) == f"log: {log}"


def test_a_log_that_is_deleted_or_becomes_a_link_has_no_lines(tmp_path):
    log = tmp_path / "stage_0.log"
    printed = WorkerLog(log)
    assert printed.lines() == []
    (tmp_path / "other").write_text("secret")
    os.symlink("other", log)
    assert printed.describe() == f"log: {log}"


@pytest.mark.parametrize(
    "line",
    [
        "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7,"
        " OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=2500) ran for 2507 milliseconds"
        " before timing out.",
        "RuntimeError: [unbound_buffer.cc:78] Timed out waiting 2500ms for recv operation",
        "torch.distributed.DistStoreError: wait timeout after 2500ms, keys: /devices_0/of_1",
        "DistNetworkError: The client socket has timed out after 2500ms while trying to connect",
    ],
    ids=["NCCL", "gloo", "a store", "no store"],
)
def test_the_seconds_that_a_rank_has_waited_are_read_from_the_log(tmp_path, line):
    printed = WorkerLog(tmp_path / "stage_0.log")
    printed.path.write_text("step 7 took 1500ms\nTimed out waiting 30 s for a lock\n")
    assert printed.timeout_s() is None
    printed.path.write_text(f"step 7 took 1500ms\n{line}\nAborted after 900ms\n")
    assert printed.timeout_s() == 2.5


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
