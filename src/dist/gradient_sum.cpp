#include "dist/gradient_sum.h"

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/rank_sum.h"
#include "tensor/cuda_runtime.h"
#include "tensor/factory.h"
#include "tensor/visit.h"

namespace quern {

namespace {

constexpr int64_t kScalars = 64;  // a rank's slot for sum_scalars: 256 bytes

// A range of the arena's gradients that is summed as one: a block, or the parameters between
// blocks.
struct Bucket {
  std::string name;  // in messages
  int64_t begin = 0, end = 0;
  int parameters = 0, missing = 0;  // missing: whose gradient is not complete in this micro-batch
  int64_t sums = 0;                 // the place of this rank's slice in the running sums

  int64_t size() const { return end - begin; }
};

// One bucket for each block and each range around blocks, or one for all.
std::vector<Bucket> make_buckets(const ParameterTable& table, GradientExchange exchange) {
  std::vector<Bucket> buckets;
  if (exchange == GradientExchange::naive) {
    buckets.push_back({"all gradients", 0, table.trainable()});
  } else {
    int64_t at = 0;
    const auto up_to = [&](int64_t end, const std::string& name) {
      if (end > at) buckets.push_back({name, std::exchange(at, end), end});
    };
    for (size_t i = 0; i < table.block_count(); ++i) {
      const ParameterTable::Range& block = table.block(i);
      if (block.begin == block.end) continue;
      up_to(block.begin, cat("the gradients before block ", i));
      up_to(block.end, cat("the gradients of block ", i));
    }
    up_to(table.trainable(), "the gradients after the blocks");
  }
  for (const ParameterEntry& entry : table.entries()) {
    for (Bucket& bucket : buckets) {
      if (bucket.begin <= entry.begin && entry.begin < bucket.end) ++bucket.parameters;
    }
  }
  return buckets;
}

// In the order of micro-batches: each rank receives its slice of every rank's gradients, adds them
// to its running sums, and after the last micro-batch shows the result to all. One rank has all
// slices. In any order: gradients add up in the arena, and one all-reduce follows the last.
class BucketSum final : public GradientSum {
 public:
  BucketSum(ParameterArena& arena, Communicator* ranks, GradientExchange exchange)
      : arena_(arena),
        ranks_(ranks),
        size_(ranks == nullptr ? 1 : ranks->size()),
        rank_(ranks == nullptr ? 0 : ranks->rank()),
        deterministic_(Context::current().options.deterministic),
        overlapped_(exchange == GradientExchange::overlapped && size_ > 1),
        buckets_(make_buckets(arena.table(), size_ > 1 ? exchange : GradientExchange::naive)) {
    if (size_ == 1) return;
    int64_t received = 0;
    for (const Bucket& bucket : buckets_) {
      received = std::max(received, size_ * RankSlices(bucket.size(), size_).each);
    }
    if (deterministic_) received_ = buffer(received, "gradients of other ranks");
    scalars_ = buffer(size_ * kScalars, "losses of the ranks");
    if (overlapped_) watch();
    if (!arena.grads().device().is_cuda() || Context::current().is_dry()) return;
    side_ = cuda::OwnedStream::create();
    forked_ = cuda::Event(cuda::EventKind::order);
    joined_ = cuda::Event(cuda::EventKind::order);
  }

  ~BucketSum() override {
    for (Parameter* parameter : arena_.parameters()) parameter->leaf()->on_ready = nullptr;
    side_.finish();
  }

  void prepare(int64_t count) override {
    if (!deterministic_ || count == 1 || sums_.defined()) return;
    int64_t size = 0;
    for (Bucket& bucket : buckets_) {
      bucket.sums = std::exchange(size, size + RankSlices(bucket.size(), size_).each);
    }
    sums_ = buffer(size, "gradient sums");
  }

  void begin(const MicroBatch& part) override {
    part_ = part;
    if (part.first() || ordered()) arena_.zero_grad();
    for (Bucket& bucket : buckets_) bucket.missing = bucket.parameters;
  }

  void finish(const Tensor& sums, const Tensor& values) override {
    if (sums_now()) {
      arena_.finish_gradients();
      for (const Bucket& bucket : buckets_) {
        if (!overlapped_ || bucket.missing > 0) sum(bucket);
      }
    }
    sum_scalars(sums, values);
    if (!side_) return;
    joined_.record(side_);
    joined_.wait(Context::current().cuda_stream());
  }

