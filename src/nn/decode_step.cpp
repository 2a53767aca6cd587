#include "nn/decode_step.h"

#include <vector>

#include "base/error.h"
#include "kernels/decode_attention.h"
#include "kernels/embedding.h"
#include "tensor/factory.h"
#include "tensor/visit.h"

namespace quern {

using kernels::DecodeBlock;
using kernels::DecodeLinear;
using kernels::DecodeOutput;
using kernels::DecodeToken;

namespace {

// Calls f(type_identity<T>, stream) for the two types of activations.
template <class F>
void visit_activations(DType dtype, F&& f) {
  on_device(Context::current().device(), [&](auto stream) {
    switch (dtype) {
      case DType::f32: return f(std::type_identity<float>{}, stream);
      case DType::bf16: return f(std::type_identity<bfloat16>{}, stream);
      default: fail(cat("decode: activations are ", dtype, ", expected f32 or bf16"));
    }
  });
}

template <class T>
const T* weight_of(const Parameter& parameter) {
  return parameter.weight().value().data<T>();
}

}  // namespace

std::string DecodeStep::objection(const TransformerLM& model) {
  const ModelConfig& config = model.config();
  if (model.options().kernels != KernelKind::fused) return "kernels = naive have no fused step";
  const int64_t D = config.head_size();
  if (D % 8 != 0 || D > 256) {
    return cat("head_dim is ", D, ", expected a multiple of 8 up to 256");
  }
  std::string found;
  visit_activations(
      activation_type(model.options()), [&]<class T>(std::type_identity<T>, auto stream) {
        const auto check = [&](const char* what, int64_t width, bool norm) {
          if (decode_linear_fits<T>(width, norm, stream)) return;
          found = cat(what, " is ", width, ", which does not fit into a block's shared memory");
        };
        check("d_model", config.d_model, true);
        check("heads times head_dim", config.q_width(), false);
        check("d_ff", config.d_ff, false);
      });
  return found;
}

DecodeStep::DecodeStep(const TransformerLM& model, DecodeBuffers buffers, bool graph)
    : model_(model),
      buffers_(std::move(buffers)),
      batch_(buffers_.tokens.numel()),
      capture_(graph && Context::current().device().is_cuda()) {
  const ModelConfig& config = model.config();
  const DType dtype = activation_type(model.options());
  const int64_t q = config.q_width();
  stream_ = Tensor::empty({batch_, config.d_model}, residual_type(model.options()), "decode");
  qkv_ = Tensor::empty({batch_, q + 2 * config.kv_width()}, dtype, "decode");
  attended_ = Tensor::empty({batch_, q}, dtype, "decode");
  hidden_ = Tensor::empty({batch_, config.d_ff}, dtype, "decode");
  if (capture_ && dtype == DType::bf16) prepare_token<bfloat16>();
}

template <class T>
DecodeToken<T> DecodeStep::token_sizes() const {
  const ModelConfig& config = model_.config();
  DecodeToken<T> token{batch_, config.layers, config.d_model};
  token.H = config.heads;
  token.Hk = config.kv_width() / config.head_size();
  token.D = config.head_size();
  token.F = config.d_ff;
  token.V = config.vocab_size;
  token.capacity = buffers_.cache->capacity;
  token.fp32_stream = stream_.dtype() == DType::f32;
  token.eps = config.norm_eps;
  return token;
}

// What the one kernel needs beside the buffers, unless it does not take the model.
template <class T>
void DecodeStep::prepare_token() {
  on_device(stream_.device(), [&](auto stream) {
    if constexpr (std::is_same_v<decltype(stream), kernels::cuda::Stream>) {
      const DecodeToken<T> token = token_sizes<T>();
      if (!decode_token_fits(token, stream)) return;
      std::vector<DecodeBlock<T>> blocks;
      for (size_t i = 0; i < model_.blocks_.size(); ++i) {
        blocks.push_back(block_of<T>(*model_.blocks_[i], buffers_.cache->layers[i]));
        if (!decode_block_fits(blocks.back(), stream)) return;
      }
      const auto bytes = static_cast<int64_t>(blocks.size() * sizeof(DecodeBlock<T>));
      blocks_ = Tensor::empty({bytes}, DType::u8, "decode");
      copy(blocks_, Tensor::borrow(blocks.data(), {bytes}, DType::u8, kCpu));
      exchange_ = zeros({decode_token_exchange(token, stream)}, DType::u8);
    }
  });
}

template <class T>
DecodeBlock<T> DecodeStep::block_of(const TransformerBlock& block, const KvCache::Layer& cache) {
  const Attention& self = block.attention_;
  const auto norm = [](const RMSNorm& of) { return of.weight.value().template data<float>(); };
  DecodeBlock<T> result;
  result.attention_norm = norm(block.attention_norm_);
  result.qkv = weight_of<T>(self.qkv_.weight);
  if (self.qkv_.bias) result.qkv_bias = weight_of<T>(*self.qkv_.bias);
  if (self.q_norm_) result.q_norm = norm(*self.q_norm_);
  if (self.k_norm_) result.k_norm = norm(*self.k_norm_);
  result.k_cache = cache.k.data<T>();
  result.v_cache = cache.v.data<T>();
  result.output = weight_of<T>(self.output_.weight);
  result.mlp_norm = norm(block.mlp_norm_);
  result.gate_up = weight_of<T>(block.mlp_.gate_up_.weight);
  result.down = weight_of<T>(block.mlp_.down_.weight);
  return result;
}

template <class T>
void DecodeStep::launch_token(kernels::cuda::Stream stream) {
  DecodeToken<T> token = token_sizes<T>();
  token.rows = buffers_.rows;
  token.tokens = buffers_.tokens.data<int32_t>();
  token.embedding = weight_of<T>(model_.embedding_.weight);
  token.blocks = reinterpret_cast<const DecodeBlock<T>*>(blocks_.raw_data());
  token.norm = model_.norm_.weight.value().data<float>();
  token.head = weight_of<T>(model_.head());
  token.cos = model_.rotary_->table().cos.data<float>();
  token.sin = model_.rotary_->table().sin.data<float>();
  token.logits = buffers_.logits.data<T>();
  token.exchange = exchange_.raw_data();
  decode_token(token, stream);
}

template <class T>
DecodeLinear<T> DecodeStep::normed(const RMSNorm& norm, const Parameter& w, const Tensor& y) const {
  DecodeLinear<T> linear{batch_, w.shape()[1], w.shape()[0], weight_of<T>(w)};
  linear.norm = norm.weight.value().data<float>();
  linear.eps = model_.config().norm_eps;
  linear.stream = stream_.raw_data();
  linear.fp32_stream = stream_.dtype() == DType::f32;
  linear.y = y.data<T>();
  return linear;
}

template <class T>
DecodeLinear<T> DecodeStep::added(const Tensor& x, const Parameter& w) const {
  DecodeLinear<T> linear{batch_, w.shape()[1], w.shape()[0], weight_of<T>(w), x.data<T>()};
  linear.stream = stream_.raw_data();
  linear.fp32_stream = stream_.dtype() == DType::f32;
  linear.output = DecodeOutput::add;
  return linear;
}

template <class T, class Stream>
void DecodeStep::launch_block(const TransformerBlock& block, const KvCache::Layer& cache,
                              Stream stream) {
  const Attention& self = block.attention_;
  const SwiGLU& mlp = block.mlp_;
  DecodeLinear<T> qkv = normed<T>(block.attention_norm_, self.qkv_.weight, qkv_);
  if (self.qkv_.bias) qkv.bias = weight_of<T>(*self.qkv_.bias);
  decode_linear(qkv, stream, true);

  kernels::DecodeAttention<T> attention{batch_, self.heads_, self.kv_heads_, self.head_dim_,
                                        buffers_.cache->capacity};
  attention.rows = buffers_.rows;
  attention.qkv = qkv_.data<T>();
  attention.k_cache = cache.k.data<T>();
  attention.v_cache = cache.v.data<T>();
  attention.cos = model_.rotary_->table().cos.data<float>();
  attention.sin = model_.rotary_->table().sin.data<float>();
  if (self.q_norm_) {
    attention.q_norm = self.q_norm_->weight.value().data<float>();
    attention.k_norm = self.k_norm_->weight.value().data<float>();
    attention.eps = model_.config().norm_eps;
  }
  attention.y = attended_.data<T>();
  decode_attention(attention, stream, true);
  decode_linear(added<T>(attended_, self.output_.weight), stream, true);

  DecodeLinear<T> gate_up = normed<T>(block.mlp_norm_, mlp.gate_up_.weight, hidden_);
  gate_up.output = DecodeOutput::swiglu;
  decode_linear(gate_up, stream, true);
  decode_linear(added<T>(hidden_, mlp.down_.weight), stream, true);
}

template <class T, class Stream>
void DecodeStep::launch_model(Stream stream) {
  if constexpr (std::is_same_v<T, bfloat16> && std::is_same_v<Stream, kernels::cuda::Stream>) {
    if (one_kernel()) return launch_token<T>(stream);
  }
  const ModelConfig& config = model_.config();
  const auto embed = [&](auto* y) {
    embedding_forward(y, weight_of<T>(model_.embedding_.weight), buffers_.tokens.data<int32_t>(),
                      batch_, config.vocab_size, config.d_model, stream);
  };
  stream_.dtype() == DType::f32 ? embed(stream_.data<float>()) : embed(stream_.data<T>());
  for (size_t i = 0; i < model_.blocks_.size(); ++i) {
    launch_block<T>(*model_.blocks_[i], buffers_.cache->layers[i], stream);
  }
  decode_linear(normed<T>(model_.norm_, model_.head(), buffers_.logits), stream, true);
}

template <class T, class Stream>
void DecodeStep::launch_all(Stream stream) {
  launch_model<T>(stream);
  sample(buffers_.tokens.data<int32_t>(), buffers_.results, buffers_.rows,
         reinterpret_cast<uint32_t*>(buffers_.seen.data<int32_t>()), buffers_.logits.data<T>(),
         batch_, model_.config().vocab_size, stream);
}

void DecodeStep::launch() {
  visit_activations(qkv_.dtype(),
                    [&]<class T>(std::type_identity<T>, auto stream) { launch_all<T>(stream); });
}

void DecodeStep::run() {
  if (!capture_ || calls_++ == 0) return launch();
  if (!graph_) graph_ = std::make_unique<Graph>([&] { launch(); });
  graph_->launch();
}

}  // namespace quern
