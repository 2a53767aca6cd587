#include "dist/gradient_sum.h"

#include <algorithm>
#include <ranges>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "dist/layout.h"
#include "dist/rank_memory.h"
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
  int64_t own = 0;                  // of this rank's slice in the running sums
  bool whole = false;               // all ranks have this step's sums
  cuda::Event moved;                // its gradients' memory may be written again
};

std::vector<OpenBucket> open_buckets(const ParameterTable& table, BucketExchange exchange) {
  std::vector<OpenBucket> buckets;
  for (Bucket& bucket : make_buckets(table, exchange)) {
    buckets.emplace_back();
    static_cast<Bucket&>(buckets.back()) = std::move(bucket);
  }
  for (const ParameterEntry& entry : table.entries()) {
    for (OpenBucket& bucket : buckets) bucket.parameters += bucket.holds(entry.begin) ? 1 : 0;
  }
  return buckets;
}

// Each rank receives its slice of every rank's gradients and adds them to its running sums. After
// the last micro-batch all ranks get the norm's partial sums and, unless they share out the arena,
// the sums. One rank computes the gradients of later micro-batches in memory that blocks use in
// turn, and adds a bucket to the arena as soon as it is complete. If not deterministic, a rank's
// gradients add up in the arena and are exchanged after the last micro-batch or, where blocks write
// gradients in turn (zero2, fsdp), after each.
//
// A collective's kernel occupies multiprocessors until the last rank arrives. A backward product
// that expects all multiprocessors then takes up to twice its time. So copies move the gradients
// (dist/rank_memory.h), and the norm's partial sums travel once, behind the backward.
class BucketSum final : public GradientSum {
 public:
  BucketSum(ParameterArena& arena, Communicator* ranks, BucketExchange exchange, Tensor partials,
            ShardedWeights* weights)
      : arena_(arena),
        ranks_(ranks),
        weights_(weights),
        size_(ranks == nullptr ? 1 : ranks->size()),
        rank_(ranks == nullptr ? 0 : ranks->rank()),
        deterministic_(Context::current().options.deterministic),
        overlapped_(exchange == BucketExchange::overlapped || size_ == 1),
        turns_(arena.layout().gradients_in_turns),
        partials_(std::move(partials)),
        buckets_(open_buckets(arena.table(), size_ > 1 ? exchange : BucketExchange::overlapped)) {
    if (overlapped_) watch();
    if (size_ == 1) return;
    QUERN_CHECK(!gathers() || !turns_, "gradient sum: blocks that take turns keep no whole sums");
    int64_t received = 0;
    for (OpenBucket& bucket : buckets_) {
      const RankSlices slices = bucket.slices(size_);
      received = std::max(received, size_ * slices.each);
      if (turns_ && slices.size(rank_) > 0) {
        bucket.own = arena.layout().sums.of(bucket.begin + slices.begin(rank_));
      }
    }
    {
      const PoolScope scope(*Context::current().allocator(), rank_pool(ranks));
      received_ = buffer(received, "gradients of other ranks");
    }
    register_with(ranks, {arena.grads(), received_});
    if (turns_) sums_ = arena.sums();
    scalars_ = buffer(size_ * kScalars, "losses of the ranks");
    if (!arena.grads().device().is_cuda() || Context::current().is_dry()) return;
    if (weights == nullptr) side_ = cuda::OwnedStream::create();
    stream_ = weights == nullptr ? static_cast<kernels::cuda::Stream>(side_) : weights->stream();
    for (OpenBucket& bucket : buckets_) bucket.moved = cuda::Event(cuda::EventKind::order);
    forked_ = cuda::Event(cuda::EventKind::order);
    joined_ = cuda::Event(cuda::EventKind::order);
  }

  ~BucketSum() override {
    for (Parameter* parameter : arena_.parameters()) parameter->leaf()->on_ready = nullptr;
    side_.finish();
  }

  void prepare(int64_t count) override {
    if (!deterministic_ || count == 1 || sums_.defined() || fresh_.defined()) return;
    if (size_ == 1) {
      fresh_places_ = placed({buckets_.begin(), buckets_.end()}, true, 1);
      fresh_ = buffer(fresh_places_.size(), "gradients of a micro-batch");
      return;
    }
    int64_t size = 0;
    for (OpenBucket& bucket : buckets_) {
      bucket.own = std::exchange(size, size + bucket.slices(size_).each);
    }
    sums_ = buffer(size, "gradient sums");
  }

  void begin(const MicroBatch& part) override {
    part_ = part;
    running_ = true;
    if (part.first() || anew()) arena_.zero_grad();
    if (writes_fresh()) {
      write_to(fresh_, fresh_places_);
    } else if (fresh_.defined()) {  // an exception may have ended the micro-batch before
      write_to(arena_.grads(), arena_.layout().gradients);
    }
    for (OpenBucket& bucket : buckets_) {
      bucket.missing = bucket.parameters;
      bucket.whole = false;
    }
  }

