// The fallback runs an operator that has no kernel here: now, or later in the queue of its stream.
// It runs all work of the stream first if the host has to know a value.

#pragma once

#include "calls.h"

#include <ATen/ops/empty_strided.h>

namespace pretended {

// Operators whose result has a size, or decides something, that the host has to know.
inline bool reads_values(const std::string& name) {
  static const std::array names = {
      "aten::nonzero", "aten::masked_select", "aten::equal", "aten::_unique2",
      "aten::unique_dim", "aten::unique_consecutive", "aten::bincount", "aten::repeat_interleave"};
  return std::find(names.begin(), names.end(), name) != names.end();
}

inline bool is_functional(const c10::FunctionSchema& schema) {
  return std::none_of(schema.arguments().begin(), schema.arguments().end(), [](const auto& one) {
    return writes(one);
  });
}

// Puts a kernel into the queue of its stream. Its results exist at once, filled with NaN: a trial
// on the present values tells their sizes.
inline void defer(const c10::OperatorHandle& op, Call& call, Stack& stack) {
  const Key key = current_key(call.device);
  Locked lock;
  Stack arguments(stack.begin() + call.first, stack.end());
  Stack results;
  auto storages = call.storages;
  const bool fresh = is_functional(op.schema());
  if (fresh) {
    call.run(DispatchKey::CPU);
    results.assign(stack.begin() + call.first, stack.end());
    for (auto& result : results) {
      result = map_tensors(result, [&](const Tensor& tensor) {
        for (const void* storage : call.storages) {
          if (storage == tensor.storage().unsafeGetStorageImpl()) {
            return tensor;
          }
        }
        c10::impl::VirtualGuardImpl(c10::kCUDA).setDevice(cuda(call.device));
        auto empty = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options());
        storages.push_back(empty.storage().unsafeGetStorageImpl());
        writers[storages.back()] = {key, last_number};
        return empty;
      });
    }
    std::copy(results.begin(), results.end(), stack.begin() + call.first);
  } else {
    // The results of operators that write are the tensors that they write.
    for (const auto& result : op.schema().returns()) {
      for (size_t index = 0; index < arguments.size(); ++index) {
        const auto* info = op.schema().arguments()[index].alias_info();
        if (info != nullptr && result.alias_info() != nullptr &&
            info->beforeSets() == result.alias_info()->beforeSets()) {
          results.push_back(arguments[index]);
        }
      }
    }
    stack.resize(call.first);
    stack.insert(stack.end(), results.begin(), results.end());
  }
  enqueue(key, std::move(storages), [op, arguments, results, fresh]() mutable {
    c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset);
    Stack again = arguments;
    Call late(op, again);
    late.run(DispatchKey::CPU);
    if (!fresh) {
      return;
    }
    std::vector<Tensor> made;
    for (const auto& result : again) {
      each_tensor(result, [&](const Tensor& tensor) { made.push_back(tensor); });
    }
    size_t index = 0;
    for (const auto& result : results) {
      each_tensor(result, [&](const Tensor& tensor) {
        if (!tensor.is_alias_of(made[index])) {
          host_alias(tensor).copy_(host_alias(made[index]));
        }
        ++index;
      });
    }
  });
}

inline void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  Call call(op, *stack);
  const Key key = current_key(call.device);
  begin_work(key, op.schema().name(), call.storages, call.written);
  if (reads_values(op.schema().name())) {
    note(op.schema().name().c_str() + 6);
    run_all(key);
    host_waits_for(key);
  } else if (is_deferred(key)) {
    defer(op, call, *stack);
    return;
  } else {
    run_before(key, call.storages);
  }
  call.run(DispatchKey::CPU);
}

}  // namespace pretended
