#include "train/memory_report.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/error.h"
#include "dist/host_name.h"
#include "io/cgroup.h"
#include "profile/memory/memory_snapshot.h"
#include "tensor/cuda_runtime.h"

namespace quern {

namespace {

constexpr size_t kLargest = 10;      // allocations listed
constexpr double kFragments = 1.05;  // room for free bytes between allocations

std::string size_text(int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes < (int64_t{1} << 20)) return fmt::format("{:.1f} KiB", value / 1024);
  if (bytes < (int64_t{10} << 30)) return fmt::format("{:.1f} MiB", value / (1 << 20));
  return fmt::format("{:.1f} GiB", value / (1 << 30));
}

std::string category_table(const MemoryTrace& trace, const std::vector<size_t>& live) {
  const MemoryByCategory bytes = by_category(trace, live);
  const int64_t total = PeakEstimate{bytes}.total();
  std::string text = "In use by category:\n";
  for (size_t i = 0; i < kMemoryCategories; ++i) {
    const double share =
        total > 0 ? 100.0 * static_cast<double>(bytes[i]) / static_cast<double>(total) : 0.0;
    text += fmt::format("  {:<12}{:>12}{:>7.1f} %\n", name_of(static_cast<MemoryCategory>(i)),
                        size_text(bytes[i]), share);
  }
  return text + fmt::format("  {:<12}{:>12}\n", "total", size_text(total));
}

std::string or_dash(const std::string& text) {
  return text.empty() ? "-" : text;
}

// Size, name, op, module and phase, in columns as wide as needed.
std::string largest_table(const MemoryTrace& trace, const std::vector<size_t>& live) {
  using Row = std::array<std::string, 5>;
  std::vector<Row> rows = {{"size", "name", "op", "module", "phase"}};
  for (size_t i = 0; i < live.size() && i < kLargest; ++i) {
    const TracedAllocation& a = trace.allocations[live[i]];
    const std::string op = trace.names[a.place.op] + (a.place.backward ? " backward" : "");
    rows.push_back({size_text(a.bytes), trace.names[a.name], or_dash(op),
                    or_dash(trace.names[a.place.module]), or_dash(trace.names[a.place.phase])});
  }
  std::array<size_t, 5> width{};
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  }
  std::string text = fmt::format("The largest of {} allocations:\n", live.size());
  for (const Row& row : rows) {
    text += fmt::format("  {:>{}}  {:<{}}  {:<{}}  {:<{}}  {}\n", row[0], width[0], row[1],
                        width[1], row[2], width[2], row[3], width[3], row[4]);
  }
  return text;
}

int64_t need_of(const Config& config, MemoryPass pass) {
  return predict_peak(config, pass, current_target()).total();
}

// An unknown capacity counts as sufficient.
bool fits(int64_t need, const MemoryCapacity& capacity) {
  if (capacity.bytes == 0) return true;
  return static_cast<double>(need) * kFragments <= static_cast<double>(capacity.bytes);
}

// A change to the configuration and its predicted need.
struct Remedy {
  std::string change;
  Config config;
  int64_t need = 0;
};

class Remedies {
 public:
  Remedies(const Config& config, MemoryPass pass, const MemoryCapacity& capacity)
      : config_(config),
        pass_(pass),
        step_(pass == MemoryPass::step),
        capacity_(capacity),
        need_(need_of(config, pass)) {}

  std::vector<Remedy> find() {
    less_batch();
    using C = ComputeSection;
    const Recompute now = config_.compute.recompute;
    if (step_ && (now == Recompute::none || now == Recompute::swiglu)) {
      set("recompute = norms", &C::recompute, Recompute::norms);
    }
    if (step_) set("recompute = blocks", &C::recompute, Recompute::blocks);
    if (step_ && Context::current().device().is_cuda()) offload();
    if (step_) half_moments();
    set("precision = bf16", &C::precision, Precision::bf16);
    set("attention = flash", &C::attention, AttentionKind::flash);
    set("kernels = fused", &C::kernels, KernelKind::fused);
    if (step_) less_context();  // otherwise the trained model fixes it
    const auto enough = [&](const Remedy& r) { return fits(r.need, capacity_); };
    if (std::ranges::none_of(found_, enough)) everything();
    return std::move(found_);
  }

 private:
  template <class Owner, class T>
  void set(const char* change, T Owner::*member, T value) {
    if (config_.compute.*member == value) return;
    add(change, [=](Config& c) { c.compute.*member = value; });
  }

  template <class F>
  void add(const std::string& change, F apply) {
    Config config = config_;
    apply(config);
    try {
      validate_options(config.model, config.compute);
    } catch (const Error&) {
      return;  // flash attention does not support every head_dim
    }
    const int64_t need = need_of(config, pass_);
    if (need < need_) found_.push_back({change, config, need});
  }