 private:
  static Tensor buffer(int64_t count, const char* name) {
    const Tensor made = Tensor::empty({count}, DType::f32, {name, MemoryCategory::gradients});
    fill(made, 0.0);
    return made;
  }

  // Whether each micro-batch's gradients are computed anew and then added.
  bool ordered() const { return deterministic_ && (size_ > 1 || part_.count > 1); }
  bool sums_now() const { return ordered() || (size_ > 1 && part_.last()); }

  // Sums a bucket as soon as the backward has written its last gradient.
  void watch() {
    for (Parameter* parameter : arena_.parameters()) {
      for (Bucket& bucket : buckets_) {
        if (parameter->begin() < bucket.begin || parameter->begin() >= bucket.end) continue;
        parameter->leaf()->on_ready = [this, &bucket](Leaf& leaf) {
          if (leaf.fresh) fill(leaf.grad, 0.0);  // no gradient reached it
          leaf.fresh = false;
          QUERN_CHECK(--bucket.missing >= 0, leaf.name,
                      ": its gradient is complete for the second ", "time in a backward");
          if (bucket.missing == 0 && sums_now()) sum(bucket);
        };
      }
    }
  }

  void sum(const Bucket& bucket) {
    float* const data = arena_.grads().data<float>() + bucket.begin;
    const char* const name = bucket.name.c_str();
    const RankSlices slices(bucket.size(), size_);
    fork();
    if (!deterministic_) {
      return collective([&] { ranks_->all_reduce(data, bucket.size(), name, side_); });
    }
    const float* parts = data;
    if (size_ > 1) {
      float* const received = received_.data<float>();
      collective([&] { ranks_->exchange(received, data, slices, name, side_); });
      parts = received;
    }
    float* const running = sums_.defined() ? sums_.data<float>() + bucket.sums : nullptr;
    float* const out = part_.last() ? data + slices.begin(rank_) : running;
    add_parts(out, part_.first() ? nullptr : running, parts, slices.each, slices.size(rank_));
    if (size_ == 1 || !part_.last()) return;
    collective([&] { ranks_->gather(data, slices, sizeof(float), name, side_); });
  }

  void sum_scalars(const Tensor& sums, const Tensor& values) {
    const Tensor* parts = &values;
    if (size_ > 1) {
      const int64_t mine = rank_ * kScalars;
      copy(scalars_.slice(0, mine, mine + values.numel()), values);
      fork();
      collective([&] {
        ranks_->gather(scalars_.raw_data(), RankSlices(size_ * kScalars, size_), sizeof(float),
                       "the losses", side_);
      });
      parts = &scalars_;
    }
    add_parts(sums.data<float>(), part_.first() ? nullptr : sums.data<float>(),
              parts->data<float>(), kScalars, values.numel());
  }

  template <class F>
  void collective(F&& call) {
    if (!Context::current().is_dry()) call();
  }

  // Later work on the side stream comes after the work enqueued so far.
  void fork() {
    if (!side_) return;
    forked_.record(Context::current().cuda_stream());
    forked_.wait(side_);
  }

  void add_parts(float* out, const float* before, const float* parts, int64_t stride, int64_t n) {
    if (n == 0) return;
    on_device(arena_.grads().device(), [&](auto stream) {
      if constexpr (std::is_same_v<decltype(stream), kernels::cuda::Stream>) {
        if (side_) stream.handle = static_cast<kernels::cuda::Stream>(side_).handle;
      }
      rank_sum(out, before, parts, size_, stride, n, stream);
    });
  }

  ParameterArena& arena_;
  Communicator* ranks_;
  int size_, rank_;
  bool deterministic_, overlapped_;
  std::vector<Bucket> buckets_;
  Tensor sums_;             // of this rank's slices over the micro-batches so far
  Tensor received_;         // one bucket's slices from all ranks
  Tensor scalars_;          // a slot for each rank
  cuda::OwnedStream side_;  // of the collectives and their sums, on GPUs
  cuda::Event forked_, joined_;
  MicroBatch part_;
};

}  // namespace

std::unique_ptr<GradientSum> make_gradient_sum(ParameterArena& arena, Communicator* ranks,
                                               GradientExchange exchange) {
  return std::make_unique<BucketSum>(arena, ranks, exchange);
}

}  // namespace quern
