// The device work of one token for every row of a batch, on kernels for a few rows. If the model
// fits, one kernel runs from the embedding to the logits (kernels/decode_token.h) and a second one
// draws the tokens. Otherwise, with the same bits, there are five kernels per block, one for the
// embedding, one for the head and one that draws. The five: norm with q, k, v and bias; norms of
// heads, rotation, cache and attention; output and residual add; norm, gate, up and SwiGLU; down
// and residual add. On a GPU every kernel but the first starts before the previous one ends.
#pragma once

#include <memory>
#include <string>

#include "kernels/decode_linear.h"
#include "kernels/decode_token.h"
#include "kernels/sample.h"
#include "model/transformer_lm.h"
#include "tensor/graph.h"

namespace quern {

// The buffers of a step's rows; all must outlive the step.
struct DecodeBuffers {
  const KvCache* cache = nullptr;
  kernels::DecodeRow* rows = nullptr;  // (B), on the device
  Tensor tokens;                       // (B) i32
  int32_t* results = nullptr;          // (kResultSlots, B)
  Tensor seen;                         // (B, ceil(V / 32)) i32
  Tensor logits;                       // (B, V)
};

// Draws the next token of every active row from its logits.
void draw_tokens(const DecodeBuffers& buffers);

class DecodeStep {
 public:
  // The reason why the kernels do not support this model on the current Context's device, or empty.
  static std::string objection(const TransformerLM& model);

  // `graph`: uses the one kernel if the model fits; captures the second call and replays it from
  // then on. Otherwise every call launches every kernel.
  DecodeStep(const TransformerLM& model, DecodeBuffers buffers, bool graph);

  void run();  // on the current Context's stream
  bool one_kernel() const { return exchange_.defined(); }

 private:
  void launch();
  kernels::DecodeToken token_sizes() const;
  void prepare_token();
  template <class Stream>
  void launch_token(Stream stream);
  template <class T, class Stream>
  void launch_model(Stream stream);
  template <class T, class Stream>
  void launch_block(const BlockWeights& block, const KvCache::Layer& cache, Stream stream);
  // A product with the normed residual stream, and a product with x that is added to the stream.
  template <class T>
  kernels::DecodeLinear<T> normed(const Parameter& norm, const Parameter& w, const Tensor& y) const;
  template <class T>
  kernels::DecodeLinear<T> added(const Tensor& x, const Parameter& w) const;

  const ModelConfig& config_;
  DecodeWeights weights_;
  DecodeBuffers buffers_;
  int64_t batch_;
  Tensor stream_;  // (B, C), the residual stream
  Tensor qkv_, attended_, hidden_;
  Tensor exchange_, blocks_;  // u8, of the one kernel; undefined if the model does not fit
  bool capture_;
  int64_t calls_ = 0;
  std::unique_ptr<Graph> graph_;
};

}  // namespace quern
