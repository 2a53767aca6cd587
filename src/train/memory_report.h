// Out of memory, explained: who held what, where it was made, what the run needs as predicted, and
// what to lower; and the snapshot of that moment as a file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>

#include "profile/memory/memory_recorder.h"
#include "train/memory_prediction.h"

namespace quern {

// What a device offers. 0 bytes: not known.
struct MemoryCapacity {
  int64_t bytes = 0;
  std::string of;  // "memory_limit", "cuda:0"
};

// Of the current Context's device: what this process holds of the GPU and what is free on it, or
// memory_limit, where that is less.
MemoryCapacity memory_capacity(const Config& config);

// Of a trace that ends with a failure: the table of categories, the ten largest live allocations
// with name, op, module and phase, the predicted need of `pass` against what there is, and what to
// change with the need predicted then. Without a vocabulary (model.vocab_size 0) the model is not
// known yet, and nothing is predicted.
std::string memory_report(const MemoryTrace& trace, const Config& config, MemoryPass pass,
                          const MemoryCapacity& capacity);

// Records the memory of the current Context's device from its making to its end, so that running
// out of it can be explained.
class MemoryWatch {
 public:
  // f(), or, when that runs out of memory, explain().
  template <class F>
  auto run(const Config& config, MemoryPass pass, const std::filesystem::path& folder, F&& f) {
    try {
      return std::forward<F>(f)();
    } catch (const OutOfMemory& error) {
      explain(error, config, pass, folder);
    }
  }

  // To be called while `error` is handled: writes folder/memory.pickle and throws an OutOfMemory
  // with the report; `error` itself when it is not of this device, or was explained before.
  [[noreturn]] void explain(const OutOfMemory& error, const Config& config, MemoryPass pass,
                            const std::filesystem::path& folder);

  const MemoryRecorder& recorder() const { return recorder_; }

 private:
  // A few steps' worth: the report needs what is alive, and the snapshot shows how it came to be.
  static constexpr size_t kHistory = size_t{1} << 13;
  MemoryRecorder recorder_{kHistory};
};

}  // namespace quern
