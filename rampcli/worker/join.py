"""Joins the ranks of a run: forms the process group."""

import os
import socket
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from rampcli.config.schema.trainer import Accelerator
from rampcli.errors import RampcliError
from rampcli.lifeline import LISTENER
from rampcli.network import LOOPBACK, address_towards, interface_of, is_loopback
from rampcli.parallel.ranks import device_here, use_device
from rampcli.worker.starters import are_on_one_host, rank_variables

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

JOIN_TIMEOUT = timedelta(minutes=30)
"""How long ranks wait for each other when they join."""


def join_ranks(accelerator: Accelerator) -> torch.device:
    """Forms the process group and returns this rank's device.

    Without a starter, this process is the only rank.

    The group's sockets listen on one network interface: loopback if all ranks are on this host.

    Raises:
        RampcliError: as `rank_variables` and `device_here`; or rank 0 cannot listen on its address.
    """
    is_one_host = are_on_one_host(os.environ)
    variables = rank_variables(os.environ)
    os.environ.update(variables)
    device = device_here(accelerator)
    # torch finds the store by itself if torchrun hosts it.
    store = (
        None
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        else _open_store(variables, is_one_host=is_one_host)
    )
    choose_interface(is_one_host=is_one_host)
    use_device(device)
    dist.init_process_group(
        "gloo" if device.type == "cpu" else "nccl",
        store=store,
        rank=int(variables["RANK"]),
        world_size=int(variables["WORLD_SIZE"]),
        device_id=None if device.type == "cpu" else device,
    )
    return device


def choose_interface(*, is_one_host: bool | None) -> None:
    """Sets the network interface of all groups that this process forms.

    Args:
        is_one_host: whether all ranks are on this host; None if it is unknown.
    """
    interface = interface_of(
        address_towards(LOOPBACK if is_one_host else os.environ["MASTER_ADDR"])
    )
    if interface is not None:  # in the environment, for groups that are formed later
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")


def _open_store(variables: Mapping[str, str], *, is_one_host: bool | None) -> "Store":
    """Returns the store through which ranks find each other.

    Rank 0 hosts it on MASTER_ADDR only. By default, torch would listen on every interface.
    """
    host, port = variables["MASTER_ADDR"], int(variables["MASTER_PORT"])
    listener = _listen(host, port, is_one_host=is_one_host) if variables["RANK"] == "0" else None
    return dist.TCPStore(  # type: ignore[attr-defined]
        host,
        port if listener is None else listener.getsockname()[1],
        int(variables["WORLD_SIZE"]),
        is_master=listener is not None,
        timeout=JOIN_TIMEOUT,
        master_listen_fd=None if listener is None else listener.detach(),
    )


def _listen(host: str, port: int, *, is_one_host: bool | None) -> socket.socket:
    if LISTENER in os.environ:
        return socket.socket(fileno=int(os.environ[LISTENER]))
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # Debian's /etc/hosts maps the host's own name to a loopback address.
        if is_one_host is False and is_loopback(str(address[0])) and address[0] != host:
            raise OSError(f"it resolves to {address[0]}, which other hosts do not reach")
        return socket.create_server(address, family=family)
    except OSError as error:
        raise RampcliError(
            f"rank 0 cannot listen on MASTER_ADDR={host}, port {port}: {error}",
            remedy="MASTER_ADDR=ADDRESS, an address of rank 0's host, and a free port there",
        ) from error
