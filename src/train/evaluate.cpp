#include "train/evaluate.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "autograd/ops/cross_entropy.h"
#include "autograd/ops/pointwise.h"
#include "autograd/tape.h"
#include "base/error.h"
#include "data/sampler.h"
#include "tensor/factory.h"

namespace quern {

static_assert(kNoTarget == kIgnoreIndex);

namespace {

// One FP32 number for each batch. Rank r of N sets those of the batches r, r + N, ...
class BatchValues {
 public:
  BatchValues(int64_t batches, Communicator* ranks)
      : batches_(batches),
        ranks_(ranks),
        size_(ranks == nullptr ? 1 : ranks->size()),
        slices_((batches + size_ - 1) / size_ * size_, size_),
        values_(zeros({size_ * slices_.each})) {}

  void set(int64_t batch, const Tensor& value) { copy(element(values_, batch), value); }

  // All of them, in the order of the batches; waits for the device.
  std::vector<float> all() {
    if (size_ > 1) {
      const RankSlices whole(size_ * slices_.each, size_);
      ranks_->gather(values_.raw_data(), whole, sizeof(float), "the validation's losses",
                     Context::current().cuda_stream());
    }
    const std::vector<float> gathered = values_.to_vector<float>();
    if (size_ > 1) ranks_->check();
    std::vector<float> in_order;
    for (int64_t batch = 0; batch < batches_; ++batch) {
      in_order.push_back(gathered[static_cast<size_t>(place(batch))]);
    }
    return in_order;
  }

 private:
  int64_t place(int64_t batch) const { return batch % size_ * slices_.each + batch / size_; }
  Tensor element(const Tensor& values, int64_t batch) const {
    const int64_t at = place(batch);
    return values.slice(0, at, at + 1).reshape({});
  }

  int64_t batches_;
  Communicator* ranks_;
  int64_t size_;
  RankSlices slices_;
  Tensor values_;
};

}  // namespace

Evaluation evaluate(const TransformerLM& model, const TokenSource& source, int64_t batch,
                    int64_t context, int64_t max_batches, std::optional<int32_t> document_end,
                    const std::function<void(int64_t, int64_t)>& progress, Communicator* ranks,
                    ShardedWeights* shards) {
  const auto start = std::chrono::steady_clock::now();
  int64_t windows = sequential_window_count(source.size(), context);
  QUERN_CHECK(windows > 0, "evaluate: ", source.name(), " has ", source.size(),
              " tokens, expected at least ", context + 1);
  if (max_batches > 0) windows = std::min(windows, max_batches * batch);
  const int64_t batches = (windows + batch - 1) / batch;
  const int64_t rank = ranks == nullptr ? 0 : ranks->rank();
  const int64_t stride = ranks == nullptr ? 1 : ranks->size();

  const NoGrad no_grad;
  // Losses, weighted by counted tokens per window length: without a mask, the number of rows. They
  // stay on the device: one wait at the end.
  BatchValues losses(batches, ranks), counts(batches, ranks);
  std::vector<int64_t> starts;
  std::vector<int32_t> tokens, targets;
  const int64_t rounds = (batches + stride - 1) / stride;
  for (int64_t round = 0; round < rounds; ++round) {
    const int64_t own = round * stride + rank;
    const int64_t i = std::min(own, batches - 1);  // a rank without a batch repeats the last one
    const int64_t first = i * batch;
    if (progress) progress(first, windows);
    const int64_t rows = std::min(batch, windows - first);
    starts.resize(static_cast<size_t>(rows));
    for (int64_t row = 0; row < rows; ++row) {
      starts[static_cast<size_t>(row)] = (first + row) * context;
    }
    tokens.resize(static_cast<size_t>(rows * context));
    targets.resize(tokens.size());
    copy_windows(source, starts, context, tokens.data(), targets.data());
    check_windows(source, starts, context, tokens.data(), targets.data(),
                  model.config().vocab_size);
    const auto all = static_cast<int64_t>(targets.size());
    const int64_t here = document_end ? mask_document_starts(tokens, targets, *document_end) : all;
    if (shards) shards->begin_micro_batch(round == 0);
    const Variable loss =
        model.loss(from_vector(tokens, {rows, context}), from_vector(targets, {rows, context}));
    if (shards) shards->end_micro_batch();
    if (i != own) continue;
    const double worth = static_cast<double>(here) / static_cast<double>(context);
    losses.set(i, scale(loss, worth).value());
    counts.set(i, full({}, static_cast<double>(here)));
  }
  double total = 0.0;
  for (const float loss : losses.all()) total += loss;
  double counted = 0.0;
  for (const float count : counts.all()) counted += count;
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  const double worth = counted / static_cast<double>(context);
  return {counted > 0.0 ? total / worth : 0.0, windows, elapsed.count()};
}

}  // namespace quern
