// Generation token by token for a batch of rows, each with its own length and its own sampling.
//
//   Decoder decoder(model, batch, capacity);
//   decoder.start(0, prompt, options);      // and the other rows
//   decoder.step();                         // one token for every active row
//   decoder.step();                         // the next, while the first is on its way
//   std::vector<int32_t> tokens = decoder.fetch();
//
// On a GPU a step is one CUDA graph that draws the tokens too and never waits for the host. With
// naive kernels, on the CPU, and for models that the kernels do not take (an odd head_dim), a step
// is composed of the model's own ops, row by row. A row's tokens depend on nothing but its prompt
// and options: not on the other rows, nor, bit for bit on one device, on how many there are.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/sample.h"
#include "model/transformer_lm.h"
#include "tensor/cuda_runtime.h"

namespace quern {

class DecodeStep;

class Decoder {
 public:
  enum class Way {
    automatic,  // as above
    composed,   // of the model's ops
    launched    // a kernel for each part of a block, one by one; on the CPU their plain twins
  };

  // Makes the caches: `capacity` tokens a row, at most the model's context. The model outlives
  // this. Needs the Context that the model computes on; keep it current. Throws when the capacity
  // is out of range, or `launched` is asked for where it cannot be.
  Decoder(const TransformerLM& model, int64_t batch, int64_t capacity, Way way = Way::automatic);
  ~Decoder();
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  // Row b begins anew with this prompt (at least one token, at most `capacity`): all but the last
  // token are computed now, the last by the next step. Throws on an empty or too long prompt, a
  // token outside the vocabulary, or options out of range.
  void start(int64_t b, const std::vector<int32_t>& prompt, const kernels::SampleOptions& options);
  // Row b goes on from these tokens in place of what its cache holds: for a window that slides.
  // What was seen and how many tokens were drawn is kept.
  void restart(int64_t b, const std::vector<int32_t>& tokens);
  // Row b takes part no more: its tokens are -1, also those of steps under way that were launched
  // after this call.
  void finish(int64_t b);

  // Launches one token for every active row. Throws when a row's cache is full, no row is active,
  // or kMostPending steps were not fetched.
  void step();
  // The tokens (B) of the oldest step that was not fetched, -1 for rows that were not active then;
  // waits for it. Throws when there is none.
  std::vector<int32_t> fetch();
  int64_t pending() const { return static_cast<int64_t>(launched_ - fetched_); }
  static constexpr int64_t kMostPending = kernels::kResultSlots;

  int64_t batch() const { return batch_; }
  int64_t capacity() const { return cache_.capacity; }
  bool active(int64_t b) const { return state(b).active != 0; }
  // Tokens in row b's cache after all steps launched; at capacity() no further step is possible.
  int64_t length(int64_t b) const { return state(b).length; }
  // (B, V) that the last step drew from, in the activations' type; of active rows alone.
  const Tensor& logits() const { return logits_; }
  bool fused() const { return fused_; }  // steps run on the kernels made for them
  bool one_kernel() const;               // on the one for the whole model

 private:
  const kernels::DecodeRow& state(int64_t b) const;
  void check_tokens(const std::vector<int32_t>& tokens) const;
  void fill_cache(int64_t b, const std::vector<int32_t>& tokens);
  void upload(int64_t b);
  void mark_seen(int64_t b, std::vector<int32_t> seen, const std::vector<int32_t>& tokens);
  void composed_step();
  void draw();

  const TransformerLM& model_;
  int64_t batch_;
  bool on_gpu_, fused_ = false;
  KvCache cache_;
  std::vector<kernels::DecodeRow> rows_;  // as the device has them after all steps launched
  Tensor row_state_;                      // (B, sizeof(DecodeRow)) u8: those on the device
  Tensor tokens_;                         // (B) i32: what the next step takes
  Tensor seen_;                           // (B, ceil(V / 32)) i32, see kernels/sample.h
  Tensor logits_;
  cuda::HostArray<int32_t> results_;  // (kResultSlots, B), pinned on a GPU
  std::vector<cuda::Event> done_;     // one a slot, on a GPU
  std::unique_ptr<DecodeStep> step_;  // null: steps are composed
  uint64_t launched_ = 0, fetched_ = 0;
};

}  // namespace quern
