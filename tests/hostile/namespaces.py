"""Places of their own for processes of tests: mounts, and the network of a host. Only for root."""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

NETWORK, MOUNTS = 0x40000000, 0x00020000  # CLONE_NEWNET and CLONE_NEWNS of sched.h
RECURSIVE, PRIVATE = 1 << 14, 1 << 18  # MS_REC and MS_PRIVATE of sys/mount.h
LIBC = ctypes.CDLL(None, use_errno=True)


@contextmanager
def two_hosts() -> Iterator[list[str]]:
    """Gives two network namespaces joined by a cable, 10.213.77.1 and .2, and deletes them."""
    names = [f"rampcli-{os.getpid()}-{number}" for number in (1, 2)]
    for name in names:
        ip("netns", "add", name)
    try:
        ends = [["type", "veth"], ["peer", "name", "cable", "netns", names[1]]]
        ip("link", "add", "cable", "netns", names[0], *ends[0], *ends[1])
        for number, name in enumerate(names, start=1):
            ip("-n", name, "address", "add", f"10.213.77.{number}/24", "dev", "cable")
            for device in ("lo", "cable"):
                ip("-n", name, "link", "set", device, "up")
            # TCP gives up after a second instead of a quarter of an hour.
            retry_twice = "echo 2 >/proc/sys/net/ipv4/tcp_retries2"
            ip("netns", "exec", name, "sh", "-c", retry_twice)
        yield names
    finally:
        for name in names:
            ip("netns", "delete", name)


@contextmanager
def slow_host(rate: str) -> Iterator[str]:
    """Gives a network namespace whose loopback passes that much, such as 100mbit; deletes it."""
    name = f"rampcli-{os.getpid()}-slow"
    ip("netns", "add", name)
    try:
        ip("-n", name, "link", "set", "lo", "up")
        limit = ["tbf", "rate", rate, "burst", "128kb", "latency", "400ms"]
        subprocess.run(["tc", "-n", name, "qdisc", "add", "dev", "lo", "root", *limit], check=True)
        yield name
    finally:
        ip("netns", "delete", name)


def ip(*words: str) -> None:
    """Runs a command of iproute2."""
    subprocess.run(["ip", *words], check=True)


def move_to_host(name: str) -> None:
    """Gives this process the network of a host of `two_hosts` or `slow_host`."""
    namespace = os.open(f"/var/run/netns/{name}", os.O_RDONLY | os.O_CLOEXEC)
    _check(LIBC.setns(namespace, NETWORK))
    os.close(namespace)


def leave_mounts() -> None:
    """Gives this process mounts of its own. Others do not see what it mounts."""
    _check(LIBC.unshare(MOUNTS))
    _check(LIBC.mount(b"none", b"/", None, RECURSIVE | PRIVATE, None))


def _check(code: int) -> None:
    if code:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
