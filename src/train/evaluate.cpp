#include "train/evaluate.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "autograd/ops/binary.h"
#include "autograd/ops/pointwise.h"
#include "autograd/tape.h"
#include "base/error.h"
#include "data/sampler.h"
#include "tensor/factory.h"

namespace quern {

Evaluation evaluate(const TransformerLM& model, const TokenSource& source, int64_t batch,
                    int64_t context, int64_t max_batches) {
  const auto start = std::chrono::steady_clock::now();
  int64_t windows = sequential_window_count(source.size(), context);
  QUERN_CHECK(windows > 0, "evaluate: ", source.name(), " has ", source.size(),
              " tokens, expected at least ", context + 1);
  if (max_batches > 0) windows = std::min(windows, max_batches * batch);

  const NoGrad no_grad;
  Variable total = zeros({});  // stays on the device: one wait at the end
  std::vector<int32_t> tokens(static_cast<size_t>(batch * context)), targets(tokens.size());
  for (int64_t first = 0; first < windows; first += batch) {
    const int64_t rows = std::min(batch, windows - first);
    copy_sequential_windows(source, first, rows, context, tokens.data(), targets.data());
    tokens.resize(static_cast<size_t>(rows * context));
    targets.resize(tokens.size());
    const Variable loss =
        model.loss(from_vector(tokens, {rows, context}), from_vector(targets, {rows, context}));
    total = add(total, scale(loss, static_cast<double>(rows)));
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  return {total.value().item() / static_cast<double>(windows), windows, elapsed.count()};
}

}  // namespace quern
