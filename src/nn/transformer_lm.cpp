#include "nn/transformer_lm.h"

#include <algorithm>

#include "autograd/checkpoint.h"
#include "autograd/ops/cross_entropy.h"
#include "autograd/ops/linear.h"
#include "autograd/ops/lm_head.h"
#include "autograd/ops/pointwise.h"
#include "autograd/ops/view.h"
#include "base/error.h"

namespace quern {

namespace {

void check_tokens(const char* what, const Tensor& tokens, int64_t context) {
  QUERN_CHECK(tokens.ndim() == 2 && tokens.dtype() == DType::i32, what, ": tokens are ",
              tokens.dtype(), " ", tokens.shape(), ", expected i32 (B, T)");
  QUERN_CHECK(tokens.dim(1) <= context, what, ": tokens have ", tokens.dim(1),
              " positions, the model's context is ", context);
}

}  // namespace

TransformerLM::TransformerLM(const ModelConfig& config, const ModelOptions& options,
                             InitScheme scheme)
    : config_(config),
      options_(options),
      embedding_(config.vocab_size, config.d_model, ModelInit{scheme, config.layers}.embedding()),
      norm_(config.d_model, config.norm_eps, options, "model.norm") {
  config.validate();
  validate_options(config, options);
  rotary_ = std::make_unique<RotaryEmbedding>(config.context, config.head_size(), config.rope_theta,
                                              config.rope_scaling);
  const ModelInit init{scheme, config.layers};
  for (int64_t i = 0; i < config.layers; ++i) {
    blocks_.push_back(
        std::make_unique<TransformerBlock>(config, options, init, cat("model.layers.", i)));
  }
  if (!config.tied) {
    head_.emplace(Shape{config.vocab_size, config.d_model},
                  init.projection(config.d_model, config.vocab_size));
  }
}

void TransformerLM::declare(ParameterList& list) {
  list.add("model.embed_tokens", embedding_);
  for (size_t i = 0; i < blocks_.size(); ++i) list.add_block(cat("model.layers.", i), *blocks_[i]);
  list.add("model.norm", norm_);
  if (head_) list.add("lm_head.weight", *head_);
}

const Parameter& TransformerLM::head() const {
  return head_ ? *head_ : embedding_.weight;
}

Residual TransformerLM::run_blocks(const Residual& in, size_t begin, size_t end) const {
  Residual stream = in;
  for (size_t i = begin; i < end; ++i) stream = (*blocks_[i])(stream, *rotary_);
  return stream;
}

Variable TransformerLM::hidden(const Tensor& tokens) const {
  check_tokens("TransformerLM", tokens, config_.context);
  Residual stream{embed(tokens), {}};
  const bool recompute = options_.recompute == Recompute::blocks;
  const size_t segment = recompute ? static_cast<size_t>(options_.segment) : blocks_.size();
  for (size_t begin = 0; begin < blocks_.size(); begin += segment) {
    const size_t end = std::min(begin + segment, blocks_.size());
    if (!recompute) {
      stream = run_blocks(stream, begin, end);
      continue;
    }
    const CheckpointFn run = [this, begin, end](const std::vector<Variable>& in) {
      const Residual out = run_blocks({in[0], in.size() > 1 ? in[1] : Variable()}, begin, end);
      return std::vector{out.x, out.branch};
    };
    std::vector<Variable> in{stream.x};
    if (stream.branch.defined()) in.push_back(stream.branch);
    const std::vector<Variable> out = checkpoint(run, in);
    stream = {out[0], out[1]};
  }
  return norm_.add_and_norm(stream.x, stream.branch).second;
}

Variable TransformerLM::embed(const Tensor& tokens) const {
  const RangeScope range(RangeKind::module, "model.embed_tokens");
  return embedding_(tokens, residual_type(options_));
}

Variable TransformerLM::project(const Variable& h) const {
  const RangeScope range(RangeKind::module, "lm_head");
  return linear(h, head().weight());
}

Variable TransformerLM::logits(const Tensor& tokens) const {
  return project(hidden(tokens));
}

Variable TransformerLM::loss(const Tensor& tokens, const Tensor& targets, double scale) const {
  QUERN_CHECK(targets.shape() == tokens.shape(), "TransformerLM: targets have shape ",
              targets.shape(), ", expected the tokens' ", tokens.shape());
  const int64_t N = tokens.numel();
  const Variable h = reshape(hidden(tokens), {N, config_.d_model});
  const Tensor flat_targets = targets.reshape({N});
  if (options_.kernels == KernelKind::fused) {
    const RangeScope range(RangeKind::module, "lm_head");
    const int64_t rows =
        head_chunk_rows(N, config_.vocab_size, config_.d_model, size_of(h.dtype()));
    return lm_head_cross_entropy(h, head().weight(), flat_targets, kIgnoreIndex, rows, scale);
  }
  const Variable mean = naive_cross_entropy(project(h), flat_targets, kIgnoreIndex);
  return scale == 1.0 ? mean : quern::scale(mean, scale);
}

KvCache TransformerLM::make_cache(int64_t batch, int64_t capacity) const {
  QUERN_CHECK(capacity <= config_.context, "make_cache: ", capacity,
              " positions, the model's context is ", config_.context);
  const Shape shape{batch, capacity, config_.kv_head_count(), config_.head_size()};
  KvCache cache;
  cache.capacity = capacity;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    cache.layers.push_back({Tensor::empty(shape, activation_type(options_), "key cache"),
                            Tensor::empty(shape, activation_type(options_), "value cache")});
  }
  return cache;
}

Tensor TransformerLM::decode(const Tensor& tokens, KvCache& cache) const {
  const NoGrad no_grad;
  check_tokens("decode", tokens, config_.context);
  const int64_t B = tokens.dim(0), T = tokens.dim(1);
  QUERN_CHECK(cache.length + T <= cache.capacity, "decode: the cache holds ", cache.length, " of ",
              cache.capacity, " positions, no room for ", T, " more");
  Residual stream{embed(tokens), {}};
  for (size_t i = 0; i < blocks_.size(); ++i) {
    stream = blocks_[i]->decode(stream, *rotary_, cache.layers[i], cache.length);
  }
  cache.length += T;
  const Variable h = norm_.add_and_norm(stream.x, stream.branch).second;
  const Tensor last = h.value().slice(1, T - 1, T).reshape({B, config_.d_model});
  return project(last).value();
}

}  // namespace quern
