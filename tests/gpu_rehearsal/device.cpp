// A pretended CUDA device for the CPU build of torch, as a plain library without Python.
//
// Memory "on the device" is host memory with a device of its own in its DataPtr. Kernels are the
// CPU's: a boxed fallback under the CUDA key shows them the arguments as CPU tensors, and wraps
// their results. It checks what CUDA checks: all tensors have to be on one device.
//
// Streams are queues. Work that nobody has waited for stays in the queue of its stream: copies
// between pinned and device memory with non_blocking=True, and all work of streams other than the
// default one. Reading or writing memory that another stream writes, without having waited for it,
// is an error.

#include <ATen/EmptyTensor.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/native/Resize.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <unordered_map>

namespace {

using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::DispatchKey;
using c10::IValue;
using c10::Stream;
using torch::jit::Stack;

constexpr int MAX_DEVICES = 16;
int device_total = 0;
bool is_set = false;  // whether set_device was called, or nobody needs to
int64_t memory_limit = 0;
thread_local DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, MAX_DEVICES> current_streams{};

void (*recorder)(const char* kind) = nullptr;

// Tells the recorder what the host does to a device.
void note(const char* kind) {
  if (recorder != nullptr) {
    recorder(kind);
  }
}

Device cuda(DeviceIndex index) {
  return Device(c10::kCUDA, index < 0 ? current_device : index);
}

// ---- Memory -----------------------------------------------------------------------------------

std::array<std::atomic<int64_t>, MAX_DEVICES> live_bytes{};
std::array<std::atomic<int64_t>, MAX_DEVICES> peak_bytes{};
std::array<std::atomic<int64_t>, MAX_DEVICES> refusals{};

void charge(DeviceIndex device, int64_t bytes) {
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

void free_block(void* context) {
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
DeviceAllocator device_allocator;

std::mutex pinned_mutex;
std::map<const char*, size_t> pinned;

void free_pinned(void* memory) {
  {
    std::lock_guard<std::mutex> lock(pinned_mutex);
    pinned.erase(static_cast<char*>(memory));
  }
  std::free(memory);
}

bool is_pinned(const void* pointer) {
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
PinnedAllocator pinned_allocator;

// ---- Streams and events -----------------------------------------------------------------------

using Key = std::pair<DeviceIndex, c10::StreamId>;

struct Item {
  int64_t number;
  std::vector<const void*> storages;  // that the work reads or writes
  std::function<void()> run;
};

struct Queue {
  std::deque<Item> items;
  std::vector<std::pair<Key, int64_t>> waits;  // of the default stream: for work up to a number
};

std::recursive_mutex queue_mutex;
std::map<Key, Queue> queues;
int64_t last_number = 0;
int depth = 0;
std::vector<Item> finished;  // destroyed without the lock, as tensors may need Python's

struct Locked {
  Locked() {
    queue_mutex.lock();
    ++depth;
  }
  ~Locked() {
    std::vector<Item> ended;
    if (--depth == 0) {
      ended.swap(finished);
    }
    queue_mutex.unlock();
  }
};

Key key_of(const Stream& stream) {
  return {stream.device_index() < 0 ? current_device : stream.device_index(), stream.id()};
}

Key current_key(DeviceIndex device) {
  return {device, current_streams[device]};
}

bool is_deferred(const Key& key) {
  return key.second != 0;
}

void run_waits(const Key& key);

// Runs the work of a stream up to a number.
void run_until(const Key& key, int64_t number) {
  Locked lock;
  run_waits(key);
  auto& queue = queues[key];
  while (!queue.items.empty() && queue.items.front().number <= number) {
    Item item = std::move(queue.items.front());
    queue.items.pop_front();
    item.run();
    finished.push_back(std::move(item));
  }
}

void run_waits(const Key& key) {
  auto waits = std::move(queues[key].waits);
  queues[key].waits.clear();
  for (const auto& [other, number] : waits) {
    run_until(other, number);
  }
}

void run_all(const Key& key) {
  run_until(key, INT64_MAX);
}

void enqueue(const Key& key, std::vector<const void*> storages, std::function<void()> run) {
  Locked lock;
  queues[key].items.push_back({++last_number, std::move(storages), std::move(run)});
}

// Runs what comes before a kernel that runs at once: waits, and copies of the same memory.
void run_before(const Key& key, const std::vector<const void*>& storages) {
  Locked lock;
  run_waits(key);
  auto& items = queues[key].items;
  for (size_t index = 0; index < items.size();) {
    const auto touches = [&](const void* storage) {
      return std::find(storages.begin(), storages.end(), storage) != storages.end();
    };
    if (std::any_of(items[index].storages.begin(), items[index].storages.end(), touches)) {
      Item item = std::move(items[index]);
      items.erase(items.begin() + index);
      item.run();
      finished.push_back(std::move(item));
    } else {
      ++index;
    }
  }
}

void run_all_of(const void* storage) {
  Locked lock;
  for (auto& [key, queue] : queues) {
    int64_t last = 0;
    for (const auto& item : queue.items) {
      if (std::find(item.storages.begin(), item.storages.end(), storage) != item.storages.end()) {
        last = item.number;
      }
    }
    if (last > 0) {
      run_until(key, last);
    }
  }
}

void host_waits_for(const Key& key);

void run_device(DeviceIndex device) {
  Locked lock;
  std::vector<Key> keys;
  for (const auto& [key, queue] : queues) {
    if (key.first == device) {
      keys.push_back(key);
    }
  }
  for (const auto& key : keys) {
    run_all(key);
    host_waits_for(key);
  }
}

// ---- The order of work on several streams -----------------------------------------------------

// For each stream, the number of its last work that comes before.
using Clock = std::map<Key, int64_t>;

std::map<Key, Clock> clocks;  // before the next work of a stream
Clock host_clock;             // what the host has waited for
std::unordered_map<const void*, std::pair<Key, int64_t>> writers;  // last work that wrote a storage

void merge(Clock& clock, const Clock& other) {
  for (const auto& [key, number] : other) {
    clock[key] = std::max(clock[key], number);
  }
}

// Returns what comes before work that waits for all of a stream so far.
Clock clock_after(const Key& key) {
  Clock clock = clocks[key];
  merge(clock, host_clock);
  clock[key] = last_number;
  return clock;
}

void host_waits_for(const Key& key) {
  Locked lock;
  merge(host_clock, clock_after(key));
}

// Numbers new work of a stream.
void begin_work(
    const Key& key,
    const std::string& name,
    const std::vector<const void*>& used,
    const std::vector<const void*>& written) {
  Locked lock;
  ++last_number;
  for (const void* storage : used) {
    const auto found = writers.find(storage);
    if (found == writers.end()) {
      continue;
    }
    const auto& [writer, number] = found->second;
    TORCH_CHECK(
        writer == key || number <= clocks[key][writer] || number <= host_clock[writer], name,
        " on stream ", key.second, " of cuda:", int(key.first), " uses memory that stream ",
        writer.second, " may still write: nothing has waited for it");
  }
  for (const void* storage : written) {
    writers[storage] = {key, last_number};
  }
}

struct EventState {
  Key key;
  int64_t number;
  std::chrono::steady_clock::time_point time;
  Clock clock;
};

std::atomic<c10::StreamId> streams_made{0};

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
C10_REGISTER_GUARD_IMPL(CUDA, GuardImpl);

// ---- Hooks and random numbers -----------------------------------------------------------------

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

const at::Generator& default_generator(DeviceIndex index) {
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
    return ::current_device;
  }
  void setCurrentDevice(DeviceIndex index) const override {
    GuardImpl().setDevice(cuda(index));
  }
  DeviceIndex getCurrentDevice() const override {
    return ::current_device;
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
    return Device(c10::kCUDA, ::current_device);
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

// ---- Tensors of the device as CPU tensors, and back -------------------------------------------

int64_t bytes_of(const Tensor& tensor) {
  return tensor.numel() * static_cast<int64_t>(tensor.element_size());
}

// Returns a CPU tensor over the memory of a tensor of the device, which it keeps.
Tensor host_alias(const Tensor& tensor) {
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

Tensor tensor_over(c10::Storage storage, const Tensor& like, int64_t offset) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(DispatchKey::CUDA), like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), offset);
  return tensor;
}

// Moves the memory of a CPU kernel's result to the device.
c10::Storage adopted(const Tensor& result, DeviceIndex device) {
  const auto bytes = static_cast<int64_t>(result.storage().nbytes());
  charge(device, bytes);
  auto* block = new Block{device, bytes, nullptr, result.storage()};
  void* data = result.storage().mutable_data();
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes,
      c10::DataPtr(data, block, &free_block, Device(c10::kCUDA, device)), &device_allocator, true);
}

bool holds_tensors(const IValue& value) {
  if (!value.isList()) {
    return false;
  }
  const auto kind = value.toList().elementType()->kind();
  return kind == c10::TypeKind::TensorType || kind == c10::TypeKind::OptionalType ||
      kind == c10::TypeKind::ListType;
}

void each_tensor(const IValue& value, const std::function<void(const Tensor&)>& visit) {
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

IValue map_tensors(const IValue& value, const std::function<Tensor(const Tensor&)>& change) {
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
bool writes(const c10::Argument& argument) {
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

// Operators whose result has a size, or decides something, that the host has to know.
bool reads_values(const std::string& name) {
  static const std::array names = {
      "aten::nonzero", "aten::masked_select", "aten::equal", "aten::_unique2",
      "aten::unique_dim", "aten::unique_consecutive", "aten::bincount", "aten::repeat_interleave"};
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_functional(const c10::FunctionSchema& schema) {
  return std::none_of(schema.arguments().begin(), schema.arguments().end(), [](const auto& one) {
    return writes(one);
  });
}

// Puts a kernel into the queue of its stream. Its results exist at once, filled with NaN: a trial
// on the present values tells their sizes.
void defer(const c10::OperatorHandle& op, Call& call, Stack& stack) {
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

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
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

// ---- Kernels of their own ---------------------------------------------------------------------

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

Tensor unwritten(Tensor tensor) {
  Locked lock;
  writers.erase(tensor.storage().unsafeGetStorageImpl());  // of memory that had this address
  return tensor;
}

Tensor empty(
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

Tensor empty_strided(
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

at::Scalar local_scalar_dense(const Tensor& self) {
  note("item");
  const Key key = current_key(self.device().index());
  begin_work(key, "item", {self.storage().unsafeGetStorageImpl()}, {});
  run_all(key);
  host_waits_for(key);
  return host_alias(self).item();
}

// A copy that the device does by itself: pinned memory, no conversion, one piece.
bool is_one_transfer(const Tensor& to, const Tensor& from) {
  return to.scalar_type() == from.scalar_type() && to.sizes() == from.sizes() &&
      to.strides() == from.strides() && to.is_non_overlapping_and_dense();
}

Tensor& copy_(Tensor& self, const Tensor& source, bool non_blocking) {
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

int64_t fused_sdp_choice(
    const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, double, bool,
    std::optional<double>, bool) {
  return 0;  // math
}

void resize_storage(const Tensor& tensor, int64_t bytes) {
  OnDevice on(tensor.device());
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  run_all_of(storage);
  at::native::resize_bytes_cpu(storage, bytes);
}

// ---- Collectives ------------------------------------------------------------------------------

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
c10::StreamId prepare_group(const IValue& value) {
  static const auto type = c10::getCustomClassType<c10::intrusive_ptr<c10d::ProcessGroup>>();
  if (!value.isObject() || value.type() != type) {
    return 0;
  }
  auto group = value.toCustomClass<c10d::ProcessGroup>();
  group->setBackend(c10::kPrivateUse1, c10d::ProcessGroup::CUSTOM, group->getBackend(c10::kCUDA));
  return -static_cast<c10::StreamId>(reinterpret_cast<intptr_t>(group.get()));
}

void collective(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
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

}  // namespace

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
using CUDAHooks = ::Hooks;
REGISTER_CUDA_HOOKS(CUDAHooks);
}  // namespace at

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
int64_t rehearsal_live_bytes(int device) {
  return live_bytes[device];
}
int64_t rehearsal_peak_bytes(int device) {
  return peak_bytes[device];
}
int64_t rehearsal_refusals(int device) {
  return refusals[device];
}
void rehearsal_reset_peak(int device) {
  peak_bytes[device] = live_bytes[device].load();
}
}
