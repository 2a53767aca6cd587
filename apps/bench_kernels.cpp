// quern bench kernels: times the memory-bound kernels.
#include <fmt/format.h>

#include "base/build_info.h"
#include "bench/kernels.h"
#include "bench_commands.h"
#include "bench_flags.h"
#include "tensor/context.h"
#include "train/setup.h"

namespace quern {

namespace {

constexpr int64_t kCpuRows = 256;

constexpr const char* kUsage =
    "Usage: quern bench kernels [--FLAG VALUE ...]\n\n"
    "Times each memory-bound kernel, fused and as its naive twin of small ops, and a copy. The\n"
    "bytes are those that must move once: each input read, each output written. TB/s and the "
    "share\n"
    "of the copy's bandwidth follow from them. What does not fit is a row that says so.\n";

const std::vector<ExtraFlag> kFlags = {
    {"kernel", "some of the kernels below; all by default", "", false},
    {"variant", "some of naive and fused", "naive,fused", false},
    {"rows", "rows of every tensor; by default 16384 or 32768 on a GPU and 256 on the CPU", "",
     false},
    {"warmup", "calls before those measured, at least; more until 50 ms have passed", "5", false},
    {"steps", "calls measured, of which the median is printed", "20", false},
    {"json", "print a line of JSON a row instead of the table", "", true},
};

void print_help() {
  fmt::print("{}\n{}\nKernels:", kUsage, help_without_model(kFlags));
  for (const std::string& name : kernel_names()) fmt::print(" {}", name);
  fmt::print("\n");
}

}  // namespace

int run_bench_kernels(const Arguments& args) {
  const ParsedArgs parsed = parse_args(args, kFlags);
  if (parsed.help) {
    print_help();
    return 0;
  }
  check_arguments(parsed, "bench kernels");
  KernelBenchOptions options;
  options.kernels = words_of(parsed, "kernel", kernel_names());
  options.variants = words_of(parsed, "variant", {"naive", "fused"});
  options.warmup = count_of(parsed, "warmup", 1);
  options.steps = count_of(parsed, "steps", 1);
  if (!parsed.extra.at("rows").empty()) options.rows = count_of(parsed, "rows", 1);
  const bool json = parsed.extra.at("json") == "true";
  const Config& config = parsed.config;
  const auto context = make_context(config.compute, static_cast<uint64_t>(config.train.seed));
  const ContextScope scope(*context);
  if (options.rows == 0 && !context->device().is_cuda()) options.rows = kCpuRows;

  const std::string peer = cat("quern-", build_info().version);
  bool first = true;
  bench_kernels(options, [&](const KernelRow& row) {
    if (first && !json) fmt::print("{}", kernel_table_head());
    first = false;
    fmt::print("{}", json ? kernel_json(row, peer) + "\n" : kernel_table_line(row));
    std::fflush(stdout);
  });
  return 0;
}

}  // namespace quern
