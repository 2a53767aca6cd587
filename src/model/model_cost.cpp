#include "model/model_cost.h"

#include "model/transformer_lm.h"

namespace quern {

namespace {

// Options that support every head_dim, so that only the dimensions are checked.
ModelOptions any_options() {
  ModelOptions options;
  options.attention = AttentionKind::naive;
  return options;
}

}  // namespace

ParameterTable parameter_table(const ModelConfig& config) {
  TransformerLM model(config, any_options());
  return ParameterTable(model);
}

int64_t parameter_count(const ModelConfig& config) {
  return parameter_table(config).parameter_count();
}

double flops_per_token(const ModelConfig& config, int64_t context) {
  TransformerLM model(config, any_options());
  const ParameterTable table(model);
  int64_t multiplied = 0;  // weights of products, and vectors
  for (const ParameterEntry& entry : table.entries()) {
    if (!table.is_lookup(entry)) multiplied += entry.numel();
  }
  return 3.0 * (2.0 * static_cast<double>(multiplied) + model.mixing_flops(context));
}

}  // namespace quern
