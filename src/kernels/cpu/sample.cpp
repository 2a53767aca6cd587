// Sampling by sorting, step by step as defined: the reference for the GPU's threshold search.
#include "kernels/sample.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "kernels/common/sample_math.h"

namespace quern::kernels {

void check_sample_options(const SampleOptions& o) {
  QUERN_CHECK(o.temperature >= 0.0f && std::isfinite(o.temperature), "sample: temperature is ",
              o.temperature, ", expected at least 0");
  QUERN_CHECK(o.top_k >= 0, "sample: top_k is ", o.top_k, ", expected 0 (all) or more");
  QUERN_CHECK(o.top_p > 0.0 && o.top_p <= 1.0, "sample: top_p is ", o.top_p,
              ", expected above 0 and at most 1");
  QUERN_CHECK(o.min_p >= 0.0 && o.min_p <= 1.0, "sample: min_p is ", o.min_p,
              ", expected from 0 to 1");
  QUERN_CHECK(o.repetition_penalty > 0.0f && std::isfinite(o.repetition_penalty),
              "sample: repetition_penalty is ", o.repetition_penalty, ", expected above 0");
}

namespace cpu {
namespace {

bool is_seen(const uint32_t* seen, size_t id) {
  return (seen[id / 32] >> (id % 32) & 1) != 0;
}

struct Candidate {
  int32_t id;
  uint64_t weight;
};

// Steps 2 to 5 for a temperature above 0: the remaining tokens, largest weight first.
std::vector<Candidate> candidates(const std::vector<float>& logits, const SampleOptions& options) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto logit = [&](int32_t id) { return logits[static_cast<size_t>(id)]; };
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return logit(a) != logit(b) ? logit(a) > logit(b) : a < b;
  });
  if (options.top_k > 0 && static_cast<size_t>(options.top_k) < order.size()) {
    order.resize(static_cast<size_t>(options.top_k));
  }
  const float largest = logit(order[0]), inverse = 1.0f / options.temperature;
  std::vector<Candidate> kept;
  uint64_t total = 0;
  for (const int32_t id : order) {
    kept.push_back({id, sample_weight(logit(id), largest, inverse)});
    total += kept.back().weight;
  }
  const uint64_t enough = share_of(total, options.top_p);
  size_t count = 0;
  for (uint64_t sum = 0; sum < enough; ++count) sum += kept[count].weight;
  const uint64_t least = share_of(kWeightOne, options.min_p);
  while (count > 1 && kept[count - 1].weight < least) --count;
  kept.resize(count);
  return kept;
}

int32_t draw(const std::vector<float>& logits, const SampleOptions& options, uint64_t index) {
  if (options.temperature == 0.0f) {
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  std::vector<Candidate> kept = candidates(logits, options);
  std::sort(kept.begin(), kept.end(),
            [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  uint64_t total = 0;
  for (const Candidate& one : kept) total += one.weight;
  const uint64_t target = draw_below(total, uniform_bits(options.seed, index));
  uint64_t below = 0;
  for (const Candidate& one : kept) {
    below += one.weight;
    if (target < below) return one.id;
  }
  fail("sample: the weights sum to less than their total");
}

}  // namespace

template <class T>
void sample(int32_t* tokens, int32_t* results, DecodeRow* rows, uint32_t* seen, const T* logits,
            int64_t B, int64_t V, Stream) {
  const int64_t words = (V + 31) / 32;
  for (int64_t b = 0; b < B; ++b) {
    DecodeRow& row = rows[b];
    int32_t token = -1;
    if (row.active != 0) {
      uint32_t* const row_seen = seen + b * words;
      std::vector<float> values(static_cast<size_t>(V));
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = penalized(static_cast<float>(logits[b * V + static_cast<int64_t>(i)]),
                              is_seen(row_seen, i), row.options.repetition_penalty);
      }
      token = draw(values, row.options, row.drawn);
      row_seen[token / 32] |= 1u << (token % 32);
      ++row.drawn;
      ++row.length;
    }
    tokens[b] = std::max(token, 0);
    results[static_cast<int64_t>(row.posted % kResultSlots) * B + b] = token;
    ++row.posted;
  }
}

template decltype(sample<float>) sample<float>;
template decltype(sample<bfloat16>) sample<bfloat16>;

}  // namespace cpu
}  // namespace quern::kernels
