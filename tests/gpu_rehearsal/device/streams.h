// Streams are queues of work, and an event is a point in one of them.
// Clocks tell which work comes before which, so that memory in use without a wait is an error.

#pragma once

#include "devices.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <unordered_map>

namespace pretended {

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

inline std::recursive_mutex queue_mutex;
inline std::map<Key, Queue> queues;
inline int64_t last_number = 0;
inline int depth = 0;
inline std::vector<Item> finished;  // destroyed without the lock, as tensors may need Python's

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

inline Key key_of(const Stream& stream) {
  return {stream.device_index() < 0 ? current_device : stream.device_index(), stream.id()};
}

inline Key current_key(DeviceIndex device) {
  return {device, current_streams[device]};
}

// For each stream, the number of its last work that comes before.
using Clock = std::map<Key, int64_t>;

inline std::map<Key, Clock> clocks;  // before the next work of a stream
inline Clock host_clock;             // what the host has waited for
// The last work that wrote a storage.
inline std::unordered_map<const void*, std::pair<Key, int64_t>> writers;

inline void merge(Clock& clock, const Clock& other) {
  for (const auto& [key, number] : other) {
    clock[key] = std::max(clock[key], number);
  }
}

// Returns what comes before work that waits for all of a stream so far.
inline Clock clock_after(const Key& key) {
  Clock clock = clocks[key];
  merge(clock, host_clock);
  clock[key] = last_number;
  return clock;
}

inline void host_waits_for(const Key& key) {
  Locked lock;
  merge(host_clock, clock_after(key));
}

inline bool is_deferred(const Key& key) {
  return key.second != 0;
}

inline void run_waits(const Key& key);

// Runs the work of a stream up to a number.
inline void run_until(const Key& key, int64_t number) {
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

inline void run_waits(const Key& key) {
  auto waits = std::move(queues[key].waits);
  queues[key].waits.clear();
  for (const auto& [other, number] : waits) {
    run_until(other, number);
  }
}

inline void run_all(const Key& key) {
  run_until(key, INT64_MAX);
}

inline void enqueue(const Key& key, std::vector<const void*> storages, std::function<void()> run) {
  Locked lock;
  queues[key].items.push_back({++last_number, std::move(storages), std::move(run)});
}

// Runs what comes before a kernel that runs at once: waits, and copies of the same memory.
inline void run_before(const Key& key, const std::vector<const void*>& storages) {
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

inline void run_all_of(const void* storage) {
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

inline void run_device(DeviceIndex device) {
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

// Numbers new work of a stream.
inline void begin_work(
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

}  // namespace pretended
