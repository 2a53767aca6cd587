#include "generate/decode_step.h"

#include <vector>

#include "base/counted.h"
#include "base/error.h"
#include "base/slow_path.h"
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
const T* weight_of(const Parameter* parameter) {
  return parameter ? parameter->weight().value().data<T>() : nullptr;
}

const float* norm_of(const Parameter* parameter) {
  return parameter ? parameter->value().data<float>() : nullptr;
}

[[maybe_unused]] DecodeBlock block_of(const BlockWeights& block, const KvCache::Layer& cache) {
  DecodeBlock result;
  result.attention_norm = norm_of(block.attention_norm);
  result.qkv = weight_of<bfloat16>(block.qkv);
  result.qkv_bias = weight_of<bfloat16>(block.qkv_bias);
  result.q_norm = norm_of(block.q_norm);
  result.k_norm = norm_of(block.k_norm);
  result.k_cache = cache.k.data<bfloat16>();
  result.v_cache = cache.v.data<bfloat16>();
  result.output = weight_of<bfloat16>(block.output);
  result.mlp_norm = norm_of(block.mlp_norm);
  result.gate_up = weight_of<bfloat16>(block.gate_up);
  result.down = weight_of<bfloat16>(block.down);
  return result;
}

}  // namespace

void draw_tokens(const DecodeBuffers& b) {
  visit_activations(b.logits.dtype(), [&]<class T>(std::type_identity<T>, auto stream) {
    sample(b.tokens.data<int32_t>(), b.results, b.rows,
           reinterpret_cast<uint32_t*>(b.seen.data<int32_t>()), b.logits.data<T>(), b.logits.dim(0),
           b.logits.dim(1), stream);
  });
}

