// Memory studies as people and programs read them.
#pragma once

#include <set>
#include <string>

#include "bench/memory_study.h"
#include "bench/table.h"

namespace quern {

// Configurations beside each other: a row of what was predicted, and one of what was measured, for
// each pass. To people the settings (size, ctx, batch, precision, attention, kernels, recompute)
// that are not in `varying` have no column.
class MemoryRows {
 public:
  MemoryRows(TableFormat format, const std::set<std::string>& varying, std::string peer);
  // What all configurations share, and the headings; `first` is any of them.
  std::string head(const MemoryStudy& first) const;
  std::string rows(const MemoryStudy& study) const;

 private:
  std::set<std::string> varying_;
  std::string peer_;
  Table table_;
};

// What a block saves for its backward, a row a tensor, in the order of the forward, and their sum.
class BlockRows {
 public:
  BlockRows(TableFormat format, std::string peer);
  std::string head(const BlockStudy& first, const std::string& device) const;
  std::string rows(const BlockStudy& study) const;

 private:
  std::string peer_;
  Table table_;
};

}  // namespace quern
