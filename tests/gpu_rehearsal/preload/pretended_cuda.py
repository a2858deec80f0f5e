"""The part of the pretended CUDA device that is Python: `torch.cuda` and NCCL.

A build of torch for CPUs lacks the functions of `torch._C` with which `torch.cuda` reaches CUDA.
They are provided here, by the library that `device/` becomes, so that torch's own Python code
runs. NCCL is gloo, which sees the device's memory as the host's.

Environment variables:
    CUDA_VISIBLE_DEVICES: the devices, separated by commas.
    PRETENDED_CUDA_LIBRARY: path of the library.
    PRETENDED_CUDA_BYTES: memory of each device.
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace

import torch
import torch.distributed.device_mesh
import torch.distributed.distributed_c10d as c10d

NCCL_TIMEOUT = timedelta(minutes=10)

_library = None
_kept = []
"""Backends and callbacks, which C++ holds without a reference to their Python objects."""


def start(library: ctypes.CDLL) -> None:
    """Starts the devices, once torch is imported.

    Args:
        library: was loaded before torch.
    """
    global _library
    _library = library
    devices = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    for name in ("live_bytes", "peak_bytes", "refusals", "stream"):
        getattr(library, f"rehearsal_{name}").restype = ctypes.c_int64
    library.rehearsal_start(
        len(devices),
        ctypes.c_int64(int(os.environ["PRETENDED_CUDA_BYTES"])),
    )
    sys.modules["triton"] = None
    _provide_torch_cuda(len(devices))
    _provide_nccl()
    _profile_on_host()


class Stream(torch.Stream):
    """`torch.cuda.Stream`."""

    def __new__(cls, device=None, priority=0, **identity):
        if identity:
            return super().__new__(cls, **identity)
        return super().__new__(cls, _device(device), priority=priority)

    @property
    def cuda_stream(self) -> int:
        return self.stream_id


class Event(torch.Event):
    """`torch.cuda.Event`."""

    def __new__(cls, enable_timing=False, blocking=False, interprocess=False, external=False):
        return super().__new__(cls, "cuda", enable_timing=enable_timing)


def _device(device: object) -> torch.device:
    return torch.device("cuda", torch.cuda._utils._get_device_index(device, optional=True))


def _provide_torch_cuda(devices: int) -> None:
    core, cuda = torch._C, torch.cuda

    def visible_devices() -> int:
        """Returns the number of devices. A fork may see fewer than its parent, or none."""
        return len([name for name in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if name])

    def exchange_device(index: int) -> int:
        before = _library.rehearsal_device()
        if index >= 0:
            _library.rehearsal_exchange_device(index)
        return before

    def set_stream(stream_id: int, device_index: int, device_type: int) -> None:
        exchange_device(device_index)
        _library.rehearsal_set_stream(device_index, ctypes.c_int64(stream_id))

    def current_stream(index: int) -> tuple[int, int, int]:
        return _library.rehearsal_stream(index), index, 1

    def memory_stats(index: int) -> dict:
        live, peak = _library.rehearsal_live_bytes(index), _library.rehearsal_peak_bytes(index)
        bytes_ = {"all": {"current": live, "peak": peak, "allocated": peak, "freed": peak - live}}
        return {
            "num_alloc_retries": 0,
            "num_ooms": _library.rehearsal_refusals(index),
            **dict.fromkeys(("allocated_bytes", "reserved_bytes", "active_bytes"), bytes_),
        }

    for name, function in {
        "_cuda_getDeviceCount": visible_devices,
        "_cuda_setDevice": lambda index: _library.rehearsal_set_device(index),
        "_cuda_getDevice": lambda: _library.rehearsal_device(),
        "_cuda_exchangeDevice": exchange_device,
        "_cuda_maybeExchangeDevice": exchange_device,
        "_cuda_setStream": set_stream,
        "_cuda_getCurrentStream": current_stream,
        "_cuda_getCurrentRawStream": lambda index: _library.rehearsal_stream(index),
        "_cuda_getDefaultStream": lambda index: (0, index, 1),
        "_cuda_synchronize": lambda: torch.accelerator.synchronize(_device(None)),
        "_cuda_isInBadFork": lambda: False,
        "_cuda_memoryStats": memory_stats,
        "_cuda_resetPeakMemoryStats": lambda index: _library.rehearsal_reset_peak(index),
        "_cuda_resetAccumulatedMemoryStats": lambda index: None,
        "_cuda_emptyCache": lambda: None,
        "_cuda_record_memory_history": lambda *_, **__: None,
        "_cuda_memorySnapshot": lambda *_: {"segments": [], "device_traces": []},
        "_cuda_getArchFlags": lambda: "sm_90",
        "_nccl_version": lambda: 2 << 32 | 29 << 16,
        "_nccl_version_suffix": lambda: b"",
    }.items():
        setattr(core, name, function)
    memory = int(os.environ["PRETENDED_CUDA_BYTES"])
    properties = SimpleNamespace(
        name="NVIDIA H100 80GB HBM3",
        major=9,
        minor=0,
        total_memory=memory,
        multi_processor_count=132,
        L2_cache_size=50 * 2**20,
        warp_size=32,
        max_threads_per_multi_processor=2048,
        gcnArchName="",
    )

    def properties_of(device: object = None) -> SimpleNamespace:
        # A fork of this process may see other devices.
        names = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
        # Nodes of a Slurm cluster on one machine number their devices alike.
        node = os.environ.get("SLURMD_NODENAME", "")
        return SimpleNamespace(**vars(properties), uuid=node + names[_device(device).index])

    for name, value in {
        "_initialized": True,
        "_lazy_init": lambda: None,
        "_lazy_call": lambda call, **_: call(),
        "_exchange_device": exchange_device,
        "_maybe_exchange_device": exchange_device,
        "init": lambda: None,
        "device_count": visible_devices,
        "get_device_properties": properties_of,
        "mem_get_info": lambda device=None: (
            memory - _library.rehearsal_live_bytes(_device(device).index),
            memory,
        ),
        "default_generators": tuple(torch.Generator(f"cuda:{index}") for index in range(devices)),
        "Stream": Stream,
        "Event": Event,
    }.items():
        setattr(cuda, name, value)
        for module in (cuda.memory, cuda.streams, cuda.random):
            if hasattr(module, name):
                setattr(module, name, value)
    torch.version.cuda = "13.0"
    torch.backends.cuda.is_built = lambda: True
    resize_on_host = torch.UntypedStorage.resize_

    def resize(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        if storage.device.type != "cuda":
            return resize_on_host(storage, size)
        tensor = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        torch.ops.rehearsal.resize_storage(tensor, size)
        return storage

    torch.UntypedStorage.resize_ = resize


def _profile_on_host() -> None:
    """Lets profiles ask for CUDA. They have the host's times, as kernels run on the host."""
    autograd_profile = torch.autograd.profiler.profile
    begin = autograd_profile.__init__
    autograd_profile.__init__ = lambda *arguments, use_device=None, **named: begin(
        *arguments, **named
    )


