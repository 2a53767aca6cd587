// quern tune: finds the fastest cuBLASLt algorithm for each matrix product.
#include <fmt/format.h>

#include "base/error.h"
#include "bench/phase_runner.h"
#include "bench_flags.h"
#include "commands.h"
#include "config/config_parse.h"
#include "config/config_print.h"
#include "run/load_model.h"
#include "run/make_context.h"
#include "tensor/context.h"
#include "train/tune.h"

namespace quern {

namespace {

std::string microseconds(double us) {
  return us > 0.0 ? fmt::format("{:.1f}", us) : "-";
}

void print_measured(const std::vector<MeasuredProduct>& products) {
  if (products.empty()) return;
  fmt::print("{:<44} {:>10} {:>10} {:>10} {:>7}  {}\n", "product, us each (m x n x k)", "library's",
             "before", "chosen", "gain", "timed");
  for (const MeasuredProduct& p : products) {
    const double old_us = p.before_us > 0.0 ? p.before_us : p.favourite_us;
    fmt::print("{:<44} {:>10} {:>10} {:>10} {:>5.1f} %  {}, {} algorithms\n", p.name,
               microseconds(p.favourite_us), microseconds(p.before_us), microseconds(p.chosen_us),
               old_us > 0.0 ? 100.0 * (1.0 - p.chosen_us / old_us) : 0.0,
               p.sustained ? "under load" : "alone", p.candidates);
  }
}

int run_tune(const Arguments& args) {
  const ParsedArgs parsed = parse_args(args, kTuneCommand.flags, {}, apply_model_from);
  check_keys(parsed.flags, kTuneCommand);
  const std::string path = parsed.extra.at("table");
  if (path.empty()) throw UsageError("tune: no --table FILE to write");
  check_positional(parsed, "tune");
  const bool on_gpu = choose_device(parsed.config.compute.device).is_cuda();
  if (on_gpu) check_vocabulary(parsed.config);  // tune_gemms refuses a CPU
  validate(parsed.config);
  const auto context = make_context(parsed.config.compute, 1);
  const ContextScope scope(*context);
  const TuneResult result = tune_gemms(parsed.config, path);
  print_measured(result.measured);
  fmt::print("{}: {} matrix products, {} of them measured now, in {:.1f} s\n", path,
             result.products, result.measured.size(), result.seconds);
  return 0;
}

}  // namespace

const Command kTuneCommand{"tune",
                           "find the fastest matrix products of this GPU",
                           R"(Usage: quern tune --table FILE [--KEY VALUE ...]

Times every cuBLASLt algorithm for each matrix product of a training step (size,
batch, ctx, vocab, precision, attention and kernels as given) and writes the
fastest to FILE. Entries that FILE already has are kept. For products of 100 us
or more the best few are compared under sustained load, which takes three to
five seconds each, and up to a minute for whole models. `gemm_table = FILE` then
trains with the table. Another algorithm adds in another order, so a run in
progress keeps the table that it started with.
)",
                           run_tune,
                           {{"table", "the file to write, or to add to", ""}},
                           {"[model]", "[compute]", "batch"},
                           {"autotune", "gemm"}};

}  // namespace quern
