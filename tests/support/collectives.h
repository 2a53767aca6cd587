// A program of all collectives on random data, with its expected values.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/philox.h"
#include "dist/communicator.h"

namespace quern::testing_support {

// The data of each rank, which every rank can compute.
class RankData {
 public:
  explicit RankData(uint64_t seed) : seed_(seed) {}

  float value(int rank, int64_t i) const {
    return kernels::philox_uniform<float>(seed_, index(rank, i), -1.0, 1.0);
  }
  std::vector<float> values(int rank, int64_t count) const {
    std::vector<float> out;
    for (int64_t i = 0; i < count; ++i) out.push_back(value(rank, i));
    return out;
  }
  unsigned char byte(int rank, int64_t i) const {
    return static_cast<unsigned char>(kernels::philox_block(~seed_, index(rank, i)).word[0]);
  }

 private:
  static uint64_t index(int rank, int64_t i) {
    return uint64_t(rank) << 40 | static_cast<uint64_t>(i);
  }
  uint64_t seed_;
};

// Runs every collective over `count` elements. Returns the first wrong element, or "".
class CollectiveCheck {
 public:
  CollectiveCheck(Communicator& ranks, int64_t count, uint64_t seed)
      : ranks_(ranks), slices_(count, ranks.size()), data_(seed) {}

  std::string run() {
    exchange();
    for (const int64_t width : {1, 2, 4}) gather(width);
    share();
    for (int root = 0; root < ranks_.size(); ++root) broadcast(root);
    all_reduce();
    reduce_scatter();
    ranks_.barrier("the end");
    return error_;
  }
  // The same with fewer sizes and roots.
  std::string run_one_of_each() {
    exchange();
    gather(2);
    share();
    broadcast(ranks_.size() - 1);
    all_reduce();
    reduce_scatter();
    ranks_.barrier("the end");
    return error_;
  }

 private:
  static constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();
  static constexpr unsigned char kGuard = 0xa5;

  template <class T>
  void expect(const char* name, int64_t i, T found, T expected) {
    if (found == expected || !error_.empty()) return;
    error_ = cat(name, " of ", slices_.count, " elements on rank ", ranks_.rank(), " of ",
                 ranks_.size(), ": element ", i, " is ", +found, ", expected ", +expected);
  }
  void expect_sum(const char* name, int64_t i, float found) {
    double sum = 0, magnitude = 0;
    for (int p = 0; p < ranks_.size(); ++p) {
      sum += data_.value(p, i);
      magnitude += std::abs(data_.value(p, i));
    }
    // size - 1 additions round, each by half a unit of a partial sum, in whatever order.
    const double bound = ranks_.size() * magnitude * std::numeric_limits<float>::epsilon();
    if (!(std::abs(found - sum) <= bound)) expect(name, i, found, static_cast<float>(sum));
  }

  void exchange() {
    const auto sent = data_.values(ranks_.rank(), slices_.count);
    auto data = sent;
    const int64_t all = ranks_.size() * slices_.each;
    std::vector<float> received(static_cast<size_t>(all + 1), kPoison);
    received.back() = 7;
    ranks_.exchange(received.data(), data.data(), slices_, "the gradients", {});
    const int64_t begin = slices_.begin(ranks_.rank());
    for (int p = 0; p < ranks_.size(); ++p) {
      for (int64_t i = 0; i < slices_.size(ranks_.rank()); ++i) {
        expect("exchange", i, received[static_cast<size_t>(p * slices_.each + i)],
               data_.value(p, begin + i));
      }
    }
    expect("guard of exchange", all, received.back(), 7.0f);
    for (size_t i = 0; i < data.size(); ++i) {
      expect("input of exchange", static_cast<int64_t>(i), data[i], sent[i]);
    }
  }

  void gather(int64_t width) {
    std::vector<unsigned char> data(static_cast<size_t>(slices_.count * width + 1), kGuard);
    const int64_t begin = slices_.begin(ranks_.rank()) * width;
    const int64_t end = slices_.end(ranks_.rank()) * width;
    for (int64_t i = begin; i < end; ++i) {
      data[static_cast<size_t>(i)] = data_.byte(ranks_.rank(), i);
    }
    ranks_.gather(data.data(), slices_, width, "the weights", {});
    for (int p = 0; p < ranks_.size(); ++p) {
      for (int64_t i = slices_.begin(p) * width; i < slices_.end(p) * width; ++i) {
        expect("gather", i, data[static_cast<size_t>(i)], data_.byte(p, i));
      }
    }
    expect("guard of gather", slices_.count * width, data.back(), kGuard);
    // From other memory, which stays as it is.
    const std::vector<unsigned char> own(data.begin() + begin, data.begin() + end);
    auto sent = own;
    sent.push_back(kGuard);  // data() is never null
    std::vector<unsigned char> received(data.size(), kGuard);
    ranks_.gather(received.data(), sent.data(), slices_, width, "the weights", {});
    for (size_t i = 0; i < data.size(); ++i) {
      expect("gather out of place", static_cast<int64_t>(i), received[i], data[i]);
    }
    sent.pop_back();
    expect("input of gather", 0, sent == own, true);
  }

