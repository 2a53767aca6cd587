// `quern verify`: compares this build, on this machine, with the results of transformers.
#pragma once

#include <string>
#include <vector>

#include "base/enum_names.h"
#include "bench/golden_case.h"
#include "config/config.h"

namespace quern {

// Maximum errors against the reference (docs/numerics.md). All are relative (the norm of the
// difference over the norm of the reference), except FP32's losses, which are absolute.
struct Tolerances {
  double logits, gradients, losses, grad_norms, weights;
  bool absolute_losses;
  double loss = losses;  // before the first step
};
Tolerances tolerances_of(Precision precision);

enum class Quantity { logits, loss, gradient, losses, grad_norms, weight };
template <>
inline constexpr std::array kNamesOf<Quantity>{
    "logits", "loss", "gradient of ", "losses while training", "gradient norms", "final "};

struct Deviation {
  Quantity quantity;
  std::string name;  // of the parameter, for gradients and final weights
  double error = 0.0;
  double tolerance = 0.0;

  bool within() const { return error <= tolerance; }  // a NaN is not
};

struct VerifyResult {
  std::string subject;  // "golden/mha: cuda:0, fp32, attention flash, kernels fused"
  std::vector<Deviation> deviations;

  bool passed() const;
};

// Runs the case on the current Context: logits, loss, every gradient, then one AdamW step for each
// of its losses, with make_golden.py's settings. Compares each gradient and each final weight by
// itself. Throws when the options do not fit the model (flash and its head_dim).
VerifyResult verify_case(const GoldenCase& golden, const ModelOptions& options);

// Every combination of precision, attention and kernels; other options as in `base`.
std::vector<ModelOptions> all_combinations(const ModelOptions& base);

// The worst deviations of each quantity and all beyond their tolerance; with `verbose` all.
std::string verify_table(const VerifyResult& result, bool verbose);

}  // namespace quern
