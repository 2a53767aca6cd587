#include "data/sampler.h"

#include <bit>
#include <utility>

#include "base/error.h"
#include "base/philox.h"

namespace quern {

namespace {

// Separate the sampler's draws from each other and from those of initialisation, dropout and BF16
// moments, which have other numbers in the upper half of the counter.
constexpr uint32_t kSamplerStream = 0x71756572;
constexpr uint32_t kPermutationStream = 0x7175656E, kOffsetStream = 0x7175656F;

__extension__ typedef unsigned __int128 uint128;

kernels::PhiloxBlock random_block(uint32_t stream, uint64_t seed, uint64_t index, uint32_t word) {
  const kernels::PhiloxBlock counter{
      {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), stream, word}};
  return kernels::philox4x32(counter, static_cast<uint32_t>(seed),
                             static_cast<uint32_t>(seed >> 32));
}

// Uniform in [0, bound): the upper half of a 64-bit random number times bound. The bias is below
// bound / 2^64.
int64_t draw_below(uint64_t bound, uint64_t seed, uint64_t index,
                   uint32_t stream = kSamplerStream) {
  const kernels::PhiloxBlock bits = random_block(stream, seed, index, 0);
  return static_cast<int64_t>((uint128{kernels::low_bits(bits)} * bound) >> 64);
}

void check_window(int64_t size, int64_t context) {
  QUERN_CHECK(context > 0, "sampler: context is ", context, ", expected at least 1");
  QUERN_CHECK(size > context, "sampler: the corpus has ", size,
              " tokens, expected at least context + 1 = ", context + 1);
}

}  // namespace

RandomSampler::RandomSampler(int64_t size, int64_t context, uint64_t seed)
    : start_count_(static_cast<uint64_t>(size - context)), seed_(seed) {
  check_window(size, context);
}

void RandomSampler::draw(uint64_t first, std::span<int64_t> starts) const {
  for (size_t i = 0; i < starts.size(); ++i) starts[i] = draw_below(start_count_, seed_, first + i);
}

PermutationSampler::PermutationSampler(int64_t size, int64_t context, uint64_t seed)
    : context_(context), seed_(seed) {
  check_window(size, context);
  windows_ = static_cast<uint64_t>(sequential_window_count(size, context));
  offsets_ = static_cast<uint64_t>((size - 1) % context) + 1;
  half_bits_ = (std::bit_width(windows_ - 1) + 1) / 2;
}

// A Feistel network (Luby and Rackoff, 1988) permutes the numbers of 2 half_bits bits, at most four
// times as many as windows. It is applied until the result is a window (cycle walking; Black and
// Rogaway, 2002). Four rounds are enough for large halves; small halves need more.
uint64_t PermutationSampler::permuted(uint64_t epoch, uint64_t i) const {
  constexpr uint32_t kRounds = 12;
  if (windows_ == 1) return 0;
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  const uint64_t key = kernels::low_bits(random_block(kPermutationStream, seed_, epoch, 0));
  uint64_t x = i;
  do {
    uint64_t left = x >> half_bits_, right = x & mask;
    for (uint32_t round = 1; round <= kRounds; ++round) {
      const auto bits = random_block(kPermutationStream, key, right, round);
      left ^= kernels::low_bits(bits) & mask;
      std::swap(left, right);
    }
    x = left << half_bits_ | right;
  } while (x >= windows_);
  return x;
}

int64_t PermutationSampler::offset(uint64_t epoch) const {
  return draw_below(offsets_, seed_, epoch, kOffsetStream);
}

void PermutationSampler::draw(uint64_t first, std::span<int64_t> starts) const {
  for (size_t row = 0; row < starts.size(); ++row) {
    const uint64_t epoch = (first + row) / windows_, i = (first + row) % windows_;
    starts[row] = offset(epoch) + static_cast<int64_t>(permuted(epoch, i)) * context_;
  }
}

DrawWindows make_sampler(Sampling sampling, int64_t size, int64_t context, uint64_t seed) {
  const auto draws_of = [](const auto& sampler) -> DrawWindows {
    return [=](uint64_t first, std::span<int64_t> starts) { sampler.draw(first, starts); };
  };
  switch (sampling) {
    case Sampling::random: return draws_of(RandomSampler(size, context, seed));
    case Sampling::permutation: return draws_of(PermutationSampler(size, context, seed));
  }
  fail("sampler: unknown kind of sampling");
}

// The targets are the tokens shifted by one: only the last of a window is new.
void check_windows(const TokenSource& source, std::span<const int64_t> starts, int64_t context,
                   const int32_t* tokens, const int32_t* targets, int64_t vocab_size) {
  for (const int64_t start : starts) {
    source.check_tokens(start, {tokens, static_cast<size_t>(context)}, vocab_size);
    source.check_tokens(start + context, {targets + context - 1, 1}, vocab_size);
    tokens += context;
    targets += context;
  }
}

int64_t mask_document_starts(std::span<const int32_t> tokens, std::span<int32_t> targets,
                             int32_t end_token) {
  int64_t counted = static_cast<int64_t>(targets.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] != end_token) continue;
    targets[i] = kNoTarget;
    --counted;
  }
  return counted;
}

int64_t sequential_window_count(int64_t size, int64_t context) {
  QUERN_CHECK(context > 0, "windows: context is ", context, ", expected at least 1");
  return size > 0 ? (size - 1) / context : 0;
}

void copy_windows(const TokenSource& source, std::span<const int64_t> starts, int64_t context,
                  int32_t* tokens, int32_t* targets) {
  for (size_t row = 0; row < starts.size(); ++row) {
    const auto offset = static_cast<int64_t>(row) * context;
    source.copy(starts[row], context, tokens + offset);
    source.copy(starts[row] + 1, context, targets + offset);
  }
}

}  // namespace quern
