// Explains running out of memory: the live allocations and their origin, the predicted need of the
// run, the keys to lower, and a snapshot of that moment as a file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "dist/rank_team.h"
#include "profile/memory/memory_recorder.h"
#include "train/memory_prediction.h"

namespace quern {

// The memory of a device. 0 bytes: unknown.
struct MemoryCapacity {
  int64_t bytes = 0;
  std::string of;  // "memory_limit", "cuda:0", "this machine"
};

// Capacity of the current Context's device: the memory that this process holds on the GPU plus its
// free memory, or memory_limit if that is less.
MemoryCapacity memory_capacity(const Config& config);

// Whether a training step is predicted to fit, with room for free bytes between allocations. An
// unknown capacity counts as sufficient.
bool step_fits(const Config& config, const MemoryCapacity& capacity);

// Host memory that the processes with the same `id` share.
struct SharedMemory {
  std::string id;
  MemoryCapacity memory;
};
// The memory of this machine with its swap, and the limits of this process's control groups.
std::vector<SharedMemory> shared_host_memory();

// The least of `shared`, after each is divided equally among the ranks of `team` that share it. A
// collective.
MemoryCapacity machine_memory(const RankTeam& team = RankTeam(nullptr),
                              const std::vector<SharedMemory>& shared = shared_host_memory());

// Throws OutOfMemory with the predicted need and the keys to lower, when the pass needs more of the
// host's memory than `machine` has: on the CPU, or beside a GPU by Offload. Linux would grant the
// memory and kill the process later. Call it before the model is built.
void check_machine_memory(const Config& config, MemoryPass pass,
                          const MemoryCapacity& machine = machine_memory());

// Report of a std::bad_alloc, which comes from memory outside the allocator: the predicted need.
std::string machine_memory_report(const Config& config, MemoryPass pass);

// Report of a trace that ends with a failure: the table of categories, the ten largest live
// allocations with name, op, module and phase, the predicted need of `pass` against the capacity,
// and changes of keys with the need predicted for each. Without a vocabulary (model.vocab_size 0)
// the model is not known yet, and the report predicts nothing.
std::string memory_report(const MemoryTrace& trace, const Config& config, MemoryPass pass,
                          const MemoryCapacity& capacity);

// Records the memory of the current Context's device during its lifetime, to explain out of memory.
class MemoryWatch {
 public:
  // f(), or, when that runs out of memory, explain(). f may change the arguments.
  template <class F>
  auto run(const Config& config, MemoryPass pass, const std::filesystem::path& folder, F&& f) {
    try {
      return std::forward<F>(f)();
    } catch (const OutOfMemory& error) {
      explain(error, config, pass, folder);
    } catch (const std::bad_alloc&) {
      throw OutOfMemory(machine_memory_report(config, pass));
    }
  }

  // Call it while handling `error`: writes folder/memory.pickle and throws an OutOfMemory with the
  // report, or `error` itself when it belongs to another device or was explained before.
  [[noreturn]] void explain(const OutOfMemory& error, const Config& config, MemoryPass pass,
                            const std::filesystem::path& folder);

  const MemoryRecorder& recorder() const { return recorder_; }

 private:
  // A few steps: the report needs the live allocations, and the snapshot shows their history.
  static constexpr size_t kHistory = size_t{1} << 13;
  MemoryRecorder recorder_{kHistory};
};

}  // namespace quern
