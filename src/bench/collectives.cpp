#include "bench/collectives.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "base/philox.h"
#include "kernels/rank_sum.h"
#include "tensor/factory.h"
#include "tensor/graph.h"
#include "tensor/visit.h"

namespace quern {

namespace {

constexpr int64_t kFloatBytes = sizeof(float);
// The ranks' random data repeats after this many elements; a prime, so that no slice looks like
// another.
constexpr int64_t kPeriod = 249989;
constexpr int64_t kChecked = 1 << 16;  // elements at either end of a range that are compared
// A graph of short collectives holds many, so that its launch does not count.
constexpr int64_t kShort = 1 << 20, kCallsOfShort = 10;
constexpr float kUnset = std::numeric_limits<float>::quiet_NaN();

bool on_gpu() {
  return Context::current().device().is_cuda();
}

cuda::Stream stream() {
  return Context::current().cuda_stream();
}

// On a GPU in the order of the stream, also from or to the host.
void copy_floats(float* to, const float* from, int64_t count) {
  if (on_gpu()) {
    cuda::copy(to, from, count * kFloatBytes, stream());
  } else {
    std::copy_n(from, count, to);
  }
}

// One collective of one size: its memory, its call, and the check of its result.
class CollectiveCase {
 public:
  CollectiveCase(Communicator& ranks, Collective collective, ResultPlace place, int64_t count);

  void prepare();
  void call();
  void check() const;  // after one prepare() and one call()
  std::vector<double> time(int64_t warmup, int64_t steps);

 private:
  // A range of the result: `at` must be the sum over the ranks, or `from`'s values, at these
  // indices.
  struct Range {
    const float* at;
    int64_t begin, end;
    int from;
  };
  static constexpr int kSum = -1;

  float* data() const { return data_.data<float>(); }
  float* result_data() const { return (result_.defined() ? result_ : data_).data<float>(); }
  float* place_of_slice() const;
  void sum_in_order();
  std::vector<Range> result() const;
  void compare(const Range& range) const;
  float value(int rank, int64_t index) const {
    return values_[static_cast<size_t>(rank)][static_cast<size_t>(index % kPeriod)];
  }

