#include "model/transformer_lm.h"

#include <algorithm>

#include "autograd/checkpoint.h"
#include "autograd/ops/binary.h"
#include "autograd/ops/cross_entropy.h"
#include "autograd/ops/fp8.h"
#include "autograd/ops/linear.h"
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
    : TransformerLM(config, options, scheme, architecture_of(config)) {}

TransformerLM::TransformerLM(const ModelConfig& config, const ModelOptions& options,
                             InitScheme scheme, const Architecture& architecture)
    : config_(config),
      options_(options),
      architecture_(architecture),
      embedding_(config.vocab_size, config.d_model, ModelInit{scheme, config.layers}.embedding()) {
  config.validate();
  validate_options(config, options);
  const ModelInit init{scheme, config.layers};
  if (options.offload_activations) stash_ = HostStash::make();
  positions_ = architecture.make_positions(config);
  for (int64_t i = 0; i < config.layers; ++i) {
    blocks_.push_back(
        architecture.make_block(config, options, init, cat(architecture.blocks, ".", i)));
  }
  norm_ = architecture.make_norm(config, options, architecture.norm);
  if (!config.tied) {
    head_.emplace(Shape{config.vocab_size, config.d_model},
                  init.projection(config.d_model, config.vocab_size));
    head_->group.kind = ParameterKind::head;
  }
}

void TransformerLM::declare(ParameterList& list) {
  list.add(architecture_.embedding, embedding_);
  list.add(architecture_.positions, *positions_);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    list.add_block(cat(architecture_.blocks, ".", i), *blocks_[i]);
  }
  list.add(architecture_.norm, *norm_);
  constexpr const char* kHead = "lm_head.weight";
  head_ ? list.add(kHead, *head_) : list.add_alias(kHead, embedding_.weight);
}

Residual TransformerLM::run_blocks(const Residual& in, const SharedInputs& shared, size_t begin,
                                   size_t end) const {
  const Fp8Products products(options_.precision == Precision::fp8);
  Residual stream = in;
  SharedInputs inputs = shared;
  for (size_t i = begin; i < end; ++i) {
    inputs.drop.site = static_cast<uint32_t>(1 + 2 * i);  // the embedding's is 0
    stream = blocks_[i]->forward(stream, inputs);
  }
  return stream;
}

void TransformerLM::start_dropout(uint64_t seed, uint64_t number, uint64_t stride) {
  if (options_.dropout == 0.0) return;
  const Tensor draws = make_draws(seed, number, stride);
  if (!draws_.defined()) draws_ = draws;
  copy(draws_, draws);  // in place: a captured step reads it
}

Variable TransformerLM::hidden(const Tensor& tokens, bool training) const {
  check_tokens("TransformerLM", tokens, config_.context);
  SharedInputs shared = shared_inputs();
  if (training && options_.dropout > 0.0) {
    QUERN_CHECK(draws_.defined(), "TransformerLM: dropout is ", options_.dropout,
                " and has no source of draws; call start_dropout(seed)");
    shared.drop = {options_.dropout, options_.kernels, next_draw(draws_)};
  }
  Residual stream = embed(tokens, 0);
  stream.x = shared.drop(stream.x);
  const bool recompute = options_.recompute == Recompute::blocks;
  const size_t segment = recompute ? static_cast<size_t>(options_.segment) : blocks_.size();
  for (size_t begin = 0; begin < blocks_.size(); begin += segment) {
    const size_t end = std::min(begin + segment, blocks_.size());
    if (!recompute) {
      shared.stash = stash_;
      stream = run_blocks(stream, shared, begin, end);
      continue;
    }
    const CheckpointFn run = [this, shared, begin, end](const std::vector<Variable>& in) {
      const Residual inputs{in[0], in.size() > 1 ? in[1] : Variable()};
      const Residual out = run_blocks(inputs, shared, begin, end);
      return std::vector{out.x, out.branch};
    };
    std::vector<Variable> in{stream.x};
    if (stream.branch.defined()) in.push_back(stream.branch);
    const std::vector<Variable> out = checkpoint(run, in, stash_);
    stream = {out[0], out[1]};
  }
  return norm_->add_and_norm(stream.x, stream.branch).second;
}

