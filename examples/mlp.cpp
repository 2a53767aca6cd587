// Trains a small MLP to classify two interleaved spirals.
#include <cmath>
#include <cstdio>
#include <exception>
#include <vector>

#include <quern/autograd/ops/cross_entropy.h>
#include <quern/autograd/tape.h>
#include <quern/nn/activations.h>
#include <quern/nn/arena.h>
#include <quern/nn/linear.h>
#include <quern/nn/sequential.h>
#include <quern/optim/adamw.h>
#include <quern/tensor/factory.h>

using namespace quern;

constexpr int kPoints = 400, kSteps = 300;

int main() try {
  std::vector<float> points;
  std::vector<int32_t> truth;  // which of the two spirals
  for (int i = 0; i < kPoints; ++i) {
    const float radius = static_cast<float>(i) / kPoints;
    const float angle = 7.0f * radius + static_cast<float>(i % 2) * 3.14159265f;
    points.insert(points.end(), {radius * std::cos(angle), radius * std::sin(angle)});
    truth.push_back(i % 2);
  }
  const Tensor x = from_vector(points, {kPoints, 2});
  const Tensor targets = from_vector(truth, {kPoints});

  Sequential model;
  model.append<Linear>(2, 64);
  model.append<SiLU>();
  model.append<Linear>(64, 64);
  model.append<SiLU>();
  model.append<Linear>(64, 2);
  ParameterArena arena(model, {});
  AdamW optimizer(arena, {.beta2 = 0.99, .weight_decay = 0.0});

  double accuracy = 0.0;
  for (int step = 0; step <= kSteps; ++step) {
    arena.zero_grad();
    const Variable logits = model(x);  // (kPoints, 2)
    const Variable loss = cross_entropy(logits, targets);
    backward(loss);
    optimizer.step(0.01);
    if (step % 50 != 0) continue;
    const std::vector<float> scores = logits.value().to_vector<float>();
    int right = 0;
    for (size_t i = 0; i < kPoints; ++i) right += (scores[2 * i + 1] > scores[2 * i]) == truth[i];
    accuracy = static_cast<double>(right) / kPoints;
    std::printf("step %3d  loss %.4f  accuracy %.3f\n", step, loss.value().item(), accuracy);
  }
  return accuracy > 0.95 ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "mlp: %s\n", error.what());
  return 1;
}
