"""Joins the ranks of a run: forms the process group."""

import json
import os
import socket
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from rampcli.errors import RampcliError, UsageError
from rampcli.machine.lifeline import LISTENER
from rampcli.machine.network import LOOPBACK, address_towards, interface_of, is_loopback
from rampcli.parallel.ranks import check_devices, name_of, take_device
from rampcli.settings.trainer import TrainerConfig
from rampcli.worker.starters import are_on_one_host, rank_variables

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store


def join_ranks(trainer: TrainerConfig, *, timeout_s: float) -> torch.device:
    """Forms the process group and returns this rank's device, to which the process is bound.

    Without a starter, this process is the only rank.

    The group's sockets listen on one network interface: loopback if all ranks are on this host.

    Args:
        timeout_s: seconds that a rank waits for others, here and in collectives of the group.

    Raises:
        RampcliError: as `rank_variables`, `device_here` and `agree_on_devices`; or rank 0 cannot
            listen on its address.
    """
    is_one_host = are_on_one_host(os.environ)
    variables = rank_variables(os.environ)
    os.environ.update(variables)
    rank, world_size = int(variables["RANK"]), int(variables["WORLD_SIZE"])
    device, timeout = take_device(trainer), timedelta(seconds=timeout_s)
    store = _open_store(variables, timeout, is_one_host=is_one_host)
    choose_interface(is_one_host=is_one_host)
    agree_on_devices(store, name_of(device), rank=rank, world_size=world_size)
    dist.init_process_group(
        "gloo" if device.type == "cpu" else "nccl",
        store=None if _torchrun_has_store() else store,  # torch finds that one by itself
        rank=rank,
        world_size=world_size,
        timeout=timeout,
        device_id=None if device.type == "cpu" else device,
    )
    return device


def agree_on_devices(store: "Store", device: str, *, rank: int, world_size: int) -> None:
    """Checks the devices of all ranks as `check_devices` does. Every rank calls this.

    Ranks of gloo and ranks of NCCL would wait for each other until the timeout.

    Raises:
        UsageError: `check_devices` refuses them. Every rank raises it.
    """
    # torchrun may keep its store while it restarts the ranks.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = dist.PrefixStore(f"devices_{attempt}", store)  # type: ignore[attr-defined]
    store.set(f"of_{rank}", json.dumps([socket.gethostname(), device]))
    if rank == 0:
        places = store.multi_get([f"of_{each}" for each in range(world_size)])
        store.set("refusal", json.dumps(_refusal([json.loads(place) for place in places])))
    if refusal := json.loads(store.get("refusal")):
        message, keys, remedies = refusal
        store.set(f"read_{rank}", "")
        if rank == 0:  # the store may end with this process
            store.wait([f"read_{each}" for each in range(world_size)])
        raise UsageError(message, keys=keys, remedy=remedies)


def _refusal(places: Sequence[tuple[str, str]]) -> list[Any]:
    """Returns message, keys and remedies of `check_devices`, or an empty list."""
    try:
        check_devices([(host, device) for host, device in places])
    except UsageError as error:
        return [error.message, error.keys, error.remedies]
    return []


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


def _open_store(
    variables: Mapping[str, str], timeout: timedelta, *, is_one_host: bool | None
) -> "Store":
    """Returns the store through which ranks find each other.

    Rank 0 hosts it on MASTER_ADDR only, unless torchrun does. By default, torch would listen on
    every interface.
    """
    host, port = variables["MASTER_ADDR"], int(variables["MASTER_PORT"])
    if _torchrun_has_store():
        return connect(host, port, timeout)
    listener = _listen(host, port, is_one_host=is_one_host) if variables["RANK"] == "0" else None
    return dist.TCPStore(  # type: ignore[attr-defined]
        host,
        port if listener is None else listener.getsockname()[1],
        int(variables["WORLD_SIZE"]),
        is_master=listener is not None,
        timeout=timeout,
        wait_for_workers=False,  # `agree_on_devices` does
        master_listen_fd=None if listener is None else listener.detach(),
    )


def connect(host: str, port: int, timeout: timedelta) -> "Store":
    """Returns a further connection to the store that rank 0 or torchrun hosts."""
    return dist.TCPStore(  # type: ignore[attr-defined]
        host, port, is_master=False, timeout=timeout, wait_for_workers=False
    )


def _torchrun_has_store() -> bool:
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


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
