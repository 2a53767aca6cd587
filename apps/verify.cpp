// quern verify: runs reference cases and compares the results.
#include <fmt/format.h>

#include "base/error.h"
#include "bench/verify.h"
#include "bench_flags.h"
#include "commands.h"
#include "config/config_parse.h"
#include "config/config_print.h"
#include "run/make_context.h"
#include "tensor/context.h"

namespace quern {

namespace {

// The combinations to run: one, or with --all those that match the given flags.
std::vector<ModelOptions> chosen(const ParsedArgs& parsed) {
  const ModelOptions& given = parsed.config.compute;
  if (!parsed.on("all")) return {given};
  std::vector<ModelOptions> chosen = all_combinations(given);
  std::erase_if(chosen, [&](const ModelOptions& options) {
    return (parsed.given.contains("precision") && options.precision != given.precision) ||
           (parsed.given.contains("attention") && options.attention != given.attention) ||
           (parsed.given.contains("kernels") && options.kernels != given.kernels);
  });
  return chosen;
}

VerifyResult run_case(const GoldenCase& golden, ComputeSection compute,
                      const ModelOptions& options) {
  static_cast<ModelOptions&>(compute) = options;
  const auto context = make_context(compute, 0);
  const ContextScope scope(*context);
  return verify_case(golden, options);
}

// Why the combination cannot run the model; empty when it can.
std::string refusal(const ModelConfig& config, ComputeSection compute,
                    const ModelOptions& options) {
  static_cast<ModelOptions&>(compute) = options;
  try {
    validate_options(config, options);
    if (options.precision == Precision::fp8) make_context(compute, 0);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

int run_verify(const Arguments& args) {
  const ParsedArgs parsed =
      parse_command(kVerifyCommand, args, "found no case, expected at least one folder", 1);
  const bool all = parsed.on("all");
  const bool verbose = parsed.on("verbose");
  int runs = 0, failed = 0;
  for (const std::string& folder : parsed.positional) {
    const GoldenCase golden = GoldenCase::open(folder);
    for (const ModelOptions& options : chosen(parsed)) {
      const std::string reason = all ? refusal(golden.config, parsed.config.compute, options) : "";
      if (!reason.empty()) {
        fmt::print("{}: left out: {}\n", golden.name, reason);
        continue;
      }
      const VerifyResult result = run_case(golden, parsed.config.compute, options);
      fmt::print("{}\n", verify_table(result, verbose));
      std::fflush(stdout);
      ++runs;
      failed += !result.passed();
    }
  }
  QUERN_CHECK(runs > 0, "verify: no combination of the flags can run these cases");
  fmt::print("{} of {} runs within the tolerances\n", runs - failed, runs);
  return failed == 0 ? 0 : 1;
}

}  // namespace

const Command kVerifyCommand{
    "verify",
    "compare this build with reference cases",
    R"(Usage: quern verify CASE... [--all] [--verbose] [--KEY VALUE ...]

Compares this build with golden cases. A case is a folder that make_golden.py
wrote: a small Hugging Face model and its results in transformers. Prints the
errors of logits, loss, gradients, ten AdamW steps and final weights. Exits with
1 when an error exceeds its tolerance.
)",
    run_verify,
    {{"all", "all values of precision, attention and kernels not set by a flag", "", true},
     {"verbose", "list every gradient and weight, not only the worst", "", true}},
    {"[compute]"},
    {"test", "check", "selftest", "golden"}};

}  // namespace quern