  Communicator& ranks_;
  Collective collective_;
  RankSlices slices_;
  std::vector<std::vector<float>> values_;  // one period a rank
  Tensor own_values_, data_;
  Tensor result_;  // undefined: in data_
};

CollectiveCase::CollectiveCase(Communicator& ranks, Collective collective, ResultPlace place,
                               int64_t count)
    : ranks_(ranks), collective_(collective), slices_(count, ranks.size()) {
  const int64_t period = std::min(count, kPeriod);
  for (int rank = 0; rank < ranks.size(); ++rank) {
    std::vector<float>& values = values_.emplace_back(static_cast<size_t>(period));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = kernels::philox_uniform<float>(static_cast<uint64_t>(rank), i, -1.0, 1.0);
    }
  }
  own_values_ = from_vector(values_[static_cast<size_t>(ranks.rank())], {period});
  data_ = Tensor::empty({count}, DType::f32, "collective data");
  if (place == ResultPlace::out || collective >= Collective::exchange) {
    result_ = Tensor::empty({slices_.each * ranks.size()}, DType::f32, "the collective's result");
  }
}

// The data before the call: this rank's values, as far as the collective reads them.
void CollectiveCase::prepare() {
  fill(data_, kUnset);
  if (result_.defined()) fill(result_, kUnset);
  int64_t begin = 0, end = slices_.count;
  if (collective_ == Collective::broadcast && ranks_.rank() != 0) end = 0;
  if (collective_ == Collective::all_gather) {
    begin = slices_.begin(ranks_.rank());
    end = slices_.end(ranks_.rank());
  }
  const auto* const period = own_values_.data<float>();
  while (begin < end) {
    const int64_t offset = begin % kPeriod, count = std::min(kPeriod - offset, end - begin);
    copy_floats(data() + begin, period + offset, count);
    begin += count;
  }
}

// Where reduce_scatter puts its result.
float* CollectiveCase::place_of_slice() const {
  return result_.defined() ? result_data() : data() + slices_.begin(ranks_.rank());
}

void CollectiveCase::call() {
  const char* const what = "the benchmark's data";
  const int64_t count = slices_.count, begin = slices_.begin(ranks_.rank());
  switch (collective_) {
    case Collective::all_reduce:
      return ranks_.all_reduce(result_data(), data(), count, what, stream());
    case Collective::reduce_scatter:
      return ranks_.reduce_scatter(place_of_slice(), data(), slices_, what, stream());
    case Collective::all_gather:
      return ranks_.gather(result_data(), data() + begin, slices_, kFloatBytes, what, stream());
    case Collective::broadcast:
      return ranks_.broadcast(result_data(), data(), count * kFloatBytes, 0, what, stream());
    case Collective::exchange:
      return ranks_.exchange(result_data(), data(), slices_, what, stream());
    case Collective::ordered_reduce_scatter: return sum_in_order();
    case Collective::ordered_all_reduce:
      sum_in_order();
      return ranks_.gather(data(), slices_, kFloatBytes, "the benchmark's sums", stream());
  }
  fail("bench collectives: unknown collective");
}

void CollectiveCase::sum_in_order() {
  const int rank = ranks_.rank();
  ranks_.exchange(result_data(), data(), slices_, "the benchmark's data", stream());
  on_device(data_.device(), [&](auto stream) {
    rank_sum(data() + slices_.begin(rank), nullptr, nullptr, result_data(), ranks_.size(),
             slices_.each, slices_.size(rank), stream);
  });
}

std::vector<CollectiveCase::Range> CollectiveCase::result() const {
  std::vector<Range> ranges;
  const int own = ranks_.rank();
  const int64_t begin = slices_.begin(own), end = slices_.end(own);
  switch (collective_) {
    case Collective::all_reduce: return {{result_data(), 0, slices_.count, kSum}};
    case Collective::reduce_scatter: return {{place_of_slice(), begin, end, kSum}};
    case Collective::ordered_all_reduce: return {{data(), 0, slices_.count, kSum}};
    case Collective::ordered_reduce_scatter: return {{data() + begin, begin, end, kSum}};
    case Collective::broadcast: return {{result_data(), 0, slices_.count, 0}};
    case Collective::all_gather:
      for (int rank = 0; rank < ranks_.size(); ++rank) {
        const int64_t first = slices_.begin(rank);
        ranges.push_back({result_data() + first, first, slices_.end(rank), rank});
      }
      return ranges;
    case Collective::exchange:
      for (int rank = 0; rank < ranks_.size(); ++rank) {
        ranges.push_back({result_data() + rank * slices_.each, begin, end, rank});
      }
      return ranges;
  }
  fail("bench collectives: unknown collective");
}

void CollectiveCase::check() const {
  for (const auto& [at, begin, end, from] : result()) {
    if (end - begin <= 2 * kChecked) {
      compare({at, begin, end, from});
    } else {
      compare({at, begin, begin + kChecked, from});
      compare({at + (end - begin - kChecked), end - kChecked, end, from});
    }
  }
}

// Copies are exact, and so are sums in the order of the ranks. The engine's order may differ: N - 1
// roundings of sums below N.
void CollectiveCase::compare(const Range& range) const {
  const int64_t count = range.end - range.begin;
  std::vector<float> actual(static_cast<size_t>(count));
  copy_floats(actual.data(), range.at, count);
  Context::current().synchronize();
  ranks_.check();
  const int n = ranks_.size();
  const bool exact = range.from != kSum || collective_ >= Collective::exchange;
  const float tolerance = exact ? 0.0f : static_cast<float>(n * (n - 1)) * 0x1p-24f;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t index = range.begin + i;
    float expected = value(std::max(range.from, 0), index);
    for (int rank = 1; rank < n && range.from == kSum; ++rank) expected += value(rank, index);
    const float found = actual[static_cast<size_t>(i)];
    QUERN_CHECK(std::abs(found - expected) <= tolerance, "bench collectives: rank ", ranks_.rank(),
                " of ", n, ": ", name_of(collective_), result_.defined() ? "" : " in place", " of ",
                slices_.count * kFloatBytes, " bytes: element ", index, " is ", found,
                ", expected ", expected);
  }
}

// Milliseconds a call; on a GPU in a captured graph, as a training step runs it. The data is zero,
// so that sums of sums stay finite.
std::vector<double> CollectiveCase::time(int64_t warmup, int64_t steps) {
  fill(data_, 0.0);
  ranks_.barrier("the timing");
  if (!on_gpu()) {
    return time_rounds(warmup, steps, 1, [&](const Mark& mark) {
      call();
      mark();
    });
  }
  const int64_t calls = data_.bytes() <= kShort ? kCallsOfShort : 1;
  const Graph graph([&] {
    for (int64_t i = 0; i < calls; ++i) call();
  });
  std::vector<double> times = time_rounds(warmup, steps, 1, [&](const Mark& mark) {
    graph.launch();
    mark();
    ranks_.watch(stream());
  });
  ranks_.check();
  for (double& ms : times) ms /= static_cast<double>(calls);
  return times;
}