class ProcessGroupNCCL(c10d.ProcessGroupGloo):
    """NCCL over gloo. `device/collectives.h` gives it the tensors of collectives."""

    supports_splitting = False  # groups are formed anew, see `split_group`

    class Options(c10d.ProcessGroupGloo._Options):
        """`ProcessGroupNCCL.Options`."""

    def __init__(self, store, rank: int, size: int, options: Options) -> None:
        super().__init__(store, rank, size, timeout=options._timeout)
        _kept.append(self)

    def name(self) -> str:
        """Returns the name of the backend."""
        return "nccl"


def _provide_nccl() -> None:
    def split_group(parent_pg=None, split_ranks=(), timeout=None, pg_options=None, group_desc=None):
        """Forms the groups one by one, and returns the one of this rank, or None."""
        mine = None
        for ranks in split_ranks:
            group = c10d.new_group(ranks, timeout=timeout, group_desc=group_desc)
            if c10d.get_rank() in ranks:
                mine = group
        return mine

    c10d.ProcessGroupNCCL = ProcessGroupNCCL
    c10d._NCCL_AVAILABLE = True
    c10d.default_pg_nccl_timeout = NCCL_TIMEOUT
    c10d.split_group = split_group
    torch.distributed.split_group = split_group
    torch.distributed.device_mesh.split_group = split_group


@contextmanager
def recorded() -> Iterator[list[tuple[str, str]]]:
    """Records what this process does to its devices: the kind and the place of each, in order.

    Kinds are the copies `pinned to device`, `strided to device`, `pageable to device` and the like
    `to host`; `item`; names of operators whose result has a size that the host needs, such as
    `nonzero`; `stream.synchronize`, `event.synchronize` and `device.synchronize`; `collective` and
    `barrier`. The place is the innermost line of rampcli.
    """
    rows: list[tuple[str, str]] = []

    @ctypes.CFUNCTYPE(None, ctypes.c_char_p)
    def record(kind: bytes) -> None:
        rows.append((kind.decode(), _place()))

    _library.rehearsal_record(record)
    yield rows
    _library.rehearsal_record(None)


def _place() -> str:
    """Returns the file and line in rampcli that called torch.

    If no frame is in rampcli, returns the outermost one.
    """
    frame = sys._getframe(2)
    outermost = "backward"  # a thread of autograd has no frames
    while frame is not None:
        path = frame.f_code.co_filename
        if "/rampcli/" in path:
            return f"rampcli/{path.rpartition('/rampcli/')[2]}:{frame.f_lineno}"
        outermost = f"{path}:{frame.f_lineno}"
        frame = frame.f_back
    return outermost
