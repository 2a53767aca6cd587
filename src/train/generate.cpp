#include "train/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "kernels/random.h"
#include "tensor/factory.h"

namespace quern {

namespace {

// The i-th uniform number of a seeded sequence.
double uniform_number(uint64_t seed, uint64_t i) {
  float u = 0.0f;
  kernels::cpu::uniform(&u, 1, 0.0, 1.0, {seed, i}, kernels::cpu::Stream{});
  return u;
}

void check_prompt(const std::vector<int32_t>& prompt, int64_t vocab_size) {
  QUERN_CHECK(!prompt.empty(), "generate: the prompt is empty, expected at least one token");
  for (size_t i = 0; i < prompt.size(); ++i) {
    QUERN_CHECK(prompt[i] >= 0 && prompt[i] < vocab_size, "generate: token ", prompt[i],
                " at position ", i, " of the prompt lies outside the vocabulary of ", vocab_size);
  }
}

}  // namespace

int32_t sample_token(std::vector<float> logits, const SampleSection& options, double u) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto likelier = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  if (options.temperature == 0.0) return *std::min_element(order.begin(), order.end(), likelier);
  std::sort(order.begin(), order.end(), likelier);
  if (options.top_k > 0 && options.top_k < static_cast<int64_t>(order.size())) {
    order.resize(static_cast<size_t>(options.top_k));
  }
  const double highest = logits[static_cast<size_t>(order[0])];
  std::vector<double> weights;
  for (const int32_t token : order) {
    weights.push_back(
        std::exp((logits[static_cast<size_t>(token)] - highest) / options.temperature));
  }
  double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  double kept = 0.0;
  for (size_t i = 0; i < weights.size(); ++i) {  // the shortest prefix that holds top_p
    kept += weights[i];
    if (kept >= options.top_p * total) {
      weights.resize(i + 1);
      total = kept;
      break;
    }
  }
  double below = 0.0;
  for (size_t i = 0; i < weights.size(); ++i) {
    below += weights[i];
    if (u * total < below) return order[i];
  }
  return order[weights.size() - 1];
}

std::vector<int32_t> generate(const TransformerLM& model, const std::vector<int32_t>& prompt,
                              const SampleSection& options, const TokenCallback& on_token) {
  const int64_t context = model.config().context;
  check_prompt(prompt, model.config().vocab_size);
  std::vector<int32_t> all = prompt, made;
  const auto last = [&](int64_t count) {
    return std::vector<int32_t>(
        all.end() - std::min<int64_t>(count, static_cast<int64_t>(all.size())), all.end());
  };
  KvCache cache = model.make_cache(1, context);
  std::vector<int32_t> fresh = last(context);  // tokens the cache has not seen
  const auto seed = static_cast<uint64_t>(options.sample_seed);
  while (static_cast<int64_t>(made.size()) < options.tokens) {
    if (cache.length + static_cast<int64_t>(fresh.size()) > context) {
      if (options.past_context == PastContext::stop) break;
      fresh = last(std::max<int64_t>(1, context / 2));
      cache.length = 0;
    }
    const Tensor tokens = from_vector(fresh, {1, static_cast<int64_t>(fresh.size())});
    const Tensor logits = model.decode(tokens, cache).to(DType::f32);
    const int32_t token =
        sample_token(logits.to_vector<float>(), options, uniform_number(seed, made.size()));
    all.push_back(token);
    made.push_back(token);
    fresh = {token};
    if (on_token && !on_token(token)) break;
    if (token == options.stop_token) break;
  }
  return made;
}

}  // namespace quern
