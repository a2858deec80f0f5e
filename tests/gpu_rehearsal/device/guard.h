// The guard, through which torch chooses devices and streams, and records and awaits events.
// The host's waits run the work that they wait for.

#pragma once

#include "streams.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>

namespace pretended {

inline std::atomic<c10::StreamId> streams_made{0};

struct GuardImpl final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return c10::kCUDA;
  }
  Device exchangeDevice(Device device) const override {
    const Device before = getDevice();
    setDevice(device);
    return before;
  }
  Device getDevice() const override {
    return Device(c10::kCUDA, current_device);
  }
  void setDevice(Device device) const override {
    if (device.index() >= 0) {
      TORCH_CHECK(device.index() < device_total, "CUDA error: invalid device ordinal");
      current_device = device.index();
    }
  }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.index() >= 0) {
      current_device = device.index();
    }
  }
  Stream getStream(Device device) const override {
    const Device real = cuda(device.index());
    return Stream(Stream::UNSAFE, real, current_streams[real.index()]);
  }
  Stream getDefaultStream(Device device) const override {
    return Stream(Stream::UNSAFE, cuda(device.index()), 0);
  }
  Stream getStreamFromGlobalPool(Device device, bool) const override {
    return Stream(Stream::UNSAFE, cuda(device.index()), ++streams_made);
  }
  Stream getNewStream(Device device, int) const override {
    return getStreamFromGlobalPool(device, false);
  }
  Stream exchangeStream(Stream stream) const override {
    const Stream before = getStream(stream.device());
    current_streams[before.device_index()] = stream.id();
    return before;
  }
  void* getStreamNativeHandle(const Stream stream) const override {
    return reinterpret_cast<void*>(stream.id());
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    delete static_cast<EventState*>(event);
  }
  void record(void** event, const Stream& stream, const DeviceIndex, const c10::EventFlag)
      const override {
    if (*event == nullptr) {
      *event = new EventState;
    }
    Locked lock;
    *static_cast<EventState*>(*event) = {
        key_of(stream), last_number, std::chrono::steady_clock::now(), clock_after(key_of(stream))};
  }
  void block(void* event, const Stream& stream) const override {
    if (event == nullptr) {
      return;
    }
    const auto& state = *static_cast<EventState*>(event);
    const Key other = state.key;
    const int64_t number = state.number;
    Locked lock;
    merge(clocks[key_of(stream)], state.clock);
    if (is_deferred(key_of(stream))) {
      enqueue(key_of(stream), {}, [other, number] { run_until(other, number); });
    } else {
      queues[key_of(stream)].waits.emplace_back(other, number);
    }
  }
  // The first question about unfinished work is answered "no", and the work is done.
  bool queryEvent(void* event) const override {
    if (event == nullptr) {
      return true;
    }
    const auto& state = *static_cast<EventState*>(event);
    Locked lock;
    const auto& items = queues[state.key].items;
    const bool is_done = items.empty() || items.front().number > state.number;
    run_until(state.key, state.number);
    return is_done;
  }
  DeviceIndex deviceCount() const noexcept override {
    return static_cast<DeviceIndex>(device_total);
  }
  bool queryStream(const Stream& stream) const override {
    Locked lock;
    const bool is_done = queues[key_of(stream)].items.empty();
    run_all(key_of(stream));
    return is_done;
  }
  void synchronizeStream(const Stream& stream) const override {
    note("stream.synchronize");
    run_all(key_of(stream));
    host_waits_for(key_of(stream));
  }
  void synchronizeEvent(void* event) const override {
    note("event.synchronize");
    if (event != nullptr) {
      const auto& state = *static_cast<EventState*>(event);
      run_until(state.key, state.number);
      Locked lock;
      merge(host_clock, state.clock);
    }
  }
  void synchronizeDevice(const DeviceIndex device) const override {
    note("device.synchronize");
    run_device(cuda(device).index());
  }
  double elapsedTime(void* first, void* second, const DeviceIndex) const override {
    return std::chrono::duration<double, std::milli>(
               static_cast<EventState*>(second)->time - static_cast<EventState*>(first)->time)
        .count();
  }
};

}  // namespace pretended
