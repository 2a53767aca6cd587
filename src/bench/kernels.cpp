#include "bench/kernels.h"

#include <algorithm>
#include <chrono>
#include <map>

#include "bench/kernel_cases.h"
#include "tensor/context.h"
#include "train/config_parse.h"

namespace quern {

namespace {

constexpr const char* kCopy = "copy";
constexpr const char* kMatmul = "matmul";

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
    check_name("variant", variant, {"naive", "online", "fused"});
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
  row.account = kernel == kMatmul ? matmul_account(one.shape[0], one.dtype)
                                  : account_of(kernel, variant.name, one.shape, one.dtype);
  try {
    row.time = summarize(time_calls(variant.make(), options));
  } catch (const OutOfMemory& error) {
    row.out_of_memory = error.what();
  }
  return row;
}

// The chosen families' cases.
std::vector<std::pair<std::string, KernelCase>> chosen_cases(const KernelBenchOptions& options) {
  std::vector<std::pair<std::string, KernelCase>> cases;
  for (const KernelFamily& family : kernel_families()) {
    if (!options.kernels.empty() && !asked_for(options.kernels, family.name)) continue;
    for (KernelCase& one : family.cases(options.rows)) {
      cases.emplace_back(family.name, std::move(one));
    }
  }
  return cases;
}

}  // namespace

double KernelRow::tb_per_second() const {
  return time.median > 0.0 ? static_cast<double>(bytes) / time.median / 1e9 : 0.0;
}

double KernelRow::share() const {
  return copy_tb_per_second > 0.0 ? tb_per_second() / copy_tb_per_second : 0.0;
}

double KernelRow::tflops() const {
  if (!account || time.median <= 0.0) return 0.0;
  return static_cast<double>(account->flops) / time.median / 1e9;
}

double KernelRow::roofline_share() const {
  if (!account || time.median <= 0.0) return 0.0;
  const auto least_ms = [](int64_t amount, double rate) {
    return rate > 0.0 ? static_cast<double>(amount) / rate / 1e9 : 0.0;
  };
  return std::max(least_ms(account->bytes, copy_tb_per_second),
                  least_ms(account->flops, matmul_tflops)) /
         time.median;
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
  std::map<DType, double> matmul_tflops;
  const auto add = [&](KernelRow row) {
    if (row.kernel == kMatmul) matmul_tflops[row.dtype] = row.tflops();
    row.copy_tb_per_second = rows.empty() ? row.tb_per_second() : rows.front().copy_tb_per_second;
    row.matmul_tflops = matmul_tflops[row.dtype];
    rows.push_back(std::move(row));
    if (on_row) on_row(rows.back());
  };
  const KernelCase copied = copy_case(options.rows);
  add(bench_variant(kCopy, copied, copied.variants[0], options));
  const auto cases = chosen_cases(options);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const bool used = std::any_of(cases.begin(), cases.end(),
                                  [&](const auto& named) { return named.second.dtype == dtype; });
    if (!used) continue;
    const KernelCase product = matmul_case(dtype);
    add(bench_variant(kMatmul, product, product.variants[0], options));
  }
  for (const auto& [name, one] : cases) {
    for (const KernelVariant& variant : one.variants) {
      if (!asked_for(options.variants, variant.name)) continue;
      add(bench_variant(name, one, variant, options));
    }
  }
  return rows;
}

}  // namespace quern
