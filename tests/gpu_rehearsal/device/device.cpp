// A pretended CUDA device for the CPU build of torch, as a plain library without Python.
//
// This file gives torch its parts, and Python their figures:
//
//   devices.h      which devices there are, and which one is current
//   memory.h       memory of a device, and pinned memory
//   streams.h      queues of work, and the order of work on several streams
//   guard.h        how torch chooses devices and streams, and waits for events
//   hooks.h        what torch asks of CUDA, and random numbers
//   calls.h        tensors of a device as CPU tensors, and back
//   fallback.h     operators that run the CPU's kernels
//   kernels.h      operators that allocate, copy or read memory
//   collectives.h  NCCL's collectives, over gloo
//
// Work that nobody has waited for stays in the queue of its stream: copies between pinned and
// device memory with non_blocking=True, and all work of streams other than the default one. Reading
// or writing memory that another stream writes, without having waited for it, is an error.
//
// The parts are headers, and this file is all that is compiled: torch's own headers take most of
// the time, and would take it once per file.

#include "collectives.h"
#include "fallback.h"
#include "guard.h"
#include "hooks.h"
#include "kernels.h"

#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>

using namespace pretended;

C10_REGISTER_GUARD_IMPL(CUDA, GuardImpl);

TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("as_strided", at::native::as_strided_tensorimpl);
  library.impl("view", at::native::view);
  library.impl("_reshape_alias", at::native::_reshape_alias);
  library.impl("unfold", at::native::unfold);
  library.impl("resize_", at::native::resize_);
  library.impl("set_.source_Storage", at::native::set_);
  library.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
  library.impl("set_.source_Tensor", at::native::set_tensor_);
  library.impl("copy_", copy_);
  library.impl("_local_scalar_dense", local_scalar_dense);
  library.impl("_fused_sdp_choice", fused_sdp_choice);
}

TORCH_LIBRARY(rehearsal, library) {
  library.def("resize_storage(Tensor tensor, int bytes) -> ()");
}
TORCH_LIBRARY_IMPL(rehearsal, CUDA, library) {
  library.impl("resize_storage", resize_storage);
}

namespace at {
// Torch looks for this name.
using CUDAHooks = pretended::Hooks;
REGISTER_CUDA_HOOKS(CUDAHooks);
}  // namespace at

// What `preload/pretended_cuda.py` calls.
extern "C" {
// Starts the device. Nothing of torch may have asked for CUDA before.
void rehearsal_start(int devices, int64_t limit_bytes) {
  device_total = devices;
  memory_limit = limit_bytes;
  c10::SetAllocator(c10::kCUDA, &device_allocator);
  at::setHostAllocator(c10::kCUDA, &pinned_allocator);
  // Torch warns of replaced kernels, which is the purpose here.
  struct Silent final : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  } silent;
  c10::WarningUtils::WarningHandlerGuard guard(&silent);
  static torch::Library collectives(
      torch::Library::IMPL, "c10d", DispatchKey::CUDA, __FILE__, __LINE__);
  for (const char* name :
       {"send", "recv_", "recv_any_source_", "reduce_", "broadcast_", "allreduce_",
        "allreduce_coalesced_", "allgather_", "_allgather_base_", "allgather_coalesced_",
        "allgather_into_tensor_coalesced_", "reduce_scatter_", "_reduce_scatter_base_",
        "reduce_scatter_tensor_coalesced_", "gather_", "scatter_", "alltoall_", "alltoall_base_",
        "barrier"}) {
    collectives.impl(name, torch::CppFunction::makeFromBoxedFunction<&collective>());
  }
}
void rehearsal_record(void (*callback)(const char*)) {
  recorder = callback;
}
void rehearsal_set_device(int device) {
  is_set = true;
  current_device = static_cast<DeviceIndex>(device);
}
void rehearsal_exchange_device(int device) {
  current_device = static_cast<DeviceIndex>(device);
}
void rehearsal_set_stream(int device, int64_t stream) {
  current_streams[device] = stream;
}
int64_t rehearsal_stream(int device) {
  return current_streams[device];
}
int rehearsal_device() {
  return current_device;
}
Figures rehearsal_memory(int device) {
  std::lock_guard<std::mutex> lock(memory_mutex);
  return memories[device].figures;
}
void rehearsal_reset_peak(int device) {
  std::lock_guard<std::mutex> lock(memory_mutex);
  auto& figures = memories[device].figures;
  figures.allocated_peak = figures.allocated;
  figures.reserved_peak = figures.reserved;
}
void rehearsal_empty_cache() {
  std::lock_guard<std::mutex> lock(memory_mutex);
  for (auto& memory : memories) {
    memory.empty_cache();
  }
}
}