Residual TransformerLM::embed(const Tensor& tokens, int64_t begin) const {
  const RangeScope range(RangeKind::module, architecture_.embedding);
  return {positions_->embed(embedding_, tokens, begin, options_.residual_type()), {}};
}

Variable TransformerLM::project(const Variable& h) const {
  const RangeScope range(RangeKind::module, "lm_head");
  return linear(h, head().weight());
}

Variable TransformerLM::logits(const Tensor& tokens) const {
  return project(hidden(tokens, false));
}

LmHeadResult TransformerLM::loss_terms(const Tensor& tokens, const Tensor& targets, double scale,
                                       const Tensor& inverse_count) const {
  QUERN_CHECK(targets.shape() == tokens.shape(), "TransformerLM: targets have shape ",
              targets.shape(), ", expected the tokens' ", tokens.shape());
  const int64_t N = tokens.numel();
  const bool training = Context::current().grad_enabled;
  const double z_loss = training ? options_.z_loss : 0.0;
  const Variable h = reshape(hidden(tokens, training), {N, config_.d_model});
  const Tensor flat_targets = targets.reshape({N});
  if (options_.kernels == KernelKind::fused) {
    const RangeScope range(RangeKind::module, "lm_head");
    const int64_t rows =
        head_chunk_rows(N, config_.vocab_size, config_.d_model, size_of(h.dtype()));
    return lm_head_loss(
        h, head().weight(), flat_targets,
        {.chunk_rows = rows, .scale = scale, .z_loss = z_loss, .inverse_count = inverse_count});
  }
  const Variable logits = project(h);
  const Variable mean = naive_cross_entropy(logits, flat_targets, kIgnoreIndex, inverse_count);
  const Variable loss = scale == 1.0 ? mean : quern::scale(mean, scale);
  if (z_loss == 0.0) return {loss, loss.value(), {}};
  const Variable z =
      quern::scale(naive_z_loss(logits, flat_targets, kIgnoreIndex, inverse_count), scale * z_loss);
  return {add(loss, z), loss.value(), z.value()};
}

KvCache TransformerLM::make_cache(int64_t batch, int64_t capacity) const {
  QUERN_CHECK(capacity <= config_.context, "make_cache: ", capacity,
              " positions, the model's context is ", config_.context);
  KvCache cache;
  cache.capacity = capacity;
  for (const auto& block : blocks_) cache.layers.push_back(block->make_cache(batch, capacity));
  return cache;
}

Tensor TransformerLM::decode(const Tensor& tokens, KvCache& cache) const {
  const NoGrad no_grad;
  check_tokens("decode", tokens, config_.context);
  const int64_t B = tokens.dim(0), T = tokens.dim(1);
  QUERN_CHECK(cache.length + T <= cache.capacity, "decode: the cache holds ", cache.length, " of ",
              cache.capacity, " positions, no room for ", T, " more");
  const SharedInputs shared = shared_inputs();
  Residual stream = embed(tokens, cache.length);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    stream = blocks_[i]->decode(stream, shared, cache.layers[i], cache.length);
  }
  cache.length += T;
  const Variable h = norm_->add_and_norm(stream.x, stream.branch).second;
  const Tensor last = h.value().slice(1, T - 1, T).reshape({B, config_.d_model});
  return project(last).value();
}

std::optional<DecodeWeights> TransformerLM::decode_weights() const {
  DecodeWeights weights;
  weights.rope = positions_->rope();
  if (!weights.rope) return {};
  for (const auto& block : blocks_) {
    const std::optional<BlockWeights> of_block = block->decode_weights();
    if (!of_block) return {};
    weights.blocks.push_back(*of_block);
  }
  weights.embedding = &embedding_.weight;
  weights.norm = &norm_->weight;
  weights.head = &head();
  return weights;
}

double TransformerLM::mixing_flops(int64_t context) const {
  double flops = 0.0;
  for (const auto& block : blocks_) flops += block->mixing_flops(context);
  return flops;
}

}  // namespace quern
