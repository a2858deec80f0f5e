// Memory of a device is host memory whose DataPtr names the device, up to a limit of bytes.
// Pinned memory of the host is known by its addresses.

#pragma once

#include "devices.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace pretended {

inline int64_t memory_limit = 0;  // of each device, in bytes

inline std::array<std::atomic<int64_t>, MAX_DEVICES> live_bytes{};
inline std::array<std::atomic<int64_t>, MAX_DEVICES> peak_bytes{};
inline std::array<std::atomic<int64_t>, MAX_DEVICES> refusals{};

inline void charge(DeviceIndex device, int64_t bytes) {
  const int64_t live = live_bytes[device] += bytes;
  if (live > memory_limit) {
    live_bytes[device] -= bytes;
    ++refusals[device];
    const auto mib = [](int64_t count) {
      return c10::str(static_cast<double>(count) / (1 << 20), " MiB");
    };
    C10_THROW_ERROR(
        OutOfMemoryError,
        c10::str(
            "CUDA out of memory. Tried to allocate ", mib(bytes), ". GPU ", int(device),
            " has a total capacity of ", mib(memory_limit), " of which ",
            mib(memory_limit - live + bytes), " is free."));
  }
  int64_t peak = peak_bytes[device];
  while (live > peak && !peak_bytes[device].compare_exchange_weak(peak, live)) {
  }
}

struct Block {
  DeviceIndex device;
  int64_t bytes;
  void* memory;         // allocated here, or
  c10::Storage adopted;  // a result of a CPU kernel
};

inline void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  live_bytes[block->device] -= block->bytes;
  std::free(block->memory);
  delete block;
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    const Device device = cuda(current_device);
    if (bytes == 0) {
      return {nullptr, device};
    }
    charge(device.index(), bytes);
    void* memory = nullptr;
    TORCH_CHECK(posix_memalign(&memory, 512, bytes) == 0, "the host's memory is exhausted");
    std::memset(memory, 0xff, bytes);  // NaN, so that reading it shows
    auto* block = new Block{device.index(), static_cast<int64_t>(bytes), memory, {}};
    return {memory, block, &free_block, device};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &free_block;
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};
inline DeviceAllocator device_allocator;

inline std::mutex pinned_mutex;
inline std::map<const char*, size_t> pinned;

inline void free_pinned(void* memory) {
  {
    std::lock_guard<std::mutex> lock(pinned_mutex);
    pinned.erase(static_cast<char*>(memory));
  }
  std::free(memory);
}

inline bool is_pinned(const void* pointer) {
  std::lock_guard<std::mutex> lock(pinned_mutex);
  auto next = pinned.upper_bound(static_cast<const char*>(pointer));
  if (next == pinned.begin()) {
    return false;
  }
  --next;
  return static_cast<const char*>(pointer) < next->first + next->second;
}

struct PinnedAllocator final : at::HostAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) {
      return {nullptr, c10::kCPU};
    }
    void* memory = nullptr;
    TORCH_CHECK(posix_memalign(&memory, 512, bytes) == 0, "the host's memory is exhausted");
    std::memset(memory, 0xff, bytes);
    std::lock_guard<std::mutex> lock(pinned_mutex);
    pinned[static_cast<char*>(memory)] = bytes;
    return {memory, memory, &free_pinned, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &free_pinned;
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  bool record_event(void*, void*, Stream) override {
    return true;
  }
  void empty_cache() override {}
  at::HostStats get_stats() override {
    return {};
  }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};
inline PinnedAllocator pinned_allocator;

}  // namespace pretended
