import pytest
import torch
from torch.distributed import DistBackendError

from rampcli.parallel.ranks import is_out_of_memory


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `create`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        DistBackendError(
            "NCCL error in: ProcessGroupNCCL.cpp:77, unhandled cuda error\n"
            "ncclUnhandledCudaError: Call to CUDA function failed.\n"
            "Last error:\nCuda failure 2 'out of memory'"
        ),
        DistBackendError("unhandled cuda error\nLast error:\nFailed to CUDA calloc 6291456 bytes"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:120] DefaultCPUAllocator: not enough memory"),
    ],
)
def test_libraries_that_cannot_allocate_are_out_of_memory_as_torch_is(error):
    follower = RuntimeError("a step failed")
    follower.__cause__ = error
    assert is_out_of_memory(error)
    assert is_out_of_memory(follower)


@pytest.mark.parametrize(
    "words",
    [
        "CUDA error: an illegal memory access was encountered",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "NCCL error: unhandled system error\nLast error:\nsocket: Connection closed by peer",
    ],
)
def test_other_errors_are_not_out_of_memory(words):
    assert not is_out_of_memory(RuntimeError(words))
