#include "bench/profile_targets.h"

#include <algorithm>
#include <memory>

#include "autograd/ops/attention.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/reduce.h"
#include "autograd/tape.h"
#include "bench/kernel_cases.h"
#include "bench/kernels.h"
#include "bench/precision_scope.h"
#include "config/config_parse.h"
#include "nn/activations.h"
#include "nn/arena.h"
#include "nn/linear.h"
#include "nn/sequential.h"
#include "tensor/factory.h"

namespace quern {

namespace {

constexpr int64_t kCpuRows = 256;  // of a kernel's tensors

std::function<void()> attention_part(const Config& config) {
  const ModelSection& m = config.model;
  const DType dtype = operand_type(config.compute.precision);
  const Shape heads{config.train.batch, m.context, m.heads, m.head_size()};
  const Shape kv_heads{config.train.batch, m.context, m.kv_head_count(), m.head_size()};
  const Variable q = Variable::leaf(normal(heads, 0, 1, dtype));
  const Variable k = Variable::leaf(normal(kv_heads, 0, 1, dtype));
  const Variable v = Variable::leaf(normal(kv_heads, 0, 1, dtype));
  const Tensor d_o = normal(heads, 0, 1, dtype);
  const bool flash = config.compute.attention == AttentionKind::flash;
  return [=] {
    Variable o;
    {
      const RangeScope range(RangeKind::phase, "forward");
      o = flash ? flash_attention(q, k, v, {}) : naive_attention(q, k, v, {});
    }
    const RangeScope range(RangeKind::phase, "backward");
    backward(o, d_o);
    for (const Variable& input : {q, k, v}) input.leaf_store()->zero();
  };
}

std::function<void()> matmul_part(const Config& config) {
  const ModelSection& m = config.model;
  const DType dtype = operand_type(config.compute.precision);
  const Tensor a = normal({config.train.batch * m.context, m.d_model}, 0.0, 1.0, dtype);
  const Tensor b = normal({m.d_model, m.d_ff}, 0.0, 1.0, dtype);
  return [=] {
    const RangeScope range(RangeKind::phase, "forward");
    const NoGrad no_grad;
    matmul(a, b);
  };
}

struct Mlp {
  Sequential model;
  std::unique_ptr<ParameterArena> arena;
};

std::function<void()> mlp_part(const Config& config) {
  const ModelSection& m = config.model;
  const Precision precision = config.compute.precision;
  const auto mlp = std::make_shared<Mlp>();
  for (int64_t i = 0; i < m.layers; ++i) {
    mlp->model.append<Linear>(m.d_model, m.d_model);
    mlp->model.append<GELU>();
  }
  mlp->arena = std::make_unique<ParameterArena>(mlp->model, ParameterArena::Options{precision});
  const Tensor x =
      normal({config.train.batch * m.context, m.d_model}, 0.0, 1.0, operand_type(precision));
  return [=] {
    mlp->arena->zero_grad();
    Variable y;
    {
      const RangeScope range(RangeKind::phase, "forward");
      y = mean(mlp->model(x));
    }
    const RangeScope range(RangeKind::phase, "backward");
    backward(y);
  };
}

// The first case in the precision's dtype, or the first; fused or naive as the kernels are.
ProfilePart kernel_part(const KernelFamily& family, const Config& config) {
  const bool on_gpu = Context::current().device().is_cuda();
  const std::vector<KernelCase> cases = family.cases(on_gpu ? 0 : kCpuRows);
  const DType dtype = operand_type(config.compute.precision);
  auto found = std::find_if(cases.begin(), cases.end(),
                            [&](const KernelCase& one) { return one.dtype == dtype; });
  if (found == cases.end()) found = cases.begin();
  const std::string name = config.compute.kernels == KernelKind::fused ? "fused" : "naive";
  const auto variant = std::find_if(found->variants.begin(), found->variants.end(),
                                    [&](const KernelVariant& one) { return one.name == name; });
  QUERN_CHECK(variant != found->variants.end(), "profile: ", family.name, " has no variant ", name);
  const auto work = variant->make();
  ProfilePart part{[run = work.run] {
    const RangeScope range(RangeKind::phase, "run");
    run();
  }};
  if (work.prepare) part.prepare = work.prepare;
  return part;
}

}  // namespace

std::vector<std::string> profile_targets() {
  std::vector<std::string> targets{"train", "attention", "matmul", "mlp"};
  const std::vector<std::string> kernels = kernel_names();
  targets.insert(targets.end(), kernels.begin(), kernels.end());
  return targets;
}

void check_profile_target(const std::string& target) {
  const std::vector<std::string> targets = profile_targets();
  if (std::find(targets.begin(), targets.end(), target) != targets.end()) return;
  std::string all;
  for (const std::string& name : targets) all += (all.empty() ? "" : ", ") + name;
  throw UsageError(
      cat("--target is '", target, "', expected one of ", all, did_you_mean(target, targets)));
}

ProfilePart make_part(const std::string& target, const Config& config) {
  if (target == "attention") return {attention_part(config)};
  if (target == "matmul") return {matmul_part(config)};
  if (target == "mlp") return {mlp_part(config)};
  for (const KernelFamily& family : kernel_families()) {
    if (target == family.name) return kernel_part(family, config);
  }
  throw UsageError(cat("profile: '", target, "' is no part of `quern bench`"));
}

}  // namespace quern
