// The hooks, through which torch asks what CUDA can do, and the generators of random numbers.
// A device draws the numbers of the CPU.

#pragma once

#include "guard.h"
#include "memory.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>

namespace pretended {

// A generator of the device. The CPU's kernels draw from `host`.
struct DeviceGenerator final : at::CPUGeneratorImpl {
  explicit DeviceGenerator(DeviceIndex index) {
    device_ = Device(c10::kCUDA, index);
    key_set_ = c10::DispatchKeySet(DispatchKey::CUDA);
  }
  void set_current_seed(uint64_t seed) override {
    at::CPUGeneratorImpl::set_current_seed(seed);
    host.set_current_seed(seed);
  }
  void set_state(const c10::TensorImpl& state) override {
    host.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return host.unsafeGetGeneratorImpl()->get_state();
  }
  at::Generator host = at::make_generator<at::CPUGeneratorImpl>();
};

inline const at::Generator& default_generator(DeviceIndex index) {
  static std::array<at::Generator, MAX_DEVICES> generators;
  auto& found = generators[cuda(index).index()];
  if (!found.defined()) {
    found = at::make_generator<DeviceGenerator>(cuda(index).index());
  }
  return found;
}

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return device_total > 0;
  }
  bool hasCUDA() const override {
    return device_total > 0;
  }
  bool hasPrimaryContext(DeviceIndex) const override {
    return true;
  }
  DeviceIndex deviceCount() const override {
    return static_cast<DeviceIndex>(device_total);
  }
  int getNumGPUs() const override {
    return device_total;
  }
  DeviceIndex current_device() const override {
    return pretended::current_device;
  }
  void setCurrentDevice(DeviceIndex index) const override {
    GuardImpl().setDevice(cuda(index));
  }
  DeviceIndex getCurrentDevice() const override {
    return pretended::current_device;
  }
  DeviceIndex exchangeDevice(DeviceIndex index) const override {
    return GuardImpl().exchangeDevice(cuda(index)).index();
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override {
    return exchangeDevice(index);
  }
  bool isPinnedPtr(const void* pointer) const override {
    return is_pinned(pointer);
  }
  at::Allocator* getPinnedMemoryAllocator() const override {
    return &pinned_allocator;
  }
  at::Allocator* getCUDADeviceAllocator() const override {
    return &device_allocator;
  }
  Device getDeviceFromPtr(void*) const override {
    return Device(c10::kCUDA, pretended::current_device);
  }
  const at::Generator& getDefaultGenerator(DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(DeviceIndex index) const override {
    return at::make_generator<DeviceGenerator>(cuda(index).index());
  }
  void deviceSynchronize(DeviceIndex index) const override {
    GuardImpl().synchronizeDevice(index);
  }
};

}  // namespace pretended
