#include "bench/kernels.h"

#include <algorithm>
#include <chrono>
#include <map>

#include "base/error.h"
#include "bench/kernel_cases.h"
#include "config/config_parse.h"
#include "tensor/context.h"

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

namespace {

// As PyTorch names it.
const char* torch_name(DType dtype) {
  switch (dtype) {
    case DType::f32: return "float32";
    case DType::bf16: return "bfloat16";
    case DType::u8: return "uint8";
    default: fail(cat("bench kernels: dtype is ", dtype, ", expected f32, bf16 or u8"));
  }
}

double millions(int64_t count) {
  return static_cast<double>(count) / 1e6;
}

}  // namespace

Table kernel_table(TableFormat format) {
  return Table({{"", "peer"},
                {"kernel", "kernel", 0, 22, Align::left},
                {"variant", "variant", 0, 7, Align::left},
                {"dtype", "dtype", 0, 8, Align::left},
                {"shape", "", 0, 20, Align::left},
                {"", "bytes"},
                {"", "shape"},
                {"", "params"},
                {"", "reads"},
                {"", "writes"},
                {"", "moved_bytes"},
                {"", "flops"},
                {"", "intensity", 4},
                {"ms", "ms", 4},
                {"MB", "", 2, 9},
                {"TB/s", "tb_s", 4, 7},
                {"% copy", "", 1, 6},
                {"", "share", 4},
                {"M reads", "", 2, 9},
                {"M writes", "", 2, 9},
                {"moved MB", "", 2, 9},
                {"MFLOP", "", 2},
                {"FLOP/B", "", 3, 7},
                {"TFLOP/s", "tflops", 4, 8},
                {"% roof", "", 1, 6},
                {"", "roofline", 4}},
               format);
}

std::string kernel_line(const Table& table, const KernelRow& row, const std::string& peer) {
  const bool counts_bytes = row.dtype == DType::u8;  // the copy
  std::vector<Cell> cells{peer,
                          row.kernel,
                          row.variant,
                          counts_bytes ? Cell() : Cell(std::string(torch_name(row.dtype))),
                          row.shape,
                          row.bytes,
                          row.shape.size() > 1 ? Cell(row.shape) : Cell(),
                          row.shape.size() > 1 || counts_bytes ? Cell() : Cell(row.shape.at(0))};
  const std::optional<KernelAccount>& account = row.account;
  if (account) {
    cells.insert(cells.end(), {account->reads, account->writes, account->bytes, account->flops,
                               account->intensity()});
  } else {
    cells.resize(cells.size() + 5);
  }
  if (!row.out_of_memory.empty()) return table.row(std::move(cells), &kOutOfMemory);
  cells.insert(cells.end(), {row.time.median, millions(row.bytes), row.tb_per_second(),
                             100.0 * row.share(), row.share()});
  if (account) {
    cells.insert(cells.end(),
                 {millions(account->reads), millions(account->writes), millions(account->bytes),
                  millions(account->flops), account->intensity(), row.tflops(),
                  100.0 * row.roofline_share(), row.roofline_share()});
  }
  return table.row(std::move(cells));
}

}  // namespace quern
