// Memory of a device is host memory whose DataPtr names the device. It is counted, with a cache.
// Pinned memory of the host is known by its addresses.

#pragma once

#include "devices.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace pretended {

inline int64_t memory_limit = 0;  // of each device, in bytes

// Bytes of a device's blocks, and how often its memory was short.
struct Figures {
  int64_t allocated, reserved, allocated_peak, reserved_peak;
  int64_t retries, refusals;
};

// Freed blocks stay reserved for blocks of the same stream and size, until memory is short. Torch's
// own allocator also splits and merges them.
struct DeviceMemory {
  Figures figures{};
  std::map<std::pair<c10::StreamId, int64_t>, int64_t> cached;  // number of blocks

  void empty_cache() {
    for (const auto& [key, count] : cached) {
      figures.reserved -= key.second * count;
    }
    cached.clear();
  }
};

inline std::mutex memory_mutex;
inline std::array<DeviceMemory, MAX_DEVICES> memories;

struct Block {
  DeviceIndex device;
  c10::StreamId stream;
  int64_t bytes;
  void* memory;         // allocated here, or
  c10::Storage adopted;  // a result of a CPU kernel
};

// Returns a block that takes its place on a device. Its memory is the host's, and is not cached.
inline Block* new_block(DeviceIndex device, int64_t bytes) {
  constexpr int64_t unit = 512;
  const c10::StreamId stream = current_streams[device];
  bytes = (bytes + unit - 1) / unit * unit;
  std::lock_guard<std::mutex> lock(memory_mutex);
  auto& [figures, cached] = memories[device];
  if (auto found = cached.find({stream, bytes}); found != cached.end() && found->second > 0) {
    --found->second;
  } else {
    if (figures.reserved + bytes > memory_limit) {
      ++figures.retries;
      memories[device].empty_cache();
    }
    if (const int64_t free = memory_limit - figures.reserved; bytes > free) {
      ++figures.refusals;
      const auto mib = [](int64_t count) {
        return c10::str(static_cast<double>(count) / (1 << 20), " MiB");
      };
      C10_THROW_ERROR(
          OutOfMemoryError,
          c10::str(
              "CUDA out of memory. Tried to allocate ", mib(bytes), ". GPU ", int(device),
              " has a total capacity of ", mib(memory_limit), " of which ", mib(free),
              " is free."));
    }
    figures.reserved += bytes;
  }
  figures.allocated += bytes;
  figures.allocated_peak = std::max(figures.allocated_peak, figures.allocated);
  figures.reserved_peak = std::max(figures.reserved_peak, figures.reserved);
  return new Block{device, stream, bytes, nullptr, {}};
}

inline void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  {
    std::lock_guard<std::mutex> lock(memory_mutex);
    auto& [figures, cached] = memories[block->device];
    figures.allocated -= block->bytes;
    ++cached[{block->stream, block->bytes}];
  }
  std::free(block->memory);
  delete block;
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    const Device device = cuda(current_device);
    if (bytes == 0) {
      return {nullptr, device};
    }
    Block* block = new_block(device.index(), bytes);
    void*& memory = block->memory;
    TORCH_CHECK(posix_memalign(&memory, 512, bytes) == 0, "the host's memory is exhausted");
    std::memset(memory, 0xff, bytes);  // NaN, so that reading it shows
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
