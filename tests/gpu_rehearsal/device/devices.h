// The devices: their number, the current one of a thread and its streams.
// A recorder hears what the host does to them.

#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <torch/library.h>

#include <array>

namespace pretended {

using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::DispatchKey;
using c10::IValue;
using c10::Stream;
using torch::jit::Stack;

constexpr int MAX_DEVICES = 16;
inline int device_total = 0;
inline bool is_set = false;  // whether set_device was called
inline thread_local DeviceIndex current_device = 0;
inline thread_local std::array<c10::StreamId, MAX_DEVICES> current_streams{};

inline void (*recorder)(const char* kind) = nullptr;

// Tells the recorder what the host does to a device.
inline void note(const char* kind) {
  if (recorder != nullptr) {
    recorder(kind);
  }
}

inline Device cuda(DeviceIndex index) {
  return Device(c10::kCUDA, index < 0 ? current_device : index);
}

}  // namespace pretended
