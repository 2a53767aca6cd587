#include "bench/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "autograd/tape.h"
#include "base/error.h"
#include "config/config_table.h"
#include "optim/adamw.h"
#include "run/model_instance.h"
#include "run/weights.h"
#include "tensor/factory.h"

namespace quern {

namespace {

// The training of make_golden.py.
constexpr double kLearningRate = 1e-3;
constexpr AdamWOptions kAdamW{0.9, 0.95, 1e-8, 0.1, 1.0, KernelKind::fused};

// ||found - expected|| / ||expected||; absolute where the reference is zero.
double relative_error(const std::vector<float>& found, const std::vector<float>& expected) {
  QUERN_CHECK(found.size() == expected.size(), "verify: ", found.size(), " values, expected ",
              expected.size());
  double difference = 0.0, norm = 0.0;
  for (size_t i = 0; i < found.size(); ++i) {
    const double d = double{found[i]} - double{expected[i]};
    difference += d * d;
    norm += double{expected[i]} * double{expected[i]};
  }
  return norm > 0.0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

// The largest deviation of any value; NaN if any is NaN.
double worst_error(const std::vector<float>& found, const std::vector<float>& expected,
                   bool absolute) {
  double worst = 0.0;
  for (size_t i = 0; i < found.size(); ++i) {
    const double difference = std::abs(double{found[i]} - double{expected[i]});
    const double error = absolute ? difference : difference / std::abs(double{expected[i]});
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

// On the CPU tf32 computes as fp32 does.
Precision rounding_of(Precision precision) {
  const bool gpu = Context::current().device().is_cuda();
  return precision == Precision::tf32 && !gpu ? Precision::fp32 : precision;
}

class CaseRunner {
 public:
  CaseRunner(const GoldenCase& golden, const ModelOptions& options)
      : golden_(golden),
        tolerances_(tolerances_of(rounding_of(options.precision))),
        instance_(golden.config, options, InitScheme::normal, true, 0),
        tokens_(from_vector(golden.tokens, {golden.B, golden.T})),
        targets_(from_vector(golden.targets, {golden.B, golden.T})) {
    load_weights(instance_.arena, golden.weights);
  }

  std::vector<Deviation> run() {
    compare_logits();
    train();
    compare_weights();
    return std::move(deviations_);
  }

 private:
  void compare_logits() {
    const NoGrad no_grad;
    const Tensor logits = instance_.model.logits(tokens_).value();
    add(Quantity::logits, "",
        relative_error(logits.to(DType::f32).to_vector<float>(), reference("logits")),
        tolerances_.logits);
  }

  void train() {
    ParameterArena& arena = instance_.arena;
    AdamWOptions adamw = kAdamW;
    adamw.kernels = instance_.model.options().kernels;
    AdamW optimizer(arena, adamw);
    std::vector<float> losses, norms;
    for (size_t step = 0; step < golden_.losses.size(); ++step) {
      arena.zero_grad();
      const Variable loss = instance_.model.loss(tokens_, targets_);
      backward(loss);
      losses.push_back(static_cast<float>(loss.value().item()));
      if (step == 0) {
        add_loss(Quantity::loss, losses, reference("loss"));
        for (const TensorView& found : gradients_of(arena).views) {
          add(Quantity::gradient, found.name,
              relative_error(floats_of(found), reference("grad." + found.name)),
              tolerances_.gradients);
        }
      }
      optimizer.step(kLearningRate, loss.value());
      norms.push_back(optimizer.state().norm);
    }
    add_loss(Quantity::losses, losses, golden_.losses);
    add(Quantity::grad_norms, "", worst_error(norms, golden_.grad_norms, false),
        tolerances_.grad_norms);
  }

  void compare_weights() {
    for (const TensorView& view : weights_of(instance_.arena).views) {
      std::vector<float> found = floats_of(view);
      const std::vector<float> expected = reference("final." + view.name);
      if (view.shape.ndim() == 1) forgive_chance(found, expected, reference("grad." + view.name));
      add(Quantity::weight, view.name, relative_error(found, expected), tolerances_.weights);
    }
  }

  // Copies the expected value to elements that moved by chance. If a gradient is zero except for
  // rounding, as GPT-2's key biases, Adam's steps reach the learning rate at random. This holds for
  // the reference too.
  void forgive_chance(std::vector<float>& weights, const std::vector<float>& expected,
                      const std::vector<float>& gradient) const {
    constexpr double kRounding = 1e-6;  // relative to the tensor's root mean square
    double squares = 0.0;
    for (const float g : gradient) squares += double{g} * double{g};
    const double rms = std::sqrt(squares / static_cast<double>(gradient.size()));
    const double farthest = 2.0 * kLearningRate * static_cast<double>(golden_.losses.size());
    for (size_t i = 0; i < weights.size(); ++i) {
      const double distance = std::abs(double{weights[i]} - double{expected[i]});
      const bool chance = std::abs(double{gradient[i]}) < kRounding * rms;
      if (chance && distance <= farthest) weights[i] = expected[i];
    }
  }

  void add_loss(Quantity quantity, const std::vector<float>& found,
                const std::vector<float>& expected) {
    add(quantity, "", worst_error(found, expected, tolerances_.absolute_losses),
        quantity == Quantity::loss ? tolerances_.loss : tolerances_.losses);
  }

  void add(Quantity quantity, const std::string& name, double error, double tolerance) {
    deviations_.push_back({quantity, name, error, tolerance});
  }

  std::vector<float> reference(const std::string& name) const { return golden_.reference(name); }

  const GoldenCase& golden_;
  Tolerances tolerances_;
  ModelInstance instance_;
  Tensor tokens_, targets_;
  std::vector<Deviation> deviations_;
};

std::string describe(const ModelOptions& options) {
  Config config;
  static_cast<ModelOptions&>(config.compute) = options;
  return cat(value_text(config, "precision"), ", attention ", value_text(config, "attention"),
             ", kernels ", value_text(config, "kernels"));
}

}  // namespace

Tolerances tolerances_of(Precision precision) {
  switch (precision) {
    case Precision::fp32: return {2e-5, 2e-5, 1e-5, 1e-4, 1e-4, true};
    case Precision::tf32: return {5e-3, 2e-2, 5e-3, 1e-2, 5e-3, false};
    case Precision::bf16: return {3e-2, 1e-1, 2e-2, 1e-1, 1.5e-2, false};
    case Precision::fp8: return {2e-1, 5e-1, 2e-1, 8e-1, 4e-2, false, 5e-3};
  }
  fail("verify: unknown precision");
}

bool VerifyResult::passed() const {
  return std::all_of(deviations.begin(), deviations.end(),
                     [](const Deviation& deviation) { return deviation.within(); });
}

VerifyResult verify_case(const GoldenCase& golden, const ModelOptions& options) {
  VerifyResult result;
  result.subject = cat(golden.name, ": ", Context::current().device(), ", ", describe(options));
  result.deviations = CaseRunner(golden, options).run();
  return result;
}

std::vector<ModelOptions> all_combinations(const ModelOptions& base) {
  std::vector<ModelOptions> combinations;
  ModelOptions options = base;
  for (const Precision precision :
       {Precision::fp32, Precision::tf32, Precision::bf16, Precision::fp8}) {
    for (const AttentionKind attention : {AttentionKind::naive, AttentionKind::flash}) {
      for (const KernelKind kernels : {KernelKind::naive, KernelKind::fused}) {
        options.precision = precision;
        options.attention = attention;
        options.kernels = kernels;
        combinations.push_back(options);
      }
    }
  }
  return combinations;
}

namespace {

constexpr size_t kWorstShown = 3;  // of the gradients and of the final weights

std::string row(const Deviation& deviation) {
  return fmt::format("  {:<62} {:>9.1e} {:>9.1e}{}\n", name_of(deviation.quantity) + deviation.name,
                     deviation.error, deviation.tolerance, deviation.within() ? "" : "  BEYOND");
}

// Worst first, NaN before all.
bool worse(const Deviation& a, const Deviation& b) {
  const bool a_nan = a.error != a.error, b_nan = b.error != b.error;
  return a_nan != b_nan ? a_nan : a.error > b.error;
}

int64_t count_beyond(const std::vector<Deviation>& deviations) {
  return std::count_if(deviations.begin(), deviations.end(),
                       [](const Deviation& deviation) { return !deviation.within(); });
}

std::string group_rows(std::vector<Deviation> group, bool verbose) {
  size_t shown = group.size();
  if (!verbose) {
    std::stable_sort(group.begin(), group.end(), worse);
    shown = std::min(shown, std::max(kWorstShown, static_cast<size_t>(count_beyond(group))));
  }
  std::string rows;
  for (size_t i = 0; i < shown; ++i) rows += row(group[i]);
  if (shown < group.size()) {
    rows += fmt::format("    and {} more, all nearer\n", group.size() - shown);
  }
  return rows;
}

}  // namespace

std::string verify_table(const VerifyResult& result, bool verbose) {
  std::string text =
      fmt::format("{}\n  {:<62} {:>9} {:>9}\n", result.subject, "", "error", "tolerance");
  for (size_t i = 0; i < kNamesOf<Quantity>.size(); ++i) {
    std::vector<Deviation> group;
    std::ranges::copy_if(result.deviations, std::back_inserter(group), [&](const Deviation& d) {
      return d.quantity == static_cast<Quantity>(i);
    });
    text += group_rows(std::move(group), verbose);
  }
  const int64_t beyond = count_beyond(result.deviations);
  const size_t all = result.deviations.size();
  if (beyond > 0) return text + fmt::format("  FAILED: {} of {} beyond tolerance\n", beyond, all);
  return text + fmt::format("  passed: {} within tolerance\n", all);
}

}  // namespace quern
