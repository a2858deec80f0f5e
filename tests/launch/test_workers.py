import socket
import subprocess
import sys

import pytest

from rampcli.launch.workers import reserve_port, worker_environment

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
