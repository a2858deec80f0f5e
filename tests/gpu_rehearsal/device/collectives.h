// Collectives of NCCL, which gloo carries out on CPU tensors over the memory of a device.
// Their results arrive when a stream waits for them.

#pragma once

#include "calls.h"
#include "guard.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace pretended {

// The work of a collective. Its results arrive when a stream waits for it.
struct LateWork final : c10d::Work {
  LateWork(c10::intrusive_ptr<c10d::Work> inner, Key key, int64_t number)
      : inner(std::move(inner)), key(key), number(number), clock(clock_after(key)) {}
  bool isCompleted() override {
    return inner->isCompleted();
  }
  bool isSuccess() const override {
    return inner->isSuccess();
  }
  void synchronize() override {
    wait(kNoTimeout);
  }
  bool wait(std::chrono::milliseconds) override {
    EventState event{key, number, {}, clock};
    GuardImpl().block(&event, GuardImpl().getStream(Device(c10::kCUDA, key.first)));
    return true;
  }
  c10::intrusive_ptr<c10d::Work> inner;
  Key key;
  int64_t number;
  Clock clock;
};

// Gloo works on the aliases. It is reached by a device that nobody else uses, so that a host tensor
// in a collective stays an error. Returns the number of the group's own stream.
inline c10::StreamId prepare_group(const IValue& value) {
  static const auto type = c10::getCustomClassType<c10::intrusive_ptr<c10d::ProcessGroup>>();
  if (!value.isObject() || value.type() != type) {
    return 0;
  }
  auto group = value.toCustomClass<c10d::ProcessGroup>();
  group->setBackend(c10::kPrivateUse1, c10d::ProcessGroup::CUSTOM, group->getBackend(c10::kCUDA));
  return -static_cast<c10::StreamId>(reinterpret_cast<intptr_t>(group.get()));
}

inline void collective(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const auto& name = op.schema().name();
  Call call(op, *stack);
  TORCH_CHECK(
      is_set && current_device == call.device, "NCCL: ", name, " gets tensors on cuda:",
      int(call.device), ", and this thread's device is cuda:", int(current_device),
      is_set ? "" : ". torch.cuda.set_device was not called");
  begin_work(current_key(call.device), name, call.storages, {});
  run_all(current_key(call.device));
  Key key{call.device, 0};
  for (size_t index = call.first; index < stack->size(); ++index) {
    key.second += prepare_group((*stack)[index]);
  }
  const bool is_barrier = name == "c10d::barrier";
  note(is_barrier ? "barrier" : "collective");
  call.copies = !is_barrier;
  const IValue written = (*stack)[call.first];  // the first argument holds the results
  call.run(DispatchKey::PrivateUse1);
  if (!call.copies) {
    return;
  }
  auto work = stack->back().toCustomClass<c10d::Work>();
  std::vector<std::pair<Tensor, Tensor>> results;
  if (name != "c10d::send") {
    each_tensor(written, [&](const Tensor& tensor) {
      results.emplace_back(call.alias(tensor), tensor);
    });
  }
  Locked lock;
  clocks[key] = clock_after(current_key(call.device));
  enqueue(key, {}, [work, results] {
    work->wait();
    for (const auto& [host, original] : results) {
      host_alias(original).copy_(host);
    }
  });
  for (const auto& [host, original] : results) {
    writers[original.storage().unsafeGetStorageImpl()] = {key, last_number};
  }
  stack->back() =
      c10::intrusive_ptr<c10d::Work>(c10::make_intrusive<LateWork>(work, key, last_number));
}

}  // namespace pretended