  // The largest part of the batch that fits, else one sequence; the step keeps its tokens.
  void less_batch() {
    int64_t batch = 1;
    for (int64_t b = config_.train.batch - 1; b > 1 && batch == 1; --b) {
      if (config_.train.batch % b != 0) continue;
      Config config = config_;
      config.train.batch = b;
      if (fits(need_of(config, pass_), capacity_)) batch = b;
    }
    if (batch >= config_.train.batch) return;
    const int64_t accumulate = config_.train.accumulate * config_.train.batch / batch;
    add(step_ ? cat("batch = ", batch, ", accumulate = ", accumulate) : cat("batch = ", batch),
        [&](Config& c) { c.train.batch = batch, c.train.accumulate = accumulate; });
  }

  void offload() {
    using C = ComputeSection;
    if (config_.compute.offload == Offload::none) {
      set("offload = moments", &C::offload, Offload::moments);
    }
    set("offload = optimizer", &C::offload, Offload::optimizer);
    set("offload_activations = true", &C::offload_activations, true);
  }

  void half_moments() {
    if (config_.optimizer.moments == MomentType::bf16) return;
    add("moments = bf16", [](Config& c) { c.optimizer.moments = MomentType::bf16; });
  }

  // Halves it until it fits.
  void less_context() {
    Config config = config_;
    do {
      config.model.context /= 2;
      if (config.model.context < 1) return;
    } while (config.model.context > 64 && !fits(need_of(config, pass_), capacity_));
    add(cat("ctx = ", config.model.context),
        [&](Config& c) { c.model.context = config.model.context; });
  }

  void everything() {
    const int64_t parts = config_.train.accumulate * config_.train.batch;
    const bool fp8 = config_.compute.precision == Precision::fp8;
    const char* const half = fp8 ? "fp8" : "bf16";
    const std::string change =
        step_ ? cat("batch = 1, accumulate = ", parts, ", recompute = blocks, precision = ", half,
                    ", attention = flash, kernels = fused, moments = bf16")
              : cat("batch = 1, precision = ", half, ", attention = flash, kernels = fused");
    const auto smallest = [&](Config& c) {
      c.train.batch = 1, c.train.accumulate = parts;
      c.compute.recompute = Recompute::blocks;
      c.compute.precision = fp8 ? Precision::fp8 : Precision::bf16;
      c.compute.attention = AttentionKind::flash, c.compute.kernels = KernelKind::fused;
      if (step_) c.optimizer.moments = MomentType::bf16;
    };
    add(change, smallest);
    if (!step_ || !Context::current().device().is_cuda()) return;
    add(change + ", offload = optimizer, offload_activations = true", [&](Config& c) {
      smallest(c);
      c.compute.offload = Offload::optimizer, c.compute.offload_activations = true;
    });
  }

  const Config& config_;
  const MemoryPass pass_;
  const bool step_;
  const MemoryCapacity& capacity_;
  const int64_t need_;
  std::vector<Remedy> found_;
};

std::string need_text(const Config& config, MemoryPass pass, const MemoryCapacity& capacity) {
  const bool step = pass == MemoryPass::step;
  std::string text = fmt::format("Predicted need of {} (batch {}, ctx {}): {}",
                                 step ? "a training step" : "a forward", config.train.batch,
                                 config.model.context, size_text(need_of(config, pass)));
  if (capacity.bytes > 0)
    text += fmt::format("; {} has {}", capacity.of, size_text(capacity.bytes));
  return text + "\n";
}

std::string remedy_table(const Config& config, MemoryPass pass, const MemoryCapacity& capacity) {
  const std::vector<Remedy> remedies = Remedies(config, pass, capacity).find();
  if (remedies.empty()) return "Nothing in the configuration lowers it: choose a smaller size.\n";
  std::string text = "Lower batch, or change another listed key; predicted:\n";
  bool enough = false;
  for (const Remedy& r : remedies) {
    const bool ok = fits(r.need, capacity);
    enough = enough || ok;
    text += fmt::format("  {:>12}  {:<6}{}\n", size_text(r.need),
                        capacity.bytes == 0 ? ""
                        : ok                ? "fits"
                                            : "-",
                        r.change);
  }
  if (capacity.bytes > 0 && !enough) text += "None of it is enough: choose a smaller size.\n";
  return text;
}

std::string need_and_remedies(const Config& config, MemoryPass pass,
                              const MemoryCapacity& capacity) {
  std::string text = need_text(config, pass, capacity) + remedy_table(config, pass, capacity);
  text.pop_back();  // the last line end
  return text;
}

}  // namespace

MemoryCapacity memory_capacity(const Config& config) {
  const Context& context = Context::current();
  const int64_t limit = config.compute.memory_limit << 20;
  const MemoryCapacity limited{limit, "memory_limit"};
  const Device device = context.device();
  if (!device.is_cuda()) return limit > 0 ? limited : MemoryCapacity{};
  const int64_t held = context.allocator(device)->stats().reserved;
  const int64_t there = held + cuda::device_info(device.index).free_bytes;
  return limit > 0 && limit < there ? limited : MemoryCapacity{there, cat(device)};
}

bool step_fits(const Config& config, const MemoryCapacity& capacity) {
  return fits(need_of(config, MemoryPass::step), capacity);
}

