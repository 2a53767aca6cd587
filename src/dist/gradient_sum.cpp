#include "dist/gradient_sum.h"

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/optimizer.h"
#include "kernels/rank_sum.h"
#include "tensor/cuda_runtime.h"
#include "tensor/factory.h"
#include "tensor/visit.h"

namespace quern {

namespace {

constexpr int64_t kScalars = 64;  // a rank's slot for sum_scalars: 256 bytes

struct OpenBucket : Bucket {
  int parameters = 0, missing = 0;  // missing: whose gradient is not complete in this micro-batch
  int64_t place = 0;  // in the running sums: this rank's slice; in the fresh gradients: the bucket
};

std::vector<OpenBucket> open_buckets(const ParameterTable& table, BucketExchange exchange) {
  std::vector<OpenBucket> buckets;
  for (Bucket& bucket : make_buckets(table, exchange)) buckets.push_back({std::move(bucket)});
  for (const ParameterEntry& entry : table.entries()) {
    for (OpenBucket& bucket : buckets) bucket.parameters += bucket.holds(entry.begin) ? 1 : 0;
  }
  return buckets;
}

// In the order of micro-batches: each rank receives its slice of every rank's gradients, adds them
// to its running sums, and after the last micro-batch shows the result to all, or with `partials`
// the norm's partial sums alone. One rank computes the gradients of later micro-batches in memory
// that blocks use in turn, and adds a bucket to the arena as soon as it is complete. In any order:
// gradients add up in the arena, and one all-reduce or reduce-scatter follows the last.
class BucketSum final : public GradientSum {
 public:
  BucketSum(ParameterArena& arena, Communicator* ranks, BucketExchange exchange, Tensor partials)
      : arena_(arena),
        ranks_(ranks),
        size_(ranks == nullptr ? 1 : ranks->size()),
        rank_(ranks == nullptr ? 0 : ranks->rank()),
        deterministic_(Context::current().options.deterministic),
        overlapped_(exchange == BucketExchange::overlapped || size_ == 1),
        partials_(std::move(partials)),
        buckets_(open_buckets(arena.table(), size_ > 1 ? exchange : BucketExchange::overlapped)) {
    if (overlapped_) watch();
    if (size_ == 1) return;
    int64_t received = 0;
    for (const OpenBucket& bucket : buckets_) {
      received = std::max(received, size_ * bucket.slices(size_).each);
    }
    if (deterministic_) received_ = buffer(received, "gradients of other ranks");
    scalars_ = buffer(size_ * kScalars, "losses of the ranks");
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
    if (!deterministic_ || count == 1 || sums_.defined() || fresh_.defined()) return;
    if (size_ == 1) return place_fresh();
    int64_t size = 0;
    for (OpenBucket& bucket : buckets_) {
      bucket.place = std::exchange(size, size + bucket.slices(size_).each);
    }
    sums_ = buffer(size, "gradient sums");
  }

  void begin(const MicroBatch& part) override {
    part_ = part;
    running_ = true;
    if (part.first() || ordered()) arena_.zero_grad();
    if (writes_fresh()) write_to(fresh_);
    for (OpenBucket& bucket : buckets_) bucket.missing = bucket.parameters;
  }

