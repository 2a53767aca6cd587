#include "data/sampler.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/common/philox.h"

namespace quern {

namespace {

// Sets the sampler's draws apart from the initialisation's and dropout's, which count with the
// upper half of the counter at zero.
constexpr uint32_t kSamplerStream = 0x71756572;

__extension__ typedef unsigned __int128 uint128;

// Uniform in [0, bound): the upper half of a 64-bit random number times bound. The bias is below
// bound / 2^64.
int64_t draw_below(uint64_t bound, uint64_t seed, uint64_t index) {
  const kernels::PhiloxBlock counter{
      {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), kSamplerStream, 0}};
  const kernels::PhiloxBlock bits =
      kernels::philox4x32(counter, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  return static_cast<int64_t>((uint128{kernels::low_bits(bits)} * bound) >> 64);
}

}  // namespace

RandomSampler::RandomSampler(int64_t size, int64_t context, uint64_t seed)
    : start_count_(static_cast<uint64_t>(size - context)), context_(context), seed_(seed) {
  QUERN_CHECK(context > 0, "sampler: context is ", context, ", expected at least 1");
  QUERN_CHECK(size > context, "sampler: the corpus has ", size,
              " tokens, expected at least context + 1 = ", context + 1);
}

void RandomSampler::draw(uint64_t batch, std::span<int64_t> starts) const {
  const uint64_t first = batch * starts.size();
  for (size_t i = 0; i < starts.size(); ++i) starts[i] = draw_below(start_count_, seed_, first + i);
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

void copy_sequential_windows(const TokenSource& source, int64_t first, int64_t rows,
                             int64_t context, int32_t* tokens, int32_t* targets) {
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t start = (first + row) * context;
    copy_windows(source, {&start, 1}, context, tokens + row * context, targets + row * context);
  }
}

}  // namespace quern
