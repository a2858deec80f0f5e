// Kernels of operators that allocate, copy or read memory of a device.
// A copy between pinned and device memory stays in its queue if the host need not wait for it.

#pragma once

#include "calls.h"

#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>

namespace pretended {

struct OnDevice {
  explicit OnDevice(std::optional<Device> device) {
    if (device.has_value() && device->index() >= 0) {
      TORCH_CHECK(device->index() < device_total, "CUDA error: invalid device ordinal");
      current_device = device->index();
    }
  }
  ~OnDevice() {
    current_device = before;
  }
  DeviceIndex before = current_device;
};

inline Tensor unwritten(Tensor tensor) {
  Locked lock;
  writers.erase(tensor.storage().unsafeGetStorageImpl());  // of memory that had this address
  return tensor;
}

inline Tensor empty(
    at::IntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<Device> device,
    std::optional<bool>,
    std::optional<at::MemoryFormat> format) {
  OnDevice on(device);
  return unwritten(at::detail::empty_generic(
      size, &device_allocator, c10::DispatchKeySet(DispatchKey::CUDA),
      c10::dtype_or_default(dtype), format));
}

inline Tensor empty_strided(
    at::IntArrayRef size,
    at::IntArrayRef stride,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<Device> device,
    std::optional<bool>) {
  OnDevice on(device);
  return unwritten(at::detail::empty_strided_generic(
      size, stride, &device_allocator, c10::DispatchKeySet(DispatchKey::CUDA),
      c10::dtype_or_default(dtype)));
}

inline at::Scalar local_scalar_dense(const Tensor& self) {
  note("item");
  const Key key = current_key(self.device().index());
  begin_work(key, "item", {self.storage().unsafeGetStorageImpl()}, {});
  run_all(key);
  host_waits_for(key);
  return host_alias(self).item();
}

// A copy that the device does by itself: pinned memory, no conversion, one piece.
inline bool is_one_transfer(const Tensor& to, const Tensor& from) {
  return to.scalar_type() == from.scalar_type() && to.sizes() == from.sizes() &&
      to.strides() == from.strides() && to.is_non_overlapping_and_dense();
}

inline Tensor& copy_(Tensor& self, const Tensor& source, bool non_blocking) {
  if (self.numel() == 0 || self.is_same(source)) {
    return self;
  }
  const Tensor& on_device = self.is_cuda() ? self : source;
  const Key key = current_key(on_device.device().index());
  std::vector<const void*> storages = {
      self.storage().unsafeGetStorageImpl(), source.storage().unsafeGetStorageImpl()};
  std::vector<const void*> on_devices;
  for (const Tensor& tensor : {self, source}) {
    if (tensor.is_cuda()) {
      on_devices.push_back(tensor.storage().unsafeGetStorageImpl());
    }
  }
  begin_work(
      key, "copy_", on_devices,
      self.is_cuda() ? std::vector<const void*>{storages[0]} : std::vector<const void*>{});
  const auto host = [](const Tensor& tensor) {
    return tensor.is_cuda() ? host_alias(tensor) : tensor;
  };
  const auto copy = [host](const Tensor& to, const Tensor& from) {
    c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset);
    host(to).copy_(host(from).expand_as(to));
  };
  if (self.is_cuda() && source.is_cuda()) {
    if (is_deferred(key)) {
      enqueue(key, storages, [=] { copy(self, source); });
    } else {
      run_before(key, storages);
      copy(self, source);
    }
    return self;
  }
  const Tensor& on_host = self.is_cuda() ? source : self;
  const bool to_device = self.is_cuda();
  const bool in_pinned = is_pinned(on_host.storage().data());
  const bool simple = is_one_transfer(self, source);
  const bool waits = !(non_blocking && in_pinned && simple);
  const std::string kind = std::string(!in_pinned ? "pageable" : simple ? "pinned" : "strided") +
      (to_device ? " to device" : " to host");
  note(kind.c_str());
  if (waits) {
    run_all(key);
    host_waits_for(key);
    copy(self, source);
  } else if (is_deferred(key)) {
    enqueue(key, storages, [=] { copy(self, source); });
  } else {
    run_before(key, storages);
    // Later kernels may write the source on the device. The host's buffer is read or written late.
    const Tensor from = to_device ? source : host_alias(source).clone();
    if (!to_device) {  // its storage may soon be that of another tensor
      storages.pop_back();
    }
    enqueue(key, storages, [=] { copy(self, from); });
  }
  return self;
}

inline int64_t fused_sdp_choice(
    const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, double, bool,
    std::optional<double>, bool) {
  return 0;  // math
}

inline void resize_storage(const Tensor& tensor, int64_t bytes) {
  OnDevice on(tensor.device());
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  run_all_of(storage);
  at::native::resize_bytes_cpu(storage, bytes);
}

}  // namespace pretended
