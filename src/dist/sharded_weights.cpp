#include "dist/sharded_weights.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "base/first_line.h"
#include "dist/host_name.h"
#include "dist/layout.h"
#include "dist/rank_memory.h"
#include "dist/rank_team.h"
#include "kernels/copy.h"
#include "tensor/factory.h"
#include "tensor/visit.h"

namespace quern {

namespace {

constexpr int64_t kFloatBytes = sizeof(float);

// Weights as ops read them, on a stream of the device.
void convert(const Tensor& to, const Tensor& from, kernels::cuda::Stream stream) {
  on_device(to.device(), [&](auto current) {
    if constexpr (std::is_same_v<decltype(current), kernels::cuda::Stream>) {
      current.handle = stream.handle;
    }
    const float* const values = from.data<float>();
    if (to.dtype() == DType::bf16) {
      split_weights(to.data<bfloat16>(), nullptr, values, to.numel(), current);
    } else {
      accumulate(to.data<float>(), values, to.numel(), false, current);
    }
  });
}

}  // namespace

ShardedWeights::ShardedWeights(ParameterArena& arena, Communicator& ranks, BucketExchange exchange)
    : arena_(arena),
      ranks_(ranks),
      buckets_(make_buckets(arena.table(), exchange)),
      turns_(arena.layout().weights_in_turns),
      awaited_(buckets_.size(), true) {
  QUERN_CHECK(arena.is_shared_out(), "sharded weights: this arena has all weights on every rank");
  for (size_t i = 0; i < buckets_.size(); ++i) {
    if (buckets_[i].is_block()) blocks_.push_back(i);
  }
  // The parameters that are read in FP32 under bf16, cut at the ranks' slices.
  for (const ParameterEntry& entry : arena.table().entries()) {
    for (const Bucket& bucket : buckets_) {
      if (!arena.vectors().defined() || !entry.fp32 || !bucket.holds(entry.begin)) continue;
      const RankSlices slices = bucket.slices(ranks.size());
      for (int owner = 0; owner < ranks.size(); ++owner) {
        const int64_t begin = std::max(entry.begin, bucket.begin + slices.begin(owner));
        const int64_t end = std::min(entry.end(), bucket.begin + slices.end(owner));
        if (begin >= end) continue;
        vectors_.push_back(
            {arena.vector_places().of(begin) * kFloatBytes, (end - begin) * kFloatBytes, owner});
      }
      const auto here = static_cast<size_t>(&bucket - buckets_.data());
      first_vector_ = std::min(first_vector_, here);
    }
  }
  if (Context::current().is_dry()) return;
  for (Parameter* parameter : arena.parameters()) {
    for (size_t i = 0; i < buckets_.size(); ++i) {
      if (!buckets_[i].holds(parameter->begin())) continue;
      parameter->leaf()->on_use = [this, i] { on_use(i); };
    }
  }
  if (!arena.values().device().is_cuda()) return;
  register_with(&ranks, {arena.copies()});
  side_ = cuda::OwnedStream::create();
  forked_ = cuda::Event(cuda::EventKind::order);
  for (size_t i = 0; i < buckets_.size(); ++i) arrived_.emplace_back(cuda::EventKind::order);
}

ShardedWeights::~ShardedWeights() {
  for (Parameter* parameter : arena_.parameters()) parameter->leaf()->on_use = nullptr;
  side_.finish();
}

void ShardedWeights::begin_micro_batch(bool first) {
  if (!first && !turns_) return;
  fork();
  next_ = 0;
  first_ = first;
  ahead_ = turns_ ? 1 : 0;
  in_forward_ = running_ = true;
  gather_ahead();
}

// Gathers the forward's buckets up to turn ahead_, except those in place since the previous
// micro-batch. It stays one block ahead even where all have places: the forward would otherwise
// wait until the host has submitted every copy.
void ShardedWeights::gather_ahead() {
  for (; next_ < buckets_.size() && buckets_[next_].turn <= ahead_; ++next_) {
    const bool there = !buckets_[next_].is_block() || in_place(next_) == next_;
    if (!first_ && there) continue;
    if (next_ == first_vector_ && first_) share_vectors(side_);
    gather_home(next_, side_);
  }
}

void ShardedWeights::on_use(size_t bucket) {
  const int next_turn = buckets_[bucket].turn + 1;
  if (in_forward_ && buckets_[bucket].is_block() && next_turn > ahead_) {
    ahead_ = next_turn;
    if (turns_) fork();  // it takes the place of the block before this one
    gather_ahead();
  }
  QUERN_CHECK(!in_forward_ || bucket < next_, buckets_[bucket].name,
              ": read before the blocks in front of it, so its weights are not on their way");
  if (running_) bring(bucket);
  wait_for(bucket);
}

// Gathers a block that is not in its place: several are recomputed before their backward.
void ShardedWeights::bring(size_t bucket) {
  if (!turns_ || !buckets_[bucket].is_block() || in_place(bucket) == bucket) return;
  fork();
  gather_home(bucket, side_);
}

void ShardedWeights::enter_backward(size_t bucket) {
  in_forward_ = false;
  const int turn = buckets_[bucket].turn;
  if (turn > 0) bring(blocks_[static_cast<size_t>(turn - 1)]);  // replaces the block behind it
}

void ShardedWeights::leave_backward(size_t bucket) {
  const int turn = buckets_[bucket].turn;
  if (turns_ && turn > 0) wait_for(blocks_[static_cast<size_t>(turn - 1)]);
}

void ShardedWeights::end_micro_batch() {
  in_forward_ = running_ = false;
  for (size_t i = 0; i < buckets_.size(); ++i) wait_for(i);
}

// Later work on the side stream comes after the work enqueued so far.
void ShardedWeights::fork() {
  if (!side_) return;
  forked_.order(Context::current().cuda_stream(), side_);
}

void ShardedWeights::wait_for(size_t bucket) {
  if (awaited_[bucket]) return;
  awaited_[bucket] = true;
  arrived_[bucket].wait(Context::current().cuda_stream());
}

// To its place in arena.copies().
void ShardedWeights::gather_home(size_t bucket, kernels::cuda::Stream stream) {
  gather(bucket, arena_.copies(), place_of(buckets_[bucket]), stream);
  if (buckets_[bucket].is_block()) in_place(bucket) = bucket;
  if (!side_) return;
  arrived_[bucket].record(stream);
  awaited_[bucket] = false;
}

void ShardedWeights::gather(size_t bucket, const Tensor& to, int64_t place,
                            kernels::cuda::Stream stream) {
  const Bucket& b = buckets_[bucket];
  const RankSlices slices = b.slices(ranks_.size());
  const int64_t begin = slices.begin(ranks_.rank()), own = slices.size(ranks_.rank());
  if (own > 0) {
    const int64_t source = arena_.layout().values.of(b.begin + begin);
    convert(to.slice(0, place + begin, place + begin + own),
            arena_.values().slice(0, source, source + own), stream);
  }
  const int64_t width = size_of(to.dtype());
  ranks_.gather(static_cast<char*>(to.raw_data()) + place * width, slices.filled(), width,
                cat("the weights of ", b.name).c_str(), stream);
}

void ShardedWeights::share_vectors(kernels::cuda::Stream stream) {
  if (vectors_.empty()) return;
  for (const Placement::Piece& vector : arena_.vector_places().pieces()) {
    arena_.layout().values.for_each_part(
        vector.begin, vector.end, [&](int64_t begin, int64_t end, int64_t from) {
          const int64_t to = arena_.vector_places().of(begin), count = end - begin;
          convert(arena_.vectors().slice(0, to, to + count),
                  arena_.values().slice(0, from, from + count), stream);
        });
  }
  ranks_.share(arena_.vectors().raw_data(), vectors_, "the weights in FP32", stream);
}

Placement ShardedWeights::place_alone(size_t bucket) const {
  return placed({buckets_[bucket]}, false, ranks_.size());
}

std::unique_ptr<ShardedWeights::Whole> ShardedWeights::whole(std::string& lacking) {
  std::vector<Tensor> blocks;
  const auto take_memory = [&]() -> std::string {
    try {
      for (const size_t i : blocks_) {
        blocks.push_back(Tensor::empty({place_alone(i).size()}, arena_.copies().dtype(),
                                       {"parameters (whole)", MemoryCategory::parameters}));
      }
    } catch (const OutOfMemory& error) {
      blocks.clear();  // the collective needs memory too
      return cat(rank_text(ranks_.rank(), ranks_.size()), ": ", first_line(error.what()));
    }
    return "";
  };
  if (turns_) {
    const auto failures = RankTeam(&ranks_).on_each(take_memory, "memory for all weights");
    for (const std::string& failure : failures) {
      if (lacking.empty()) lacking = failure;
    }
    if (!lacking.empty()) return nullptr;
  }
  return std::unique_ptr<Whole>(new Whole(*this, std::move(blocks)));
}

ShardedWeights::Whole::Whole(ShardedWeights& weights, std::vector<Tensor> blocks)
    : weights_(weights), blocks_(std::move(blocks)) {
  if (weights.complete_ && !weights.turns_) return;
  const kernels::cuda::Stream stream = Context::current().cuda_stream();
  weights.share_vectors(stream);
  size_t block = 0;
  for (size_t i = 0; i < weights.buckets_.size(); ++i) {
    const Bucket& bucket = weights.buckets_[i];
    if (!weights.turns_ || !bucket.is_block()) {
      weights.gather(i, weights.arena_.copies(), weights.place_of(bucket), stream);
      continue;
    }
    weights.gather(i, blocks_[block++], 0, stream);
  }
  for (size_t i = 0; i < blocks_.size(); ++i) {  // not before all have been gathered
    weights.arena_.read_weights_from(blocks_[i], weights.place_alone(weights.blocks_[i]));
  }
  weights.complete_ = true;
}

ShardedWeights::Whole::~Whole() {
  if (blocks_.empty()) return;
  for (const size_t i : weights_.blocks_) {
    const Bucket& bucket = weights_.buckets_[i];
    Placement place;
    place.add(bucket.begin, bucket.end, weights_.place_of(bucket));
    weights_.arena_.read_weights_from(weights_.arena_.copies(), place);
  }
}

Tensor ShardedWeights::gathered(const OptimizerBuffer& share) const {
  const DType dtype = share.data.dtype();
  int64_t size = 0;
  for (const NamedSlice& slice : share.slices) size += slice.shape.numel();
  const Tensor slices = Tensor::empty({size}, dtype, kCpu, "state of all ranks");
  // Calls f(a part of the slices, its first element in the arena) for elements in [begin, end).
  const auto for_parts = [&](int64_t begin, int64_t end, const auto& f) {
    int64_t place = 0;
    for (const NamedSlice& slice : share.slices) {
      const int64_t numel = slice.shape.numel();
      const int64_t from = std::max(begin, slice.begin), to = std::min(end, slice.begin + numel);
      const int64_t first = place + from - slice.begin;
      if (from < to) f(slices.slice(0, first, first + to - from), from);
      place += numel;
    }
  };
  for (const Bucket& bucket : buckets_) {
    const Tensor part = Tensor::empty({bucket.size()}, dtype, "state of a bucket");
    copy_from_places(part, share.data, *share.share, bucket.begin);
    ranks_.gather(part.raw_data(), bucket.slices(ranks_.size()),
                  static_cast<int64_t>(size_of(dtype)), cat("the state of ", bucket.name).c_str(),
                  Context::current().cuda_stream());
    for_parts(bucket.begin, bucket.end, [&](const Tensor& to, int64_t from) {
      copy(to, part.slice(0, from - bucket.begin, from - bucket.begin + to.numel()));
    });
  }
  // Every rank has the frozen parameters.
  for_parts(arena_.trainable(), arena_.size(), [&](const Tensor& to, int64_t from) {
    copy_from_places(to, share.data, *share.share, from);
  });
  return slices;
}

}  // namespace quern