  // Three of every five bytes; the ranks own them in turn.
  void share() {
    std::vector<unsigned char> data(static_cast<size_t>(slices_.count), kGuard);
    auto expected = data;
    std::vector<RankPiece> pieces;
    for (int64_t begin = 0; begin < slices_.count; begin += 5) {
      const int owner = static_cast<int>(begin / 5) % ranks_.size();
      pieces.push_back({begin, std::min<int64_t>(3, slices_.count - begin), owner});
      for (int64_t i = begin; i < begin + pieces.back().bytes; ++i) {
        expected[static_cast<size_t>(i)] = data_.byte(owner, i);
        if (owner == ranks_.rank()) data[static_cast<size_t>(i)] = data_.byte(owner, i);
      }
    }
    if (pieces.size() > 50) pieces.resize(50);  // a message each
    ranks_.share(data.data(), pieces, "the norms", {});
    for (const RankPiece& piece : pieces) {
      for (int64_t i = piece.begin; i < std::min(piece.begin + 5, slices_.count); ++i) {
        expect("share", i, data[static_cast<size_t>(i)], expected[static_cast<size_t>(i)]);
      }
    }
  }

  void broadcast(int root) {
    std::vector<unsigned char> data(static_cast<size_t>(slices_.count + 1), kGuard);
    for (int64_t i = 0; ranks_.rank() == root && i < slices_.count; ++i) {
      data[static_cast<size_t>(i)] = data_.byte(root, i);
    }
    ranks_.broadcast(data.data(), slices_.count, root, "the seed", {});
    for (int64_t i = 0; i < slices_.count; ++i) {
      expect("broadcast", i, data[static_cast<size_t>(i)], data_.byte(root, i));
    }
    expect("guard of broadcast", slices_.count, data.back(), kGuard);
    std::vector<unsigned char> sent = data, received(data.size(), kGuard);
    if (ranks_.rank() != root) std::ranges::fill(sent, kGuard);
    ranks_.broadcast(received.data(), sent.data(), slices_.count, root, "the seed", {});
    for (size_t i = 0; i < data.size(); ++i) {
      expect("broadcast out of place", static_cast<int64_t>(i), received[i], data[i]);
    }
  }

  void all_reduce() {
    auto data = data_.values(ranks_.rank(), slices_.count);
    data.push_back(7);
    ranks_.all_reduce(data.data(), slices_.count, "the loss", {});
    for (int64_t i = 0; i < slices_.count; ++i) {
      expect_sum("all_reduce", i, data[static_cast<size_t>(i)]);
    }
    expect("guard of all_reduce", slices_.count, data.back(), 7.0f);
    const auto sent = data_.values(ranks_.rank(), slices_.count);
    std::vector<float> input = sent, sums(data.size(), 7);
    input.push_back(7);  // data() is never null
    ranks_.all_reduce(sums.data(), input.data(), slices_.count, "the loss", {});
    for (size_t i = 0; i < sent.size(); ++i) {
      expect_sum("all_reduce out of place", static_cast<int64_t>(i), sums[i]);
      expect("input of all_reduce", static_cast<int64_t>(i), input[i], sent[i]);
    }
    expect("guard of all_reduce", slices_.count, sums.back(), 7.0f);
  }

  void reduce_scatter() {
    auto data = data_.values(ranks_.rank(), slices_.count);
    data.push_back(7);
    ranks_.reduce_scatter(data.data(), slices_, "the gradients", {});
    const auto before = data_.values(ranks_.rank(), slices_.count);
    for (int64_t i = 0; i < slices_.count; ++i) {
      const auto at = static_cast<size_t>(i);
      if (slices_.begin(ranks_.rank()) <= i && i < slices_.end(ranks_.rank())) {
        expect_sum("reduce_scatter", i, data[at]);
      } else {
        expect("another slice of reduce_scatter", i, data[at], before[at]);
      }
    }
    expect("guard of reduce_scatter", slices_.count, data.back(), 7.0f);
    std::vector<float> input = before;
    input.push_back(7);  // data() is never null
    const int64_t begin = slices_.begin(ranks_.rank()), own = slices_.size(ranks_.rank());
    std::vector<float> sums(static_cast<size_t>(own + 1), 7);
    ranks_.reduce_scatter(sums.data(), input.data(), slices_, "the gradients", {});
    for (int64_t i = 0; i < own; ++i) {
      expect_sum("reduce_scatter out of place", begin + i, sums[static_cast<size_t>(i)]);
    }
    expect("guard of reduce_scatter", own, sums.back(), 7.0f);
    for (size_t i = 0; i < before.size(); ++i) {
      expect("input of reduce_scatter", static_cast<int64_t>(i), input[i], before[i]);
    }
  }

  Communicator& ranks_;
  RankSlices slices_;
  RankData data_;
  std::string error_;
};

inline constexpr int64_t kCollectiveCounts[] = {0, 1, 63, 64, 65, 129, 1000, 4097};

}  // namespace quern::testing_support
