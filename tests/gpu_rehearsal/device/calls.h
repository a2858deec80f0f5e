// A call of an operator shows the CPU's kernel the tensors of a device as CPU tensors.
// It checks what CUDA checks, that all tensors are on one device, and wraps the results.

#pragma once

#include "hooks.h"
#include "memory.h"
#include "streams.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>

namespace pretended {

inline int64_t bytes_of(const Tensor& tensor) {
  return tensor.numel() * static_cast<int64_t>(tensor.element_size());
}

// Returns a CPU tensor over the memory of a tensor of the device, which it keeps.
inline Tensor host_alias(const Tensor& tensor) {
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  TORCH_CHECK(
      tensor.numel() == 0 || storage->nbytes() > 0,
      "CUDA error: an illegal memory access was encountered: a tensor of ", tensor.sizes(),
      " is used after its memory was given back");
  auto* data = static_cast<char*>(storage->mutable_data());
  if (data != nullptr) {
    data += tensor.storage_offset() * static_cast<int64_t>(tensor.element_size());
  }
  auto alias = at::for_blob(data, tensor.sizes())
                   .strides(tensor.strides())
                   .deleter([keep = tensor.storage()](void*) {})
                   .options(at::TensorOptions(tensor.scalar_type()).device(c10::kCPU))
                   .resizeable_storage()
                   .allocator(c10::GetAllocator(c10::kCPU))
                   .make_tensor();
  if (tensor.is_conj()) {
    alias._set_conj(true);
  }
  if (tensor.is_neg()) {
    alias._set_neg(true);
  }
  return alias;
}

inline Tensor tensor_over(c10::Storage storage, const Tensor& like, int64_t offset) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(DispatchKey::CUDA), like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), offset);
  return tensor;
}

// Moves the memory of a CPU kernel's result to the device.
inline c10::Storage adopted(const Tensor& result, DeviceIndex device) {
  const auto bytes = static_cast<int64_t>(result.storage().nbytes());
  Block* block = new_block(device, bytes);
  block->adopted = result.storage();
  void* data = result.storage().mutable_data();
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes,
      c10::DataPtr(data, block, &free_block, Device(c10::kCUDA, device)), &device_allocator, true);
}

inline bool holds_tensors(const IValue& value) {
  if (!value.isList()) {
    return false;
  }
  const auto kind = value.toList().elementType()->kind();
  return kind == c10::TypeKind::TensorType || kind == c10::TypeKind::OptionalType ||
      kind == c10::TypeKind::ListType;
}

inline void each_tensor(const IValue& value, const std::function<void(const Tensor&)>& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) {
      visit(value.toTensor());
    }
  } else if (holds_tensors(value)) {
    for (const IValue& element : value.toListRef()) {
      each_tensor(element, visit);
    }
  }
}

inline IValue map_tensors(const IValue& value, const std::function<Tensor(const Tensor&)>& change) {
  if (value.isTensor()) {
    return value.toTensor().defined() ? IValue(change(value.toTensor())) : value;
  }
  if (!holds_tensors(value)) {
    return value;
  }
  c10::impl::GenericList changed(value.toList().elementType());
  for (const IValue& element : value.toListRef()) {
    changed.push_back(map_tensors(element, change));
  }
  return changed;
}

// Returns whether an operator writes an argument: Tensor(a!) or a list of them, Tensor(a!)[].
inline bool writes(const c10::Argument& argument) {
  const auto* alias = argument.alias_info();
  if (alias == nullptr) {
    return false;
  }
  const auto& inner = alias->containedTypes();
  return alias->isWrite() ||
      std::any_of(inner.begin(), inner.end(), [](const auto& one) { return one.isWrite(); });
}

