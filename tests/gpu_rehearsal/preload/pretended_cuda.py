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
"""Backends, which C++ holds without a reference to their Python objects."""


class Figures(ctypes.Structure):
    """Bytes of a device's blocks, and how often its memory was short, see `device/memory.h`."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            "allocated",
            "reserved",
            "allocated_peak",
            "reserved_peak",
            "retries",
            "refusals",
        )
    ]


def start(library: ctypes.CDLL) -> None:
    """Starts the devices, once torch is imported.

    Args:
        library: was loaded before torch.
    """
    global _library
    _library = library
    library.rehearsal_stream.restype = ctypes.c_int64
    library.rehearsal_memory.restype = Figures
    library.rehearsal_start(len(_names()), ctypes.c_int64(int(os.environ["PRETENDED_CUDA_BYTES"])))
    sys.modules["triton"] = None
    _provide_functions_of_core()
    _provide_torch_cuda()
    _resize_on_devices()
    _provide_nccl()
    _profile_on_host()


def _names() -> list[str]:
    """Returns the names of the devices. A fork may see other ones than its parent, or none."""
    return [name for name in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if name]


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


def _provide_functions_of_core() -> None:
    """Provides what `torch.cuda` calls in `torch._C`."""

    def exchange_device(index: int) -> int:
        before = _library.rehearsal_device()
        if index >= 0:
            _library.rehearsal_exchange_device(index)
        return before

    def set_stream(stream_id: int, device_index: int, device_type: int) -> None:
        exchange_device(device_index)
        _library.rehearsal_set_stream(device_index, ctypes.c_int64(stream_id))

    def memory_stats(index: int) -> dict:
        figures = _library.rehearsal_memory(index)
        allocated = {"current": figures.allocated, "peak": figures.allocated_peak}
        reserved = {"current": figures.reserved, "peak": figures.reserved_peak}
        return {
            "num_alloc_retries": figures.retries,
            "num_ooms": figures.refusals,
            "allocated_bytes": {"all": allocated},
            "active_bytes": {"all": allocated},
            "reserved_bytes": {"all": reserved},
        }

    for name, function in {
        "getDeviceCount": lambda: len(_names()),
        "setDevice": lambda index: _library.rehearsal_set_device(index),
        "getDevice": lambda: _library.rehearsal_device(),
        "exchangeDevice": exchange_device,
        "maybeExchangeDevice": exchange_device,
        "setStream": set_stream,
        "getCurrentStream": lambda index: (_library.rehearsal_stream(index), index, 1),
        "getCurrentRawStream": lambda index: _library.rehearsal_stream(index),
        "getDefaultStream": lambda index: (0, index, 1),
        "synchronize": lambda: torch.accelerator.synchronize(_device(None)),
        "isInBadFork": lambda: False,
        "memoryStats": memory_stats,
        "resetPeakMemoryStats": lambda index: _library.rehearsal_reset_peak(index),
        "emptyCache": lambda: _library.rehearsal_empty_cache(),
        "record_memory_history": lambda *_, **__: None,
        "memorySnapshot": lambda *_: {"segments": [], "device_traces": []},
        "getArchFlags": lambda: "sm_90",
    }.items():
        setattr(torch._C, f"_cuda_{name}", function)
    torch._C._nccl_version = lambda: 2 << 32 | 29 << 16
    torch._C._nccl_version_suffix = lambda: b""


def _provide_torch_cuda() -> None:
    cuda, core = torch.cuda, torch._C
    total = int(os.environ["PRETENDED_CUDA_BYTES"])

    def properties_of(device: object = None) -> SimpleNamespace:
        # Nodes of a Slurm cluster on one machine number their devices alike.
        node = os.environ.get("SLURMD_NODENAME", "")
        index = _device(device).index
        return SimpleNamespace(
            name="NVIDIA H100 80GB HBM3",
            uuid=node + _names()[index],
            pci_domain_id=0xFFFF,  # no device of this machine
            pci_bus_id=index,
            pci_device_id=0,
            major=9,
            minor=0,
            total_memory=total,
            multi_processor_count=132,
            L2_cache_size=50 * 2**20,
            warp_size=32,
            max_threads_per_multi_processor=2048,
            gcnArchName="",
        )

    def memory_info(device: object = None) -> tuple[int, int]:
        return total - _library.rehearsal_memory(_device(device).index).reserved, total

    for name, value in {
        "_initialized": True,
        "_lazy_init": lambda: None,
        "_lazy_call": lambda call, **_: call(),
        "_exchange_device": core._cuda_exchangeDevice,
        "_maybe_exchange_device": core._cuda_maybeExchangeDevice,
        "init": lambda: None,
        "device_count": core._cuda_getDeviceCount,
        "get_device_properties": properties_of,
        "mem_get_info": memory_info,
        "default_generators": tuple(
            torch.Generator(f"cuda:{index}") for index in range(len(_names()))
        ),
        "Stream": Stream,
        "Event": Event,
    }.items():
        setattr(cuda, name, value)
        for module in (cuda.memory, cuda.streams, cuda.random):
            if hasattr(module, name):
                setattr(module, name, value)
    torch.version.cuda = "13.0"
    torch.backends.cuda.is_built = lambda: True


def _resize_on_devices() -> None:
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
    try:
        yield rows
    finally:
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