// Whether all ranks are without an error.
bool all_well(Communicator& ranks, const Tensor& flag, const std::string& error) {
  fill(flag, error.empty() ? 0.0 : 1.0);
  ranks.all_reduce(flag.data<float>(), 1, "the failures", stream());
  const bool well = flag.item() == 0.0;
  ranks.check();
  return well;
}

CollectiveRow measure(Communicator& ranks, Collective collective, ResultPlace place, int64_t bytes,
                      const CollectiveBenchOptions& options) {
  CollectiveRow row{collective, place, ranks.engine(), ranks.size(), bytes, {}, {}};
  const Tensor flag = zeros({1});
  std::optional<CollectiveCase> one;
  row.out_of_memory =
      out_of_memory_in([&] { one.emplace(ranks, collective, place, bytes / kFloatBytes); });
  if (!all_well(ranks, flag, row.out_of_memory)) {
    if (row.out_of_memory.empty()) row.out_of_memory = "another rank is out of memory";
    return row;
  }
  one->prepare();
  one->call();
  one->check();
  row.time = summarize(one->time(options.warmup, options.steps));
  return row;
}

double per_second(double amount, double ms) {
  return ms > 0.0 ? amount / (ms / 1e3) : 0.0;
}

}  // namespace

bool has_place(Collective collective, ResultPlace place) {
  if (collective < Collective::exchange) return true;
  return (collective == Collective::exchange) == (place == ResultPlace::out);
}

std::vector<int64_t> default_collective_sizes() {
  std::vector<int64_t> sizes;
  const int64_t most = int64_t{1} << (on_gpu() ? 30 : 24);
  for (int64_t bytes = 1024; bytes <= most; bytes *= 4) sizes.push_back(bytes);
  return sizes;
}

void check_collective_sizes(const std::vector<int64_t>& sizes) {
  for (const int64_t bytes : sizes) {
    if (bytes > 0 && bytes % kFloatBytes == 0) continue;
    throw UsageError(cat("--sizes has ", bytes, ", expected bytes of FP32 data: a multiple of 4"));
  }
}

double bus_factor(Collective collective, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  switch (collective) {
    case Collective::all_reduce:
    case Collective::ordered_all_reduce: return 2.0 * others;
    case Collective::reduce_scatter:
    case Collective::all_gather:
    case Collective::exchange:
    case Collective::ordered_reduce_scatter: return others;
    case Collective::broadcast: return 1.0;
  }
  fail("bench collectives: unknown collective");
}

double CollectiveRow::algorithm_bandwidth() const {
  return per_second(static_cast<double>(bytes), time.median);
}

double CollectiveRow::bus_bandwidth() const {
  return algorithm_bandwidth() * bus_factor(collective, ranks);
}

void bench_collectives(Communicator& ranks, const CollectiveBenchOptions& options,
                       const std::function<void(const CollectiveRow&)>& report) {
  const std::vector<int64_t> sizes =
      options.sizes.empty() ? default_collective_sizes() : options.sizes;
  for (const Collective collective : options.collectives) {
    for (const ResultPlace place : options.places) {
      if (!has_place(collective, place)) continue;
      for (const int64_t bytes : sizes) report(measure(ranks, collective, place, bytes, options));
    }
  }
}

TableRow table_row(const CollectiveRow& row) {
  return {{{{"collective", "collective", 0, 22, Align::left}, name_of(row.collective)},
           {{"place", "place", 0, 5, Align::left}, name_of(row.place)},
           {{"", "engine"}, row.engine},
           {{"", "ranks"}, int64_t{row.ranks}},
           {{"bytes", "bytes", 0, 11}, row.bytes}},
          {{{"us", "us", 2, 12}, row.time.median * 1e3},
           {{"std us", "std_us", 2, 10}, row.time.std * 1e3},
           {{"GB/s", "algbw_gb_s", 3, 9}, row.algorithm_bandwidth() / 1e9},
           {{"bus GB/s", "busbw_gb_s", 3, 9}, row.bus_bandwidth() / 1e9}},
          row.out_of_memory};
}

}  // namespace quern
