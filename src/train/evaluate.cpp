#include "train/evaluate.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "autograd/ops/binary.h"
#include "autograd/ops/cross_entropy.h"
#include "autograd/ops/pointwise.h"
#include "autograd/tape.h"
#include "base/error.h"
#include "data/sampler.h"
#include "tensor/factory.h"

namespace quern {

static_assert(kNoTarget == kIgnoreIndex);

Evaluation evaluate(const TransformerLM& model, const TokenSource& source, int64_t batch,
                    int64_t context, int64_t max_batches, std::optional<int32_t> document_end,
                    const std::function<void(int64_t, int64_t)>& progress) {
  const auto start = std::chrono::steady_clock::now();
  int64_t windows = sequential_window_count(source.size(), context);
  QUERN_CHECK(windows > 0, "evaluate: ", source.name(), " has ", source.size(),
              " tokens, expected at least ", context + 1);
  if (max_batches > 0) windows = std::min(windows, max_batches * batch);

  const NoGrad no_grad;
  Variable total = zeros({});  // stays on the device: one wait at the end
  int64_t counted = 0;
  std::vector<int64_t> starts;
  std::vector<int32_t> tokens, targets;
  for (int64_t first = 0; first < windows; first += batch) {
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
    const Variable loss =
        model.loss(from_vector(tokens, {rows, context}), from_vector(targets, {rows, context}));
    // Weighted by counted tokens per window length: without a mask, the number of rows.
    total = add(total, scale(loss, static_cast<double>(here) / static_cast<double>(context)));
    counted += here;
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  const double worth = static_cast<double>(counted) / static_cast<double>(context);
  return {counted > 0 ? total.value().item() / worth : 0.0, windows, elapsed.count()};
}

}  // namespace quern
