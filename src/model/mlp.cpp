#include "model/mlp.h"

#include "autograd/ops/gelu_linear.h"
#include "autograd/ops/linear.h"
#include "autograd/ops/naive.h"
#include "autograd/ops/pointwise.h"
#include "autograd/ops/swiglu.h"
#include "autograd/ops/swiglu_mlp.h"
#include "tensor/context.h"

namespace quern {

SwiGLU::SwiGLU(const ModelConfig& config, const ModelOptions& options, const ModelInit& init)
    : kernels_(options.kernels),
      output_(options.rebuilds_swiglu() ? ActivationOutput::rebuilt : ActivationOutput::kept),
      gate_up_(
          config.d_model, 2 * config.d_ff, init.projection(config.d_model, config.d_ff),
          {{"gate_proj.weight", 0, config.d_ff}, {"up_proj.weight", config.d_ff, config.d_ff}}),
      down_(config.d_ff, config.d_model, init.residual(config.d_ff, config.d_model)) {}

Variable SwiGLU::run(const Variable& x, const std::shared_ptr<HostStash>& stash) const {
  const RangeScope range(RangeKind::module, "mlp");
  if (kernels_ == KernelKind::naive) {
    return down_("down_proj", naive_swiglu(gate_up_("gate_up_proj", x)));
  }
  if (Context::current().fp8_products) {
    return swiglu_mlp(x, gate_up_.weight.weight(), down_.weight.weight(), output_, stash);
  }
  const GateUpResult made = [&] {
    const RangeScope up(RangeKind::module, "gate_up_proj");
    return gate_up_linear(x, gate_up_.weight.weight());
  }();
  const RangeScope down(RangeKind::module, "down_proj");
  return swiglu_linear(made.gate_up, down_.weight.weight(), made.output, output_, stash);
}

void SwiGLU::declare(ParameterList& list) {
  list.add("gate_up_proj.weight", gate_up_.weight);
  list.add("down_proj.weight", down_.weight);
}

bool SwiGLU::add_to(BlockWeights& weights) const {
  weights.gate_up = &gate_up_.weight;
  weights.down = &down_.weight;
  return true;
}

GeluMlp::GeluMlp(const ModelConfig& config, const ModelOptions& options, const ModelInit& init)
    : kernels_(options.kernels),
      output_(options.rebuilds_swiglu() ? ActivationOutput::rebuilt : ActivationOutput::kept),
      up_(config.d_model, config.d_ff, init.projection(config.d_model, config.d_ff), config.bias),
      down_(config.d_ff, config.d_model, init.residual(config.d_ff, config.d_model), config.bias) {}

Variable GeluMlp::run(const Variable& x, const std::shared_ptr<HostStash>& stash) const {
  const RangeScope range(RangeKind::module, "mlp");
  if (kernels_ == KernelKind::naive || Context::current().fp8_products) {
    return down_("c_proj", gelu_tanh(up_("c_fc", x)));
  }
  const auto bias_of = [](const Linear& layer) {
    return layer.bias ? layer.bias->weight() : Variable();
  };
  const Variable up = [&] {
    const RangeScope range_of_up(RangeKind::module, "c_fc");
    return linear(x, up_.weight.weight());
  }();
  const RangeScope down(RangeKind::module, "c_proj");
  return gelu_linear(up, bias_of(up_), down_.weight.weight(), bias_of(down_), output_, stash);
}

void GeluMlp::declare(ParameterList& list) {
  list.add("c_fc", up_);
  list.add("c_proj", down_);
}

std::unique_ptr<Mlp> make_mlp(const ModelConfig& config, const ModelOptions& options,
                              const ModelInit& init) {
  if (config.mlp == MlpKind::gelu) return std::make_unique<GeluMlp>(config, options, init);
  return std::make_unique<SwiGLU>(config, options, init);
}

}  // namespace quern