  void finish(const Tensor& sums, const Tensor& values) override {
    if (sums_now()) {
      arena_.finish_gradients();
      for (const OpenBucket& bucket : buckets_) {
        if (!overlapped_ || bucket.missing > 0) sum(bucket);
      }
    }
    running_ = false;
    if (writes_fresh()) write_to(arena_.grads());
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
  bool writes_fresh() const { return size_ == 1 && ordered() && !part_.first(); }
  bool sums_now() const { return ordered() || (size_ > 1 && part_.last()); }

  // Sums a bucket as soon as the backward has written its last gradient.
  void watch() {
    for (Parameter* parameter : arena_.parameters()) {
      for (OpenBucket& bucket : buckets_) {
        if (!bucket.holds(parameter->begin())) continue;
        parameter->leaf()->on_ready = [this, &bucket](Leaf& leaf) {
          if (!running_) return;
          if (leaf.fresh) fill(leaf.grad, 0.0);  // no gradient reached it
          leaf.fresh = false;
          QUERN_CHECK(--bucket.missing >= 0, leaf.name,
                      ": its gradient is complete for the second ", "time in a backward");
          check_turn(bucket);
          if (bucket.missing == 0 && sums_now()) sum(bucket);
        };
      }
    }
  }

  // Blocks take turns in two places, so the backward of one may begin before the next one's
  // gradients are added.
  void place_fresh() {
    int64_t block = 0, size = 0;
    for (const OpenBucket& bucket : buckets_) {
      if (bucket.is_block) block = std::max(block, bucket.size());
    }
    size = 2 * block;
    int64_t turn = 0;
    for (OpenBucket& bucket : buckets_) {
      bucket.place =
          bucket.is_block ? turn++ % 2 * block : std::exchange(size, size + bucket.size());
    }
    fresh_ = buffer(size, "gradients of a micro-batch");
  }

  // Blocks of one place must not have gradients under way at the same time.
  void check_turn(const OpenBucket& bucket) const {
    if (!fresh_.defined() || !bucket.is_block) return;
    for (const OpenBucket& other : buckets_) {
      const bool is_open = other.missing > 0 && other.missing < other.parameters;
      QUERN_CHECK(!is_open || !other.is_block || other.place != bucket.place || &other == &bucket,
                  "the gradients of ", bucket.name, " are computed before those of ", other.name,
                  " are complete");
    }
  }

  // Where the next backward writes gradients: the arena's, or fresh_.
  void write_to(const Tensor& buffer) {
    for (const OpenBucket& bucket : buckets_) {
      const int64_t moved = &buffer == &fresh_ ? bucket.place - bucket.begin : 0;
      for (Parameter* parameter : arena_.parameters()) {
        if (!bucket.holds(parameter->begin())) continue;
        parameter->leaf()->grad = ParameterArena::slice(
            buffer, {parameter->name(), parameter->shape(), parameter->begin() + moved});
      }
    }
  }

  void sum(const OpenBucket& bucket) {
    float* const data = arena_.grads().data<float>() + bucket.begin;
    if (size_ == 1) {
      if (part_.first()) return;
      return add_parts(data, data, fresh_.data<float>() + bucket.place, 0, bucket.size());
    }
    const RankSlices slices = bucket.slices(size_);
    const std::string name = cat("the gradients of ", bucket.name);
    const char* const what = name.c_str();
    fork();
    if (deterministic_) {
      float* const received = received_.data<float>();
      ranks_->exchange(received, data, slices, what, side_);
      float* const running = sums_.defined() ? sums_.data<float>() + bucket.place : nullptr;
      float* const out = part_.last() ? data + slices.begin(rank_) : running;
      add_parts(out, part_.first() ? nullptr : running, received, slices.each, slices.size(rank_));
      if (!part_.last()) return;
      if (!partials_.defined()) ranks_->gather(data, slices, sizeof(float), what, side_);
    } else if (partials_.defined()) {
      ranks_->reduce_scatter(data, slices, what, side_);
    } else {
      ranks_->all_reduce(data, bucket.size(), what, side_);
    }
    if (partials_.defined()) share_norm(bucket, slices);
  }

  // Every rank gets the partial sums of the bucket's norm.
  void share_norm(const OpenBucket& bucket, const RankSlices& slices) {
    on_side_stream([&](auto stream) {
      const int64_t width = norm_partial_bytes(stream);
      const auto place = [&](int64_t element) {
        return static_cast<char*>(partials_.raw_data()) + element / kernels::kNormChunk * width;
      };
      const int64_t own = bucket.begin + slices.begin(rank_);
      sum_squares(place(own), arena_.grads().data<float>() + own, slices.size(rank_), stream);
      RankSlices chunks(kernels::norm_chunks(slices.count), size_);
      chunks.each = slices.each / kernels::kNormChunk;
      ranks_->gather(place(bucket.begin), chunks, width, cat("the norm of ", bucket.name).c_str(),
                     side_);
    });
  }

  void sum_scalars(const Tensor& sums, const Tensor& values) {
    const Tensor* parts = &values;
    if (size_ > 1) {
      const int64_t mine = rank_ * kScalars;
      copy(scalars_.slice(0, mine, mine + values.numel()), values);
      fork();
      ranks_->gather(scalars_.raw_data(), RankSlices(size_ * kScalars, size_), sizeof(float),
                     "the losses", side_);
      parts = &scalars_;
    }
    add_parts(sums.data<float>(), part_.first() ? nullptr : sums.data<float>(),
              parts->data<float>(), kScalars, values.numel());
  }

  // Later work on the side stream comes after the work enqueued so far.
  void fork() {
    if (!side_) return;
    forked_.record(Context::current().cuda_stream());
    forked_.wait(side_);
  }

  void add_parts(float* out, const float* before, const float* parts, int64_t stride, int64_t n) {
    if (n == 0) return;
    on_side_stream([&](auto stream) { rank_sum(out, before, parts, size_, stride, n, stream); });
  }

  template <class F>
  void on_side_stream(const F& f) {
    on_device(arena_.grads().device(), [&](auto stream) {
      if constexpr (std::is_same_v<decltype(stream), kernels::cuda::Stream>) {
        if (side_) stream.handle = static_cast<kernels::cuda::Stream>(side_).handle;
      }
      f(stream);
    });
  }

  ParameterArena& arena_;
  Communicator* ranks_;
  int size_, rank_;
  bool deterministic_, overlapped_;
  Tensor partials_;  // of the norm, if the ranks share the update
  std::vector<OpenBucket> buckets_;
  Tensor sums_;             // of this rank's slices over the micro-batches so far
  Tensor fresh_;            // gradients of one rank's later micro-batches
  Tensor received_;         // one bucket's slices from all ranks
  Tensor scalars_;          // a slot for each rank
  cuda::OwnedStream side_;  // of the collectives and their sums, on GPUs
  cuda::Event forked_, joined_;
  MicroBatch part_;
  bool running_ = false;  // between begin() and finish()
};

}  // namespace

std::unique_ptr<GradientSum> make_gradient_sum(ParameterArena& arena, Communicator* ranks,
                                               BucketExchange exchange,
                                               const Tensor& norm_partials) {
  return std::make_unique<BucketSum>(arena, ranks, exchange, norm_partials);
}

}  // namespace quern
