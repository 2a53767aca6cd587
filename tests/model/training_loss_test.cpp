// Training-only parts of the loss: dropout, the z-loss, and sums of losses.
#include <gtest/gtest.h>

#include "autograd/ops/binary.h"
#include "autograd/ops/cross_entropy.h"
#include "autograd/tape.h"
#include "run/model_instance.h"
#include "support/files.h"
#include "support/training.h"
#include "tensor/factory.h"

namespace quern {
namespace {

using namespace testing_support;
using Floats = std::vector<float>;

struct Model : ModelInstance {
  explicit Model(const ModelOptions& options, int64_t batch = 4)
      : ModelInstance(tiny_model(), options, InitScheme::normal, true, 1) {
    std::vector<int32_t> ids;
    for (int32_t i = 0; i <= 4 * 48; ++i) ids.push_back(i * i % 293);
    const Shape shape{batch, 48};
    tokens = from_vector(std::vector<int32_t>(ids.begin(), ids.begin() + shape.numel()), shape);
    targets =
        from_vector(std::vector<int32_t>(ids.begin() + 1, ids.begin() + 1 + shape.numel()), shape);
  }

  // Uses the next draw.
  Variable loss() const { return model.loss(tokens, targets); }
  std::pair<double, Floats> loss_and_gradients() {
    arena.zero_grad();
    const Variable training = loss();
    backward(training);
    arena.finish_gradients();
    return {training.value().item(), arena.grads().to_vector<float>()};
  }

