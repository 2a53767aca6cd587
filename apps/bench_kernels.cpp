// quern bench kernels: times the memory-bound kernels.
#include <fmt/format.h>

#include "bench/kernels.h"
#include "bench_flags.h"
#include "commands.h"
#include "run/make_context.h"
#include "tensor/context.h"

namespace quern {

namespace {

constexpr int64_t kCpuRows = 256;

constexpr const char* kUsage = R"(Usage: quern bench kernels [--FLAG VALUE ...]

Times each memory-bound kernel, fused and as its naive twin of small ops, after
the two ceilings: a copy and matrix products. MB: bytes that must move once,
each input read and each output written; TB/s and the share of the copy's
bandwidth follow from them. The account counts the bytes and the FLOPs of a
variant's actual kernels; % roof is the time that the ceilings allow for it over
the measured time. A case that does not fit is a row that says so.
)";

const std::vector<ExtraFlag> kFlags = {
    {"kernel", "kernels to time; all by default", "", false, kernel_names},
    {"variant", "some of naive, online (softmax in two passes) and fused", "naive,online,fused",
     false},
    {"rows", "rows of every tensor; by default 16384 or 32768 on a GPU and 256 on the CPU", "",
     false},
    {"warmup", "calls before those measured, at least; more until 50 ms have passed", "5", false},
    {"steps", "calls measured, of which the median is printed", "20", false},
};

int run_bench_kernels(const Arguments& args) {
  const ParsedArgs parsed = parse_args(args, with_format_flags(kFlags));
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

}  // namespace

const Command kBenchKernelsCommand{"bench kernels",
                                   "memory-bound kernels against the bandwidth of a copy",
                                   kUsage,
                                   run_bench_kernels,
                                   with_format_flags(kFlags),
                                   kContextKeys};

}  // namespace quern
