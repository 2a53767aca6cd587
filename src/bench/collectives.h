// `quern bench collectives`: time and bandwidth of each collective between the ranks, after a check
// of its result.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/enum_names.h"
#include "bench/harness.h"
#include "bench/table.h"
#include "dist/communicator.h"

namespace quern {

// exchange: the Communicator's, an all-to-all of slices. The ordered ones exchange slices and sum
// them in the order of the ranks, so that the bits do not depend on the engine; ordered_all_reduce
// then gathers the sums.
enum class Collective {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  exchange,
  ordered_reduce_scatter,
  ordered_all_reduce
};
template <>
inline constexpr std::array kNamesOf<Collective>{
    "all_reduce", "reduce_scatter",         "all_gather",        "broadcast",
    "exchange",   "ordered_reduce_scatter", "ordered_all_reduce"};

// Where the result goes. in: to the memory of the data; out: to other memory. An exchange has no
// in; the ordered ones, which a training uses in place, have no out.
enum class ResultPlace { in, out };
template <>
inline constexpr std::array kNamesOf<ResultPlace>{"in", "out"};
bool has_place(Collective collective, ResultPlace place);

struct CollectiveBenchOptions {
  std::vector<Collective> collectives = values_of<Collective>();
  std::vector<ResultPlace> places{ResultPlace::in, ResultPlace::out};
  std::vector<int64_t> sizes;  // bytes of a rank's FP32 data; multiples of 4. Empty: the default
  int64_t warmup = 5;
  int64_t steps = 20;
};

// 1 KiB to 1 GiB on GPUs, to 16 MiB on the CPU, each four times the previous one.
std::vector<int64_t> default_collective_sizes();
// Throws UsageError unless all are positive multiples of 4.
void check_collective_sizes(const std::vector<int64_t>& sizes);

// The part of the data's bytes that crosses each rank's link in each direction at best, as
// nccl-tests defines it: its product with bytes / time is the bus bandwidth.
double bus_factor(Collective collective, int ranks);

struct CollectiveRow {
  Collective collective = Collective::all_reduce;
  ResultPlace place = ResultPlace::in;
  std::string engine;
  int ranks = 1;
  int64_t bytes = 0;
  Summary time;               // milliseconds a call
  std::string out_of_memory;  // the allocator's message, or that another rank is

  double algorithm_bandwidth() const;  // bytes/s of the median; 0 when out of memory
  double bus_bandwidth() const;
};

// Every rank calls this with equal options, in its own Context; `report` gets the rows on every
// rank. Throws an Error when a result is wrong.
void bench_collectives(Communicator& ranks, const CollectiveBenchOptions& options,
                       const std::function<void(const CollectiveRow&)>& report);

TableRow table_row(const CollectiveRow& row);

}  // namespace quern
