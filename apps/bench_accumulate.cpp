// quern bench accumulate: the same sum in several number formats.
#include "bench/accumulate.h"

#include <fmt/format.h>

#include "bench_flags.h"
#include "bench_precision.h"
#include "commands.h"
#include "run/make_context.h"
#include "tensor/context.h"

namespace quern {

namespace {

constexpr const char* kUsage = R"(Usage: quern bench accumulate [--FLAG VALUE ...]

Adds 0.01 to a sum a thousand times, one addition after another: in FP32, FP16
and BF16, and in FP32 with 16-bit terms. Shows why sums accumulate in FP32.
)";

const std::vector<ExtraFlag> kFlags = with_format_flags({
    {"count", "additions", "1000", false},
});

int run_bench_accumulate(const Arguments& args) {
  const ParsedArgs parsed = parse_args(args, kFlags);
  check_arguments(parsed, "bench accumulate");
  const int64_t count = count_of(parsed, "count", 1);
  const Table table(accumulate_columns(), format_of(parsed));
  const Config& config = parsed.config;
  const auto context = make_context(config.compute, static_cast<uint64_t>(config.train.seed));
  const ContextScope scope(*context);

  print_now(table.head());
  for (const AccumulateCase& one : accumulate_cases()) {
    print_now(table.row(accumulate_cells(accumulate_terms(one, count), peer_name())));
  }
  print_note(table, accumulate_lesson());
  return 0;
}

}  // namespace

const Command kBenchAccumulateCommand{"bench accumulate",
                                      "one sum in FP32, FP16, BF16 and mixed precision",
                                      kUsage,
                                      run_bench_accumulate,
                                      kFlags,
                                      kContextKeys};

}  // namespace quern
