// quern bench kernels: times the memory-bound kernels.
#include <fmt/format.h>

#include "bench/kernels.h"
#include "bench_commands.h"
#include "bench_flags.h"
#include "run/make_context.h"
#include "tensor/context.h"

namespace quern {

namespace {

constexpr int64_t kCpuRows = 256;

constexpr const char* kUsage =
    "Usage: quern bench kernels [--FLAG VALUE ...]\n\n"
    "Times each memory-bound kernel, fused and as its naive twin of small ops, after the two\n"
    "ceilings: a copy and matrix products. MB are the bytes that must move once: each input read,\n"
    "each output written; TB/s and the share of the copy's bandwidth follow from them. The "
    "account\n"
    "is of what a variant's kernels in fact read, write and compute; % roof is the time that the\n"
    "ceilings allow for it over the time measured. What does not fit is a row that says so.\n";

const std::vector<ExtraFlag> kFlags = {
    {"kernel", "some of the kernels below; all by default", "", false},
    {"variant", "some of naive, online (softmax in two passes) and fused", "naive,online,fused",
     false},
    {"rows", "rows of every tensor; by default 16384 or 32768 on a GPU and 256 on the CPU", "",
     false},
    {"warmup", "calls before those measured, at least; more until 50 ms have passed", "5", false},
    {"steps", "calls measured, of which the median is printed", "20", false},
};

void print_help() {
  fmt::print("{}\n{}\nKernels:", kUsage, help_without_model(with_format_flags(kFlags)));
  for (const std::string& name : kernel_names()) fmt::print(" {}", name);
  fmt::print("\n");
}

}  // namespace

int run_bench_kernels(const Arguments& args) {
  const ParsedArgs parsed = parse_args(args, with_format_flags(kFlags));
  if (parsed.help) {
    print_help();
    return 0;
  }
  check_arguments(parsed, "bench kernels");
  KernelBenchOptions options;
  options.kernels = words_of(parsed, "kernel", kernel_names());
  options.variants = words_of(parsed, "variant", {"naive", "online", "fused"});
  options.warmup = iterations_of(parsed, "warmup", 1);
  options.steps = iterations_of(parsed, "steps", 1);
  if (!parsed.extra.at("rows").empty()) options.rows = count_of(parsed, "rows", 1);
  const Table table = kernel_table(format_of(parsed));
  const Config& config = parsed.config;
  const auto context = make_context(config.compute, static_cast<uint64_t>(config.train.seed));
  const ContextScope scope(*context);
  if (options.rows == 0 && !context->device().is_cuda()) options.rows = kCpuRows;

  const std::string peer = peer_name();
  bool first = true;
  bench_kernels(options, [&](const KernelRow& row) {
    print_now((first ? table.head() : "") + kernel_line(table, row, peer));
    first = false;
  });
  return 0;
}

}  // namespace quern
