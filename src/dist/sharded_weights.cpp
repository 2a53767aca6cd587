#include "dist/sharded_weights.h"

#include <algorithm>
#include <utility>

#include "tensor/factory.h"

namespace quern {

namespace {

constexpr int64_t kFloatBytes = sizeof(float);

// The parameters that are read in FP32 under every precision, cut at the ranks' slices.
std::vector<RankPiece> fp32_pieces(const ParameterTable& table, const std::vector<Bucket>& buckets,
                                   int ranks) {
  std::vector<RankPiece> pieces;
  for (const ParameterEntry& entry : table.entries()) {
    for (const Bucket& bucket : buckets) {
      if (!entry.fp32 || !bucket.holds(entry.begin)) continue;
      const RankSlices slices = bucket.slices(ranks);
      for (int owner = 0; owner < ranks; ++owner) {
        const int64_t begin = std::max(entry.begin, bucket.begin + slices.begin(owner));
        const int64_t end = std::min(entry.end(), bucket.begin + slices.end(owner));
        if (begin < end) {
          pieces.push_back({begin * kFloatBytes, (end - begin) * kFloatBytes, owner});
        }
      }
    }
  }
  return pieces;
}

}  // namespace

ShardedWeights::ShardedWeights(ParameterArena& arena, Communicator& ranks, BucketExchange exchange)
    : arena_(arena),
      ranks_(ranks),
      buckets_(make_buckets(arena.table(), exchange)),
      share_(share_of(buckets_, ranks.size(), ranks.rank())),
      awaited_(buckets_.size(), true) {
  if (arena.copies().defined()) fp32_ = fp32_pieces(arena.table(), buckets_, ranks.size());
  if (!arena.values().device().is_cuda() || Context::current().is_dry()) return;
  side_ = cuda::OwnedStream::create();
  forked_ = cuda::Event(cuda::EventKind::order);
  for (size_t i = 0; i < buckets_.size(); ++i) {
    arrived_.emplace_back(cuda::EventKind::order);
    for (Parameter* parameter : arena.parameters()) {
      if (!buckets_[i].holds(parameter->begin())) continue;
      parameter->leaf()->on_use = [this, i] { wait_for(i); };
    }
  }
}

ShardedWeights::~ShardedWeights() {
  for (Parameter* parameter : arena_.parameters()) parameter->leaf()->on_use = nullptr;
  side_.finish();
}

void ShardedWeights::begin_forward() {
  if (side_) {
    forked_.record(Context::current().cuda_stream());
    forked_.wait(side_);
  }
  share_fp32(side_);
  for (size_t i = 0; i < buckets_.size(); ++i) {
    const Bucket& bucket = buckets_[i];
    const std::string name = cat("the weights of ", bucket.name);
    const RankSlices slices = bucket.slices(ranks_.size());
    if (arena_.copies().defined()) {
      ranks_.gather(arena_.copies().data<bfloat16>() + bucket.begin, slices, sizeof(bfloat16),
                    name.c_str(), side_);
    } else {
      ranks_.gather(arena_.values().data<float>() + bucket.begin, slices, kFloatBytes, name.c_str(),
                    side_);
    }
    if (!side_) continue;
    arrived_[i].record(side_);
    awaited_[i] = false;
  }
}

void ShardedWeights::share_fp32(kernels::cuda::Stream stream) {
  if (fp32_.empty()) return;
  ranks_.share(arena_.values().raw_data(), fp32_, "the weights in FP32", stream);
}

void ShardedWeights::wait_for(size_t bucket) {
  if (awaited_[bucket]) return;
  awaited_[bucket] = true;
  arrived_[bucket].wait(Context::current().cuda_stream());
}

void ShardedWeights::end_forward() {
  for (size_t i = 0; i < buckets_.size(); ++i) wait_for(i);
}

void ShardedWeights::complete() {
  if (std::exchange(complete_, true)) return;
  for (const Bucket& bucket : buckets_) {
    ranks_.gather(arena_.values().data<float>() + bucket.begin, bucket.slices(ranks_.size()),
                  kFloatBytes, cat("the weights of ", bucket.name).c_str(),
                  Context::current().cuda_stream());
  }
  arena_.refresh_copies();
}

std::vector<OptimizerBuffer> ShardedWeights::gathered(
    const std::vector<OptimizerBuffer>& shares) const {
  std::vector<OptimizerBuffer> all;
  for (const OptimizerBuffer& share : shares) {
    OptimizerBuffer whole{share.prefix, {}, share.slices};
    if (ranks_.rank() == 0) {
      whole.data = Tensor::empty({arena_.trainable()}, DType::f32, kCpu, "optimizer state");
    }
    int64_t at = 0;
    for (const Bucket& bucket : buckets_) {
      const RankSlices slices = bucket.slices(ranks_.size());
      const int64_t own = slices.size(ranks_.rank()), begin = slices.begin(ranks_.rank());
      const Tensor part = Tensor::empty({bucket.size()}, DType::f32, "optimizer state");
      if (own > 0) copy(part.slice(0, begin, begin + own), share.data.slice(0, at, at + own));
      at += own;
      ranks_.gather(part.raw_data(), slices, kFloatBytes,
                    cat("the optimizer state of ", bucket.name).c_str(),
                    Context::current().cuda_stream());
      if (whole.data.defined()) copy(whole.data.slice(0, bucket.begin, bucket.end), part);
    }
    all.push_back(whole);
  }
  return all;
}

}  // namespace quern
