#include "run/nonfinite.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "kernels/optimizer.h"
#include "run/weights.h"
#include "tensor/visit.h"

namespace quern {

bool all_finite(const Tensor& x) {
  constexpr int64_t kRange = 1 << 20;  // for one thread block, or one thread of a CPU
  constexpr int64_t kMost = 1 << 22;   // of a buffer's elements, converted to FP32 at a time
  if (x.dtype() != DType::f32 && x.ndim() == 1 && x.numel() > kMost) {
    for (int64_t begin = 0; begin < x.numel(); begin += kMost) {
      if (!all_finite(x.slice(0, begin, std::min(begin + kMost, x.numel())))) return false;
    }
    return true;
  }
  const Tensor values = x.to(DType::f32).contiguous();
  if (values.numel() == 0) return true;
  std::vector<kernels::AdamWRange> ranges;
  for (int64_t begin = 0; begin < values.numel(); begin += kRange) {
    ranges.push_back({.begin = begin, .count = std::min(kRange, values.numel() - begin)});
  }
  const auto count = static_cast<int64_t>(ranges.size());
  const auto bytes = static_cast<int64_t>(ranges.size() * sizeof ranges[0]);
  const Tensor on_host = Tensor::borrow(ranges.data(), {bytes}, DType::u8, kCpu);
  const Tensor here = on_host.to(values.device());
  const Tensor counts = Tensor::empty({count}, DType::i64, values.device());
  on_device(values.device(), [&](auto stream) {
    count_nonfinite(counts.data<int64_t>(), values.data<float>(),
                    static_cast<const kernels::AdamWRange*>(here.raw_data()), count, stream);
  });
  return std::ranges::all_of(counts.to_vector<int64_t>(), [](int64_t n) { return n == 0; });
}

std::string find_nonfinite(const OptimizerBuffer& buffer) {
  if (all_finite(buffer.data)) return "";
  for (const NamedSlice& slice : buffer.slices) {
    const auto values = spread(buffer, slice).to(DType::f32).to_vector<float>();
    const auto bad = std::ranges::find_if(values, [](float x) { return !std::isfinite(x); });
    if (bad == values.end()) continue;
    return cat("tensor '", buffer.prefix, slice.name, "' holds ", *bad, " at element ",
               bad - values.begin());
  }
  return "";  // the padding between slices has no effect
}

namespace {

// Keeps the path of open ranges, and the first non-finite output with its path.
class Finder : public RangeObserver, public OutputObserver {
 public:
  void on_begin(const Range& range) override { path_.emplace_back(range.name); }
  void on_end() override { path_.pop_back(); }
  void on_output(const char* op, const Tensor& output) override {
    if (observe_outputs_.previous()) observe_outputs_.previous()->on_output(op, output);
    // The mask writes -inf on purpose; a NaN there appears in the softmax behind it.
    if (std::string_view(op) == "causal_mask") return;
    if (!found.empty() || !is_floating(output.dtype()) || all_finite(output)) return;
    std::string where;
    for (const std::string& part : path_) {
      if (part != op) where += (where.empty() ? "" : ".") + part;
    }
    found = cat(where, where.empty() ? "" : ": ", "output of ", op);
  }
  void on_gradient(const Leaf& leaf) {
    if (found.empty() && !all_finite(leaf.grad)) found = cat("gradient of ", leaf.name);
  }

  std::string found;

 private:
  std::vector<std::string> path_;
  Observe<OutputObserver> observe_outputs_{*this};
  ObserveRanges observe_ranges_{*this};
};

}  // namespace

std::string find_nonfinite(ParameterArena& arena, const std::function<void()>& step) {
  for (const Parameter* parameter : arena.parameters()) {
    if (!all_finite(parameter->weight().value())) return cat("weight ", parameter->name());
  }
  Finder finder;
  for (const Parameter* parameter : arena.parameters()) {
    parameter->leaf()->on_ready = [&finder](Leaf& leaf) { finder.on_gradient(leaf); };
  }
  const auto detach = [&arena] {
    for (const Parameter* parameter : arena.parameters()) parameter->leaf()->on_ready = nullptr;
  };
  try {
    step();
  } catch (...) {
    detach();
    throw;
  }
  detach();
  return finder.found;
}

}  // namespace quern
