// A loop over elements that each have a random number of their own, in vector instructions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/philox.h"
#include "base/round_up.h"
#include "kernels/common/parallel.h"

namespace quern::kernels::cpu {

// Calls body(i, number) for i < n. The stream of numbers consists of blocks of Philox: words(b)
// gives block b, whose words are cut into Numbers, lower ones first. Element i has number place +
// i.
template <class Number, class Words, class Body>
void for_random_numbers(int64_t n, uint64_t place, const Words& words, const Body& body) {
  constexpr int64_t kOfBlock = sizeof(PhiloxBlock) / sizeof(Number);
  const auto skipped = static_cast<int64_t>(place % kOfBlock);  // of the first block
  const uint64_t first = place / kOfBlock;
  parallel_for(ceil_div(skipped + n, kOfBlock), kGrain / kOfBlock, [=](int64_t begin, int64_t end) {
    constexpr int64_t kBlocks = 64;  // at once
    PhiloxBlock blocks[kBlocks];
    Number numbers[kOfBlock * kBlocks];
    PhiloxBlock* const made = blocks;
    const Number* const number = numbers;
    for (int64_t block = begin; block < end; block += kBlocks) {
      const int64_t count = std::min(kBlocks, end - block);
      const uint64_t start = first + static_cast<uint64_t>(block);
      vector_for(0, count, [=](int64_t i) { made[i] = words(start + static_cast<uint64_t>(i)); });
      std::memcpy(numbers, blocks, static_cast<size_t>(count) * sizeof(PhiloxBlock));
      const int64_t at = kOfBlock * block - skipped;  // the element with the first number
      vector_for(std::max<int64_t>(at, 0), std::min(at + kOfBlock * count, n),
                 [=](int64_t i) { body(i, number[i - at]); });
    }
  });
}

}  // namespace quern::kernels::cpu
