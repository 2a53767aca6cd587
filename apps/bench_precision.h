// What the benchmarks of single precisions share: --precision, and the notes below a table.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "bench_flags.h"

namespace quern {

// The flag --precision as a list. Throws UsageError.
inline std::vector<Precision> precisions_of(const ParsedArgs& parsed) {
  const std::map<std::string, Precision> known{
      {"fp32", Precision::fp32}, {"tf32", Precision::tf32}, {"bf16", Precision::bf16}};
  std::vector<Precision> precisions;
  for (const std::string& word : words_of(parsed, "precision", {"fp32", "tf32", "bf16"})) {
    precisions.push_back(known.at(word));
  }
  return precisions;
}

// Below a table for people; programs get the rows alone.
inline void print_note(const Table& table, const std::string& note) {
  const bool for_people =
      table.format() == TableFormat::text || table.format() == TableFormat::markdown;
  if (for_people) print_now("\n" + note);
}

}  // namespace quern
