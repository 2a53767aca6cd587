#include "bench/kernels.h"

#include <algorithm>
#include <chrono>

#include "bench/kernel_cases.h"
#include "tensor/context.h"
#include "train/config_parse.h"

namespace quern {

namespace {

constexpr const char* kCopy = "copy";

void check_options(const KernelBenchOptions& options) {
  const auto check_count = [](const char* flag, int64_t value) {
    if (value < 1) throw UsageError(cat("--", flag, " is ", value, ", expected at least 1"));
  };
  const auto check_name = [](const char* flag, const std::string& word,
                             const std::vector<std::string>& known) {
    if (std::find(known.begin(), known.end(), word) != known.end()) return;
    throw UsageError(cat("--", flag, " has '", word, "'", did_you_mean(word, known)));
  };
  check_count("steps", options.steps);
  check_count("warmup", options.warmup);
  if (options.rows < 0) throw UsageError(cat("--rows is ", options.rows, ", expected at least 1"));
  for (const std::string& kernel : options.kernels) check_name("kernel", kernel, kernel_names());
  for (const std::string& variant : options.variants) {
    check_name("variant", variant, {"naive", "fused"});
  }
}

bool asked_for(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Milliseconds of each measured call.
std::vector<double> time_calls(const KernelWork& work, const KernelBenchOptions& options) {
  const auto prepare = [&] {
    if (work.prepare) work.prepare();
  };
  // A GPU that was idle takes some tens of milliseconds to reach its clocks.
  constexpr std::chrono::milliseconds kLeastWarmup{50};
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < options.warmup || std::chrono::steady_clock::now() - start < kLeastWarmup;
       ++i) {
    prepare();
    work.run();
    Context::current().synchronize();
  }
  const auto steps = static_cast<size_t>(options.steps);
  Timeline timeline(2 * steps);
  for (size_t i = 0; i < steps; ++i) {
    prepare();
    timeline.mark();
    work.run();
    timeline.mark();
  }
  std::vector<double> calls;
  const std::vector<double> intervals = timeline.intervals();
  for (size_t i = 0; i < intervals.size(); i += 2) calls.push_back(intervals[i]);
  return calls;
}

KernelRow bench_variant(const std::string& kernel, const KernelCase& one,
                        const KernelVariant& variant, const KernelBenchOptions& options) {
  const Context& context = Context::current();
  context.allocator(context.device())->release_cached();
  KernelRow row;
  row.kernel = kernel;
  row.variant = variant.name;
  row.shape = one.shape;
  row.dtype = one.dtype;
  row.bytes = one.bytes;
  try {
    row.time = summarize(time_calls(variant.make(), options));
  } catch (const OutOfMemory& error) {
    row.out_of_memory = error.what();
  }
  return row;
}

}  // namespace

double KernelRow::tb_per_second() const {
  return time.median > 0.0 ? static_cast<double>(bytes) / time.median / 1e9 : 0.0;
}

double KernelRow::share() const {
  return copy_tb_per_second > 0.0 ? tb_per_second() / copy_tb_per_second : 0.0;
}

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
  for (const KernelFamily& family : kernel_families()) names.emplace_back(family.name);
  return names;
}

std::vector<KernelRow> bench_kernels(const KernelBenchOptions& options,
                                     const std::function<void(const KernelRow&)>& on_row) {
  check_options(options);
  std::vector<KernelRow> rows;
  const auto add = [&](KernelRow row) {
    row.copy_tb_per_second = rows.empty() ? row.tb_per_second() : rows.front().copy_tb_per_second;
    rows.push_back(std::move(row));
    if (on_row) on_row(rows.back());
  };
  const KernelCase copied = copy_case(options.rows);
  add(bench_variant(kCopy, copied, copied.variants[0], options));
  for (const KernelFamily& family : kernel_families()) {
    if (!options.kernels.empty() && !asked_for(options.kernels, family.name)) continue;
    for (const KernelCase& one : family.cases(options.rows)) {
      for (const KernelVariant& variant : one.variants) {
        if (!asked_for(options.variants, variant.name)) continue;
        add(bench_variant(family.name, one, variant, options));
      }
    }
  }
  return rows;
}

}  // namespace quern
