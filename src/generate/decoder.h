// Generation token by token for a batch of rows, each with its own length and its own sampling.
//
//   Decoder decoder(model, batch, capacity);
//   decoder.start(0, prompt, options);      // and the other rows
//   decoder.step();                         // one token for every active row
//   decoder.step();                         // the next, while the first is pending
//   std::vector<int32_t> tokens = decoder.fetch();
//
// On a GPU a step is one CUDA graph that also draws the tokens and never waits for the host. With
// naive kernels, on the CPU, and for models that the kernels do not support (an odd head_dim), a
// step is composed of the model's own ops, row by row. A row's tokens depend only on its prompt and
// options. On one device they are the same bits for any other rows and any number of them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/sample.h"
#include "model/transformer_lm.h"
#include "tensor/cuda_runtime.h"

namespace quern {

class DecodeStep;
struct DecodeBuffers;

class Decoder {
 public:
  enum class Way {
    automatic,  // as above
    composed,   // the model's own ops
    launched    // one kernel for each part of a block; on the CPU their plain twins
  };

  // Allocates the caches: `capacity` tokens per row, at most the model's context. The model must
  // outlive this object. The model's Context must be current here and later. Throws when the
  // capacity is out of range, or when the kernels of `launched` do not support the model.
  Decoder(const TransformerLM& model, int64_t batch, int64_t capacity, Way way = Way::automatic);
  ~Decoder();
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  // Starts row b with this prompt (at least one token, at most `capacity`): computes all but the
  // last token now, the last in the next step. Throws on an empty or too long prompt, a token
  // outside the vocabulary, or options out of range.
  void start(int64_t b, const std::vector<int32_t>& prompt, const kernels::SampleOptions& options);
  // Continues row b from these tokens in place of its cache: for a sliding window. Keeps the row's
  // seen tokens and its count of drawn ones.
  void restart(int64_t b, const std::vector<int32_t>& tokens);
  // Ends row b: its tokens are -1 in all steps launched after this call. Pending steps keep their
  // tokens.
  void finish(int64_t b);

  // Launches one token for every active row. Throws when a row's cache is full, no row is active,
  // or kMostPending steps are not fetched.
  void step();
  // Waits for the oldest pending step and returns its tokens (B), -1 for inactive rows. Throws when
  // no step is pending.
  std::vector<int32_t> fetch();
  int64_t pending() const { return static_cast<int64_t>(launched_ - fetched_); }
  static constexpr int64_t kMostPending = kernels::kResultSlots;

  int64_t batch() const { return batch_; }
  int64_t capacity() const { return cache_.capacity; }
  bool active(int64_t b) const { return state(b).active != 0; }
  // Tokens in row b's cache after all steps launched; at capacity() no further step is possible.
  int64_t length(int64_t b) const { return state(b).length; }
  // The logits (B, V) of the last step, in the activations' type; valid for active rows.
  const Tensor& logits() const { return logits_; }
  bool fused() const { return fused_; }  // steps run on the decode kernels
  bool one_kernel() const;               // one kernel runs the whole model

 private:
  const kernels::DecodeRow& state(int64_t b) const;
  void check_tokens(const std::vector<int32_t>& tokens) const;
  void fill_cache(int64_t b, const std::vector<int32_t>& tokens);
  void upload(int64_t b);
  void mark_seen(int64_t b, std::vector<int32_t> seen, const std::vector<int32_t>& tokens);
  void composed_step();
  DecodeBuffers buffers() const;

  const TransformerLM& model_;
  int64_t batch_;
  bool on_gpu_, fused_ = false;
  KvCache cache_;
  std::vector<kernels::DecodeRow> rows_;  // as the device has them after all steps launched
  Tensor row_state_;                      // (B, sizeof(DecodeRow)) u8: those on the device
  Tensor tokens_;                         // (B) i32: inputs of the next step
  Tensor seen_;                           // (B, ceil(V / 32)) i32, see kernels/sample.h
  Tensor logits_;
  cuda::HostArray<int32_t> results_;  // (kResultSlots, B), pinned on a GPU
  std::vector<cuda::Event> done_;     // one per slot, on a GPU
  std::unique_ptr<DecodeStep> step_;  // null: steps are composed
  uint64_t launched_ = 0, fetched_ = 0;
};

}  // namespace quern
