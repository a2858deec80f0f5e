"""Addresses of this machine, and the network interfaces that have them. Linux only."""

import fcntl
import ipaddress
import socket
import struct
from contextlib import suppress
from pathlib import Path

LOOPBACK = "127.0.0.1"
SIOCGIFADDR = 0x8915
IFREQ_BYTES, ADDRESS_AT = 40, 20
"""Size of the kernel's `struct ifreq`, and the offset of the IPv4 address in it."""


def address_towards(host: str) -> str:
    """Returns the address from which this machine reaches a host, without sending a packet.

    Raises:
        OSError: the host's name is unknown, or no route leads to it.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def is_loopback(address: str) -> bool:
    """Returns whether an address can only be reached from this machine."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def interface_of(address: str) -> str | None:
    """Returns the name of the network interface with an address, or None."""
    wanted = ipaddress.ip_address(LOOPBACK if is_loopback(address) else address.partition("%")[0])
    if wanted.version == 6:
        rows = [
            line.split()
            for line in Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines()
        ]
        return next((row[-1] for row in rows if bytes.fromhex(row[0]) == wanted.packed), None)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # an interface without an IPv4 address
                answer = fcntl.ioctl(
                    asked, SIOCGIFADDR, struct.pack(f"{IFREQ_BYTES}s", name.encode())
                )
                if answer[ADDRESS_AT : ADDRESS_AT + 4] == wanted.packed:
                    return name
    return None