  Tensor tokens, targets;
};

ModelOptions dropping(double p = 0.2, double z_loss = 0.01) {
  ModelOptions options;
  options.dropout = p;
  options.z_loss = z_loss;
  return options;
}

double distance(const Floats& a, const Floats& b) {
  double difference = 0.0, norm = 0.0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

double mean_squared_logsumexp(const Tensor& logits) {
  const Floats values = logits.to_vector<float>();
  const int64_t V = logits.dim(-1), rows = logits.numel() / V;
  double sum = 0.0;
  for (int64_t row = 0; row < rows; ++row) {
    double exponentials = 0.0;
    for (int64_t v = 0; v < V; ++v) {
      exponentials += std::exp(static_cast<double>(values[static_cast<size_t>(row * V + v)]));
    }
    sum += std::pow(std::log(exponentials), 2);
  }
  return sum / static_cast<double>(rows);
}

TEST(TrainingLoss, RecomputationFindsTheSameMasks) {
  for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::fp8}) {
    for (const KernelKind kernels : {KernelKind::naive, KernelKind::fused}) {
      ModelOptions options = dropping();
      options.precision = precision;
      options.kernels = kernels;
      options.recompute = Recompute::none;
      Model plain(options);
      const auto first = plain.loss_and_gradients(), second = plain.loss_and_gradients();
      EXPECT_NE(first.first, second.first);
      for (const auto& [recompute, segment] :
           {std::pair{Recompute::swiglu, 1}, std::pair{Recompute::norms, 1},
            std::pair{Recompute::blocks, 1}, std::pair{Recompute::blocks, 2}}) {
        options.recompute = recompute;
        options.segment = segment;
        Model again(options);
        EXPECT_TRUE(again.loss_and_gradients() == first) << static_cast<int>(recompute);
        EXPECT_TRUE(again.loss_and_gradients() == second) << static_cast<int>(recompute);
      }
    }
  }
}

TEST(TrainingLoss, NaiveAndFusedKernelsAgree) {
  ModelOptions options = dropping();
  Model fused(options);
  options.kernels = KernelKind::naive;
  Model naive(options);
  for (int draw = 0; draw < 2; ++draw) {
    const auto expected = naive.loss_and_gradients(), found = fused.loss_and_gradients();
    EXPECT_NEAR(found.first, expected.first, 1e-5);  // FP32 sums in another order, as without
    EXPECT_LT(distance(found.second, expected.second), 2e-5);
  }
}

TEST(TrainingLoss, EvaluationNeitherDropsNorAddsATerm) {
  const Model plain(dropping(0.0, 0.0)), both(dropping());
  EXPECT_GT(std::abs(both.loss().value().item() - plain.loss().value().item()), 0.01);
  const NoGrad no_grad;
  EXPECT_EQ(both.loss().value().item(), plain.loss().value().item());
  EXPECT_EQ(both.model.logits(both.tokens).value().to_vector<float>(),
            plain.model.logits(plain.tokens).value().to_vector<float>());
}

TEST(TrainingLoss, TheZLossIsReportedApart) {
  for (const KernelKind kernels : {KernelKind::naive, KernelKind::fused}) {
    ModelOptions options = dropping(0.0, 0.01);
    options.kernels = kernels;
    const Model with(options);
    options.z_loss = 0.0;
    const Model without(options);
    const auto terms = with.model.loss_terms(with.tokens, with.targets, 0.5);
    const double plain = without.model.loss(without.tokens, without.targets, 0.5).value().item();
    EXPECT_EQ(terms.cross_entropy.item(), plain);
    EXPECT_FALSE(without.model.loss_terms(without.tokens, without.targets).z_loss.defined());
    const NoGrad no_grad;
    const Tensor logits = with.model.logits(with.tokens).value();
    const double z = 0.5 * 0.01 * mean_squared_logsumexp(logits);
    EXPECT_NEAR(terms.z_loss.item(), z, 1e-6 * z);  // a few FP32 roundings of 6e-8
    EXPECT_NEAR(terms.loss.value().item(), plain + z, 1e-6 * plain);
  }
}

// Two parts of a batch with other numbers of targets, one of them without any: their losses and
// gradients add up to those of the whole.
TEST(TrainingLoss, AMeanOverTheTargetsOfSeveralBatches) {
  for (const KernelKind kernels : {KernelKind::naive, KernelKind::fused}) {
    ModelOptions options = dropping(0.0, 0.01);
    options.kernels = kernels;
    for (const int64_t masked : {48, 70, 2 * 48}) {  // of the first of two parts
      Model whole(options), parts(options);
      std::fill_n(whole.targets.data<int32_t>(), masked, kIgnoreIndex);
      const auto expected = whole.loss_and_gradients();
      const Tensor inverse = full({}, 1.0 / static_cast<double>(4 * 48 - masked));
      parts.arena.zero_grad();
      double loss = 0.0, cross_entropy = 0.0, z = 0.0;
      for (const int64_t row : {0, 2}) {
        const auto terms =
            parts.model.loss_terms(whole.tokens.slice(0, row, row + 2),
                                   whole.targets.slice(0, row, row + 2), 1.0, inverse);
        backward(terms.loss);
        loss += terms.loss.value().item();
        cross_entropy += terms.cross_entropy.item();
        z += terms.z_loss.item();
      }
      parts.arena.finish_gradients();
      EXPECT_NEAR(loss, expected.first, 1e-5);  // FP32 sums in another order, as without
      EXPECT_NEAR(loss, cross_entropy + z, 1e-6);
      EXPECT_GT(z, 0.1);
      EXPECT_LT(distance(parts.arena.grads().to_vector<float>(), expected.second), 2e-5);
    }
  }
}

TEST(TrainingLoss, DrawsAreAFunctionOfSeedAndNumber) {
  Model model(dropping());
  const double first = model.loss().value().item(), second = model.loss().value().item();
  EXPECT_NE(first, second);
  model.model.start_dropout(1, 1);
  EXPECT_EQ(model.loss().value().item(), second);
  model.model.start_dropout(1);
  EXPECT_EQ(model.loss().value().item(), first);
  model.model.start_dropout(2);
  EXPECT_NE(model.loss().value().item(), first);
}

// Two micro-batches of two sequences have the masks of one micro-batch of four.
TEST(TrainingLoss, MasksDoNotDependOnTheMicroBatch) {
  Model whole(dropping()), parts(dropping());
  double loss = 0.0;
  parts.arena.zero_grad();
  for (const int64_t begin : {0, 2}) {
    const Variable half = parts.model.loss(parts.tokens.slice(0, begin, begin + 2),
                                           parts.targets.slice(0, begin, begin + 2), 0.5);
    backward(half);
    loss += half.value().item();
  }
  const auto expected = whole.loss_and_gradients();
  EXPECT_NEAR(loss, expected.first, 1e-5);  // the same sums in another order
  EXPECT_LT(distance(parts.arena.grads().to_vector<float>(), expected.second), 2e-5);
}

TEST(TrainingLoss, LossesMayBeSummed) {
  Model one_by_one(dropping()), summed(dropping());
  one_by_one.arena.zero_grad();
  for (int i = 0; i < 2; ++i) backward(one_by_one.loss());
  summed.arena.zero_grad();
  const Variable first = summed.loss();
  backward(add(first, summed.loss()));
  summed.arena.finish_gradients();
  EXPECT_LT(distance(summed.arena.grads().to_vector<float>(),
                     one_by_one.arena.grads().to_vector<float>()),
            2e-5);
}

TEST(TrainingLoss, AForgottenBackwardIsFoundBeforeTheStep) {
  Model model({});
  model.arena.zero_grad();
  backward(model.loss());
  model.loss();
  expect_error([&] { model.arena.finish_gradients(); }, {"lm_head.weight", "backward", "NoGrad"});
  model.arena.zero_grad();
  model.arena.finish_gradients();
}

TEST(TrainingLoss, DropoutNeedsASource) {
  TransformerLM model(tiny_model(), dropping());
  ParameterArena arena(model, {});
  const Tensor ids = zeros({1, 8}, DType::i32);
  expect_error([&] { model.loss(ids, ids); }, {"dropout is 0.2", "start_dropout"});
}

}  // namespace
}  // namespace quern