class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack& stack) : op(op), stack(stack) {
    const auto& arguments = op.schema().arguments();
    first = stack.size() - arguments.size();
    for (size_t index = 0; index < arguments.size(); ++index) {
      const auto& value = stack[first + index];
      each_tensor(value, [&](const Tensor& tensor) {
        if (tensor.is_cuda()) {
          check_device(tensor, arguments[index].name());
          storages.push_back(tensor.storage().unsafeGetStorageImpl());
          if (writes(arguments[index])) {
            written.push_back(storages.back());
          }
        }
      });
      if (value.isDevice() && value.toDevice().is_cuda() && device < 0) {
        device = cuda(value.toDevice().index()).index();
      }
    }
    if (device < 0) {
      device = current_device;
    }
    for (size_t index = 0; index < arguments.size(); ++index) {
      each_tensor(stack[first + index], [&](const Tensor& tensor) {
        if (!tensor.is_cuda() && tensor.dim() > 0) {
          check_host_tensor(tensor, arguments[index].name());
        }
      });
    }
  }

  // Runs the CPU's kernel, and replaces its results on the stack.
  void run(DispatchKey key) {
    for (size_t index = first; index < stack.size(); ++index) {
      auto& value = stack[index];
      if (value.isDevice()) {
        value = Device(c10::kCPU);
      } else if (value.isGenerator() && value.toGenerator().device().is_cuda()) {
        value = static_cast<DeviceGenerator*>(value.toGenerator().unsafeGetGeneratorImpl())->host;
      } else {
        value = map_tensors(value, [this](const Tensor& tensor) { return alias(tensor); });
      }
    }
    op.redispatchBoxed(c10::DispatchKeySet(key), &stack);
    for (auto& [host, original] : aliases) {
      follow(host, original);
    }
    const size_t results = op.schema().returns().size();
    for (size_t index = stack.size() - results; index < stack.size(); ++index) {
      stack[index] =
          map_tensors(stack[index], [this](const Tensor& tensor) { return original_of(tensor); });
    }
  }

  // Returns the CPU tensor that the kernel sees.
  Tensor alias(const Tensor& tensor) {
    if (!tensor.is_cuda()) {
      return tensor;
    }
    for (const auto& [host, original] : aliases) {
      if (original.is_same(tensor)) {
        return host;
      }
    }
    const Tensor host = host_alias(tensor);
    aliases.emplace_back(copies ? host.clone() : host, tensor);
    return aliases.back().first;
  }

  DeviceIndex device = -1;
  std::vector<const void*> storages;
  std::vector<const void*> written;
  size_t first = 0;
  bool copies = false;  // whether the kernel sees copies of the memory

 private:
  void check_device(const Tensor& tensor, const std::string& name) {
    if (device < 0) {
      device = tensor.device().index();
      checked = name;
    }
    TORCH_CHECK(
        tensor.device().index() == device,
        "Expected all tensors to be on the same device, but got ", name, " is on ",
        tensor.device(), ", different from ", checked, " on cuda:", int(device),
        " (when checking argument in method wrapper_CUDA_", op.schema().name(), ")");
  }

  void check_host_tensor(const Tensor& tensor, const std::string& name) {
    if (name == "indices") {  // CUDA's kernels move them
      note("pageable to device");
      return;
    }
    TORCH_CHECK(
        false, "Expected all tensors to be on the same device, but got ", name, " is on ",
        tensor.device(), ", different from other tensors on cuda:", int(device),
        " (when checking argument in method wrapper_CUDA_", op.schema().name(), ")");
  }

  // Gives a tensor the memory and sizes that a kernel gave to its alias.
  void follow(const Tensor& host, const Tensor& original) {
    if (host.sizes() == original.sizes() && host.strides() == original.strides()) {
      return;
    }
    at::native::resize_(original, host.sizes(), std::nullopt);
    host_alias(original).copy_(host);
  }

  Tensor original_of(const Tensor& result) {
    for (const auto& [host, original] : aliases) {
      if (host.is_same(result)) {
        return original;
      }
    }
    for (const auto& [host, original] : aliases) {
      if (host.storage().is_alias_of(result.storage())) {
        return tensor_over(
            original.storage(), result, original.storage_offset() + result.storage_offset());
      }
    }
    for (const auto& [host, storage] : moved) {
      if (host == result.storage().unsafeGetStorageImpl()) {
        return tensor_over(storage, result, result.storage_offset());
      }
    }
    moved.emplace_back(result.storage().unsafeGetStorageImpl(), adopted(result, device));
    Locked lock;
    writers[moved.back().second.unsafeGetStorageImpl()] = {current_key(device), last_number};
    return tensor_over(moved.back().second, result, result.storage_offset());
  }

  const c10::OperatorHandle& op;
  Stack& stack;
  std::string checked;
  std::vector<std::pair<Tensor, Tensor>> aliases;
  std::vector<std::pair<void*, c10::Storage>> moved;
};

}  // namespace pretended