  void finish(const Tensor& sums, const Tensor& values) override {
    if (sums_now()) {
      arena_.finish_gradients();
      for (OpenBucket& bucket : std::views::reverse(buckets_)) {
        if (overlapped_ && bucket.missing == 0) continue;
        QUERN_CHECK(!turns_ || !bucket.is_block(), bucket.name, ": the gradients of ",
                    bucket.missing, " parameters are not complete after a backward");
        sum(bucket);
      }
    }
    running_ = false;
    if (writes_fresh()) write_to(arena_.grads(), arena_.layout().gradients);
    if (part_.last() && partials_.defined()) share_norm();
    sum_scalars(sums, values);
    if (!stream_.handle) return;
    joined_.record(stream_);
    joined_.wait(Context::current().cuda_stream());
  }

 private:
  static Tensor buffer(int64_t count, const char* name) {
    const Tensor made = Tensor::empty({count}, DType::f32, {name, MemoryCategory::gradients});
    fill(made, 0.0);
    return made;
  }

  // Whether each micro-batch's gradients are computed anew and then added.
  bool anew() const { return turns_ || (deterministic_ && (size_ > 1 || part_.count > 1)); }
  bool writes_fresh() const { return size_ == 1 && anew() && !part_.first(); }
  bool sums_now() const { return anew() || (size_ > 1 && part_.last()); }
  // Whether every rank needs all sums.
  bool gathers() const { return !partials_.defined() || !arena_.is_shared_out(); }

  // Sums a bucket as soon as the backward has written its last gradient.
  void watch() {
    for (Parameter* parameter : arena_.parameters()) {
      for (size_t i = 0; i < buckets_.size(); ++i) {
        if (!buckets_[i].holds(parameter->begin())) continue;
        parameter->leaf()->on_ready = [this, i](Leaf& leaf) {
          if (running_) take(leaf, i);
        };
      }
    }
  }

  void take(Leaf& leaf, size_t index) {
    OpenBucket& bucket = buckets_[index];
    if (leaf.fresh) fill(leaf.grad, 0.0);  // no gradient reached it
    leaf.fresh = false;
    if (weights_ && bucket.missing == bucket.parameters) weights_->enter_backward(index);
    QUERN_CHECK(--bucket.missing >= 0, leaf.name, ": its gradient is complete for the second ",
                "time in a backward");
    check_turn(bucket);
    if (bucket.missing > 0) return;
    if (sums_now()) sum(bucket);
    if (weights_) weights_->leave_backward(index);
    if (turns_ && stream_.handle && bucket.is_block()) wait_for_place(bucket.turn + 1);
  }

  // The next block of the backward writes where the one behind this block has written.
  void wait_for_place(int turn) {
    for (OpenBucket& other : buckets_) {
      if (other.turn == turn) other.moved.wait(Context::current().cuda_stream());
    }
  }

  // Blocks of one place must not have gradients under way at the same time.
  void check_turn(const OpenBucket& bucket) const {
    if ((!turns_ && !fresh_.defined()) || !bucket.is_block()) return;
    for (const OpenBucket& other : buckets_) {
      const bool is_open = other.missing > 0 && other.missing < other.parameters;
      const bool shares = other.is_block() && (other.turn - bucket.turn) % 2 == 0;
      QUERN_CHECK(!is_open || !shares || &other == &bucket, "the gradients of ", bucket.name,
                  " are computed before those of ", other.name, " are complete");
    }
  }

  // Where the next backward writes gradients.
  void write_to(const Tensor& buffer, const Placement& places) {
    for (Parameter* parameter : arena_.parameters()) {
      if (parameter->begin() >= arena_.trainable()) continue;
      parameter->leaf()->grad = ParameterArena::slice(
          buffer, {parameter->name(), parameter->shape(), places.of(parameter->begin())});
    }
  }

  float* gradients_of(const Bucket& bucket) const {
    return arena_.grads().data<float>() + arena_.layout().gradients.of(bucket.begin);
  }

  void sum(OpenBucket& bucket) {
    float* const data = gradients_of(bucket);
    if (size_ == 1) {
      if (part_.first()) return;
      const float* const fresh = fresh_.data<float>() + fresh_places_.of(bucket.begin);
      return add_parts(data, data, fresh, 1, 0, bucket.size());
    }
    const RankSlices slices = bucket.slices(size_);
    const int64_t count = slices.size(rank_);
    float* const slice = data + slices.begin(rank_);
    float* const running = sums_.defined() ? sums_.data<float>() + bucket.own : nullptr;
    float* const before = part_.first() ? nullptr : running;
    float* const out = turns_ || !part_.last() ? running : slice;
    fork();
    float* const received = received_.data<float>();
    ranks_->exchange(received, data, slices, title(bucket).c_str(), stream_);
    add_parts(out, before, received, size_, slices.each, count,
              part_.last() && partials_.defined() ? &bucket : nullptr);
    if (turns_ && stream_.handle) bucket.moved.record(stream_);
    if (part_.last() && gathers()) gather(bucket);
  }

