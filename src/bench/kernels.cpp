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

bool asked_for(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::count(names, name) > 0;
}

// Milliseconds of each measured call.
std::vector<double> time_calls(const KernelWork& work, const KernelBenchOptions& options) {
  // A GPU that was idle takes some tens of milliseconds to reach its clocks.
  constexpr std::chrono::milliseconds kLeastWarmup{50};
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < options.warmup || std::chrono::steady_clock::now() - start < kLeastWarmup;
       ++i) {
    work.prepare();
    work.run();
    Context::current().synchronize();
  }
  const std::vector<double> times = time_rounds(0, options.steps, 2, [&](const Mark& mark) {
    work.prepare();
    mark();
    work.run();
    mark();
  });
  return part_of(times, 2, 1);
}

KernelRow bench_variant(const std::string& kernel, const KernelCase& one,
                        const KernelVariant& variant, const KernelBenchOptions& options) {
  KernelRow row;
  row.kernel = kernel;
  row.variant = variant.name;
  row.shape = one.shape;
  row.dtype = one.dtype;
  row.bytes = one.bytes;
  row.account = kernel == kMatmul ? matmul_account(one.shape[0], one.dtype)
                                  : account_of(kernel, variant.name, one.shape, one.dtype);
  row.out_of_memory =
      out_of_memory_in([&] { row.time = summarize(time_calls(variant.make(), options)); });
  return row;
}

// The cases of the requested families.
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

// PyTorch's name of the dtype.
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

TableRow table_row(const KernelRow& row) {
  const bool counts_bytes = row.dtype == DType::u8, shaped = row.shape.size() > 1;  // u8: the copy
  const KernelAccount a = row.account.value_or(KernelAccount{});
  const auto known = [&](const Cell& cell) { return row.account ? cell : Cell(); };
  const auto wide = [](const char* name, const char* key, int decimals, int width) {
    return Column{name, key, decimals, width, Align::right, 1};
  };
  return {
      {{{"kernel", "kernel", 0, 22, Align::left}, row.kernel},
       {{"variant", "variant", 0, 7, Align::left}, row.variant},
       {{"dtype", "dtype", 0, 8, Align::left}, counts_bytes ? Cell() : Cell(torch_name(row.dtype))},
       {{"shape", "", 0, 20, Align::left}, row.shape},
       {{"", "bytes"}, row.bytes},
       {{"", "shape"}, shaped ? Cell(row.shape) : Cell()},
       {{"", "params"}, shaped || counts_bytes ? Cell() : Cell(row.shape.at(0))},
       {{"", "reads"}, known(a.reads)},
       {{"", "writes"}, known(a.writes)},
       {{"", "moved_bytes"}, known(a.bytes)},
       {{"", "flops"}, known(a.flops)},
       {{"", "intensity", 4}, known(a.intensity())}},
      {{{"ms", "ms", 4}, row.time.median},
       {wide("MB", "", 2, 9), millions(row.bytes)},
       {{"TB/s", "tb_s", 4, 7}, row.tb_per_second()},
       {{"% copy", "", 1, 6}, 100.0 * row.share()},
       {{"", "share", 4}, row.share()},
       {wide("M reads", "", 2, 9), known(millions(a.reads))},
       {wide("M writes", "", 2, 9), known(millions(a.writes))},
       {wide("moved MB", "", 2, 9), known(millions(a.bytes))},
       {wide("MFLOP", "", 2, 10), known(millions(a.flops))},
       {wide("FLOP/B", "", 3, 7), known(a.intensity())},
       {wide("TFLOP/s", "tflops", 4, 8), known(row.tflops())},
       {{"% roof", "", 1, 6}, known(100.0 * row.roofline_share())},
       {{"", "roofline", 4}, known(row.roofline_share())}},
      row.out_of_memory};
}

}  // namespace quern
