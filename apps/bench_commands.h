// Shared by the benchmarks and `quern memory`: a command line that stands for several runs, each of
// which prints rows of one table.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bench/table.h"
#include "bench_flags.h"
#include "commands.h"

namespace quern {

// One of the configurations of the command line.
struct BenchRun {
  ParsedArgs& parsed;
  const std::set<std::string>& varying;  // flags with several values
  bool single;                           // whether the command line has only this run
};

// Measures in the scope of a Context, and prints rows.
using BenchJob = std::function<void(Table& table)>;

struct Benchmark {
  const Command& command;
  BenchJob (*prepare)(const BenchRun& run);         // reads the flags; throws UsageError
  std::vector<std::string> lists = {};              // flags with several values: one run a value
  std::map<std::string, std::string> instead = {};  // for a key that does not apply, the flag meant
};

// Reads and checks every run of a command line, then measures one after another. Returns the exit
// code.
int run_benchmark(const Benchmark& benchmark, const Arguments& args);

// The same as a Command's `run`.
inline auto runs_of(Benchmark benchmark) {
  return [benchmark = std::move(benchmark)](const Arguments& args) {
    return run_benchmark(benchmark, args);
  };
}

// Prints the row at once, after the heading if it is the first row.
template <class Row, class... Args>
void print_row(Table& table, const Row& row, const Args&... args) {
  print_now(table.add(table_row(row, args...)));
}

}  // namespace quern