std::string DecodeStep::objection(const TransformerLM& model) {
  const ModelConfig& config = model.config();
  if (model.options().kernels != KernelKind::fused) return "kernels = naive have no fused step";
  if (!model.decode_weights()) return "the model's kind of block has no fused step";
  const int64_t D = config.head_size();
  if (D % 8 != 0 || D > 256) {
    return cat("head_dim is ", D, ", expected a multiple of 8 up to 256");
  }
  std::string found;
  visit_activations(
      model.options().activation_type(), [&]<class T>(std::type_identity<T>, auto stream) {
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
    : config_(model.config()),
      weights_(model.decode_weights().value()),
      buffers_(std::move(buffers)),
      batch_(buffers_.tokens.numel()),
      capture_(graph && Context::current().device().is_cuda()) {
  const DType dtype = model.options().activation_type();
  const int64_t q = config_.q_width();
  stream_ = Tensor::empty({batch_, config_.d_model}, model.options().residual_type(), "decode");
  qkv_ = Tensor::empty({batch_, q + 2 * config_.kv_width()}, dtype, "decode");
  attended_ = Tensor::empty({batch_, q}, dtype, "decode");
  hidden_ = Tensor::empty({batch_, config_.d_ff}, dtype, "decode");
  if (capture_ && dtype == DType::bf16) prepare_token();
}

DecodeToken DecodeStep::token_sizes() const {
  DecodeToken token{batch_, config_.layers, config_.d_model};
  token.H = config_.heads;
  token.Hk = config_.kv_head_count();
  token.D = config_.head_size();
  token.F = config_.d_ff;
  token.V = config_.vocab_size;
  token.capacity = buffers_.cache->capacity;
  token.fp32_stream = stream_.dtype() == DType::f32;
  token.eps = config_.norm_eps;
  return token;
}

// Allocates what the one kernel needs beside the buffers, if it supports the model.
void DecodeStep::prepare_token() {
  on_device(stream_.device(), [&](auto stream) {
    if constexpr (std::is_same_v<decltype(stream), kernels::cuda::Stream>) {
      const DecodeToken token = token_sizes();
      const auto note = [&](const char* reason) {
        if (traits_of(stream).hopper_code) {
          note_slow_path(cat("decoding ", counted(batch_, "row"), " by one kernel a token"),
                         reason);
        }
      };
      if (!decode_token_fits(token, stream)) {
        return note("it has no form for these widths, so many rows, or this part of a GPU");
      }
      std::vector<DecodeBlock> blocks;
      for (size_t i = 0; i < weights_.blocks.size(); ++i) {
        blocks.push_back(block_of(weights_.blocks[i], buffers_.cache->layers[i]));
        if (!decode_block_fits(blocks.back(), stream)) {
          return note("weights or cache are not aligned to 16 bytes");
        }
      }
      blocks_ = upload_table(blocks, "decode");
      exchange_ = zeros({decode_token_exchange(token, stream)}, DType::u8);
    }
  });
}

template <class Stream>
void DecodeStep::launch_token(Stream stream) {
  DecodeToken token = token_sizes();
  token.rows = buffers_.rows;
  token.tokens = buffers_.tokens.data<int32_t>();
  token.embedding = weight_of<bfloat16>(weights_.embedding);
  token.blocks = reinterpret_cast<const DecodeBlock*>(blocks_.raw_data());
  token.norm = norm_of(weights_.norm);
  token.head = weight_of<bfloat16>(weights_.head);
  token.cos = weights_.rope->cos.data<float>();
  token.sin = weights_.rope->sin.data<float>();
  token.logits = buffers_.logits.data<bfloat16>();
  token.exchange = exchange_.raw_data();
  decode_token(token, stream);
}

template <class T>
DecodeLinear<T> DecodeStep::normed(const Parameter& norm, const Parameter& w,
                                   const Tensor& y) const {
  DecodeLinear<T> linear{batch_, w.shape()[1], w.shape()[0], weight_of<T>(&w)};
  linear.norm = norm_of(&norm);
  linear.eps = config_.norm_eps;
  linear.stream = stream_.raw_data();
  linear.fp32_stream = stream_.dtype() == DType::f32;
  linear.y = y.data<T>();
  return linear;
}

template <class T>
DecodeLinear<T> DecodeStep::added(const Tensor& x, const Parameter& w) const {
  DecodeLinear<T> linear{batch_, w.shape()[1], w.shape()[0], weight_of<T>(&w), x.data<T>()};
  linear.stream = stream_.raw_data();
  linear.fp32_stream = stream_.dtype() == DType::f32;
  linear.output = DecodeOutput::add;
  return linear;
}

template <class T, class Stream>
void DecodeStep::launch_block(const BlockWeights& block, const KvCache::Layer& cache,
                              Stream stream) {
  DecodeLinear<T> qkv = normed<T>(*block.attention_norm, *block.qkv, qkv_);
  qkv.bias = weight_of<T>(block.qkv_bias);
  decode_linear(qkv, stream, true);

  kernels::DecodeAttention<T> attention{batch_, config_.heads, config_.kv_head_count(),
                                        config_.head_size(), buffers_.cache->capacity};
  attention.rows = buffers_.rows;
  attention.qkv = qkv_.data<T>();
  attention.k_cache = cache.k.data<T>();
  attention.v_cache = cache.v.data<T>();
  attention.cos = weights_.rope->cos.data<float>();
  attention.sin = weights_.rope->sin.data<float>();
  attention.q_norm = norm_of(block.q_norm);
  attention.k_norm = norm_of(block.k_norm);
  attention.eps = config_.norm_eps;
  attention.y = attended_.data<T>();
  decode_attention(attention, stream, true);
  decode_linear(added<T>(attended_, *block.output), stream, true);

  DecodeLinear<T> gate_up = normed<T>(*block.mlp_norm, *block.gate_up, hidden_);
  gate_up.output = DecodeOutput::swiglu;
  decode_linear(gate_up, stream, true);
  decode_linear(added<T>(hidden_, *block.down), stream, true);
}

template <class T, class Stream>
void DecodeStep::launch_model(Stream stream) {
  if constexpr (std::is_same_v<T, bfloat16> && std::is_same_v<Stream, kernels::cuda::Stream>) {
    if (one_kernel()) return launch_token(stream);
  }
  const auto embed = [&](auto* y) {
    embedding_forward(y, weight_of<T>(weights_.embedding), buffers_.tokens.data<int32_t>(), batch_,
                      config_.vocab_size, config_.d_model, stream);
  };
  stream_.dtype() == DType::f32 ? embed(stream_.data<float>()) : embed(stream_.data<T>());
  for (size_t i = 0; i < weights_.blocks.size(); ++i) {
    launch_block<T>(weights_.blocks[i], buffers_.cache->layers[i], stream);
  }
  decode_linear(normed<T>(*weights_.norm, *weights_.head, buffers_.logits), stream, true);
}

void DecodeStep::launch() {
  visit_activations(qkv_.dtype(),
                    [&]<class T>(std::type_identity<T>, auto stream) { launch_model<T>(stream); });
  draw_tokens(buffers_);
}

void DecodeStep::run() {
  if (!capture_ || calls_++ == 0) return launch();
  if (!graph_) graph_ = std::make_unique<Graph>([&] { launch(); });
  graph_->launch();
}

}  // namespace quern