std::vector<SharedMemory> shared_host_memory() {
  struct sysinfo info {};
  if (sysinfo(&info) != 0) return {};
  const auto bytes = [&](uint64_t units) { return static_cast<int64_t>(units * info.mem_unit); };
  const int64_t swap = bytes(info.totalswap);
  const std::string machine = machine_id();
  std::vector<SharedMemory> shared{{machine, {bytes(info.totalram) + swap, "this machine"}}};
  for (const CgroupMemory& group : cgroup_memory()) {
    struct stat status {};  // processes in one group find its limit in one file
    if (::stat(group.file.c_str(), &status) != 0) continue;
    shared.push_back({cat(machine, ' ', status.st_dev, ':', status.st_ino),
                      {group.bytes + std::min(group.swap_bytes.value_or(INT64_MAX), swap),
                       cat("this process's group (", group.file.string(), ")")}});
  }
  return shared;
}

MemoryCapacity machine_memory(const RankTeam& team, const std::vector<SharedMemory>& shared) {
  const auto line = [](const SharedMemory& part) { return cat(part.id, ';'); };
  std::string own;
  for (const SharedMemory& part : shared) own += line(part);
  const std::vector<std::string> of_ranks =
      team.on_each([&] { return own; }, "the memory that ranks share");
  MemoryCapacity least;
  for (const SharedMemory& part : shared) {
    const auto ranks = std::ranges::count_if(of_ranks, [&](const std::string& lines) {
      return lines.find(line(part)) != std::string::npos;
    });
    const int64_t bytes = part.memory.bytes / ranks;
    if (least.bytes > 0 && least.bytes <= bytes) continue;
    least = {bytes, ranks == 1 ? part.memory.of
                               : cat("each of the ", ranks, " ranks that share ", part.memory.of)};
  }
  return least;
}

void check_machine_memory(const Config& config, MemoryPass pass, const MemoryCapacity& machine) {
  if (machine.bytes == 0) return;
  if (Context::current().device().is_cuda()) {
    const ModelOptions& options = config.compute;
    if (options.offload == Offload::none && !options.offload_activations) return;
    const int64_t on_host = predict_peak(config, pass, current_target()).on_host;
    if (on_host <= machine.bytes) return;
    throw OutOfMemory(cat("out of memory on the host, before any was asked for: offload needs ",
                          size_text(on_host), "; ", machine.of, " has ", size_text(machine.bytes),
                          "\n", pinned_memory()->advice()));
  }
  if (need_of(config, pass) <= machine.bytes) return;
  throw OutOfMemory(cat("out of memory on cpu, before any was asked for\n",
                        need_and_remedies(config, pass, machine)));
}

std::string machine_memory_report(const Config& config, MemoryPass pass) {
  std::string text = "out of memory on this machine: the model, batch or data is too large for it";
  if (config.model.vocab_size == 0) return text;
  text += "\n";
  return text + need_and_remedies(config, pass, memory_capacity(config));
}

std::string memory_report(const MemoryTrace& trace, const Config& config, MemoryPass pass,
                          const MemoryCapacity& capacity) {
  QUERN_CHECK(trace.failure, "memory report: the trace does not end with a failure");
  const TracedFailure& failure = *trace.failure;
  const std::string& op = trace.names[failure.place.op];
  const std::string& module = trace.names[failure.place.module];
  const std::string& phase = trace.names[failure.place.phase];
  std::string text = fmt::format("out of memory on {}: {} asked for {}", trace.device,
                                 trace.names[failure.name], size_text(failure.bytes));
  if (!op.empty()) text += " in " + op + (failure.place.backward ? " backward" : "");
  if (!module.empty()) text += " of " + module;
  if (!phase.empty()) text += ", phase " + phase;
  text += fmt::format("; {} are in use, {} held from the device\n\n",
                      size_text(trace.stats.allocated), size_text(trace.stats.reserved));
  const std::vector<size_t> live = live_at(trace, trace.end);
  text += category_table(trace, live) + "\n" + largest_table(trace, live) + "\n";
  if (config.model.vocab_size == 0) return text;
  return text + need_and_remedies(config, pass, capacity) + "\n";
}

void MemoryWatch::explain(const OutOfMemory& error, const Config& config, MemoryPass pass,
                          const std::filesystem::path& folder) {
  const std::optional<MemoryTrace> trace = recorder_.take_failure();
  const std::string message = error.what();
  if (!trace || !message.starts_with(cat("out of memory on ", trace->device, ":"))) throw;
  const std::filesystem::path file = folder / "memory.pickle";
  std::string snapshot =
      cat("The snapshot of this moment is ", file.string(), "; pytorch.org/memory_viz draws it");
  try {
    write_memory_snapshot(*trace, file);
  } catch (const Error& failed) {
    snapshot = cat("No snapshot: ", failed.what());
  }
  throw OutOfMemory(memory_report(*trace, config, pass, memory_capacity(config)) + snapshot);
}

}  // namespace quern