  // All ranks get all sums of a bucket.
  void gather(OpenBucket& bucket) {
    ranks_->gather(gradients_of(bucket), gathered_slices(bucket), sizeof(float),
                   title(bucket).c_str(), stream_);
    bucket.whole = true;
  }

  // Copies need slices of equal length. The last ones may extend into the following buckets: each
  // rank then overwrites sums that it already has with equal ones.
  RankSlices gathered_slices(const OpenBucket& bucket) const {
    const RankSlices slices = bucket.slices(size_), filled = slices.filled();
    const int64_t end = bucket.begin + filled.count;
    const bool fits = end <= arena_.layout().gradients.size() &&
                      std::ranges::all_of(buckets_, [&](const OpenBucket& other) {
                        return other.whole || other.end <= bucket.end || end <= other.begin;
                      });
    return fits ? filled : slices;
  }

  static std::string title(const Bucket& bucket) { return "the gradients of " + bucket.name; }

  // The bytes of the norm's partial sums, `width` each, that a rank computes.
  RankPiece norm_piece(const Bucket& bucket, int rank, int64_t width) const {
    const RankSlices slices = bucket.slices(size_);
    return {(bucket.begin + slices.begin(rank)) / kernels::kNormChunk * width,
            kernels::norm_chunks(slices.size(rank)) * width, rank};
  }

  void share_norm() {
    const int64_t width =
        decide(arena_.grads().device(), [](auto stream) { return norm_partial_bytes(stream); });
    std::vector<RankPiece> pieces;
    for (const OpenBucket& bucket : buckets_) {
      for (int rank = 0; rank < size_; ++rank) {
        const RankPiece piece = norm_piece(bucket, rank, width);
        if (piece.bytes > 0) pieces.push_back(piece);
      }
    }
    ranks_->share(partials_.raw_data(), pieces, "the norm", stream_);
  }

  void sum_scalars(const Tensor& sums, const Tensor& values) {
    const Tensor* parts = &values;
    if (size_ > 1) {
      const int64_t mine = rank_ * kScalars;
      copy(scalars_.slice(0, mine, mine + values.numel()), values);
      fork();
      ranks_->gather(scalars_.raw_data(), RankSlices(size_ * kScalars, size_), sizeof(float),
                     "the losses", stream_);
      parts = &scalars_;
    }
    add_parts(sums.data<float>(), part_.first() ? nullptr : sums.data<float>(),
              parts->data<float>(), size_, kScalars, values.numel());
  }

  // Later work on the collectives' stream comes after the work enqueued so far.
  void fork() {
    if (!stream_.handle) return;
    forked_.order(Context::current().cuda_stream(), stream_);
  }

  // `normed`: the bucket, where this rank's partial sums of its norm are wanted.
  void add_parts(float* out, const float* before, const float* parts, int count, int64_t stride,
                 int64_t n, const Bucket* normed = nullptr) {
    if (n == 0) return;
    on_side_stream([&](auto stream) {
      char* squares = nullptr;
      if (normed != nullptr) {
        squares = static_cast<char*>(partials_.raw_data()) +
                  norm_piece(*normed, rank_, norm_partial_bytes(stream)).begin;
      }
      rank_sum(out, squares, before, parts, count, stride, n, stream);
    });
  }

  template <class F>
  void on_side_stream(const F& f) {
    on_device(arena_.grads().device(), [&](auto stream) {
      if constexpr (std::is_same_v<decltype(stream), kernels::cuda::Stream>) {
        if (stream_.handle) stream.handle = stream_.handle;
      }
      f(stream);
    });
  }

  ParameterArena& arena_;
  Communicator* ranks_;
  ShardedWeights* weights_;
  int size_, rank_;
  bool deterministic_, overlapped_, turns_;
  Tensor partials_;  // of the norm, if the ranks share it
  std::vector<OpenBucket> buckets_;
  Tensor sums_;   // of this rank's slices over the micro-batches so far
  Tensor fresh_;  // gradients of one rank's later micro-batches
  Placement fresh_places_;
  Tensor received_;                 // one bucket's slices from all ranks
  Tensor scalars_;                  // a slot for each rank
  cuda::OwnedStream side_;          // on GPUs, unless the weights have one
  kernels::cuda::Stream stream_{};  // of the collectives and their sums, on GPUs
  cuda::Event forked_, joined_;
  MicroBatch part_;
  bool running_ = false;  // between begin() and finish()
};

}  // namespace

std::unique_ptr<GradientSum> make_gradient_sum(ParameterArena& arena, Communicator* ranks,
                                               BucketExchange exchange, const Tensor& norm_partials,
                                               ShardedWeights* weights) {
  return std::make_unique<BucketSum>(arena, ranks, exchange, norm_partials, weights);
}

}  // namespace quern
