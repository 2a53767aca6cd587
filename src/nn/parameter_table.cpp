#include "nn/parameter_table.h"

#include <algorithm>

#include "base/round_up.h"

namespace quern {

namespace {

// In elements of BF16, so that slices of both the FP32 and the BF16 buffer are aligned to 256 bytes
// and blocks to 1 KiB.
constexpr int64_t kSliceAlignment = 256 / 2;
constexpr int64_t kBlockAlignment = 1024 / 2;

}  // namespace

std::vector<NamedSlice> ParameterEntry::slices() const {
  if (parts.empty()) return {{name, shape, begin}};
  std::vector<NamedSlice> slices;
  const int64_t width = numel() / shape[0];
  for (const ParameterPart& part : parts) {
    Shape rows = shape;
    rows[0] = part.rows;
    slices.push_back({part.name, rows, begin + part.row_begin * width});
  }
  return slices;
}

ParameterTable::ParameterTable(Module& model, const Regroup& regroup)
    : ParameterTable(ParameterList(model), regroup) {}

ParameterTable::ParameterTable(const ParameterList& list, const Regroup& regroup)
    : aliases_(list.aliases()) {
  for (const ParameterList::Entry& declared : list.entries()) {
    const Parameter& parameter = *declared.parameter;
    ParameterEntry entry{declared.name,
                         parameter.shape(),
                         parameter.group,
                         parameter.fp32,
                         parameter.parts(),
                         declared.block,
                         0,
                         entries_.size()};
    for (ParameterPart& part : entry.parts) part.name = declared.module + part.name;
    if (regroup) regroup(entry.name, entry.group);
    entries_.push_back(std::move(entry));
  }
  std::ranges::stable_partition(entries_, [](const auto& entry) { return !entry.group.frozen; });
  for (const ParameterEntry& entry : entries_) {
    blocks_.resize(std::max(blocks_.size(), static_cast<size_t>(entry.block + 1)));
  }
  place(false);
  trainable_ = size_;
  place(true);
  for (size_t i = 0; i < entries_.size(); ++i) by_name_[entries_[i].name] = i;
}

void ParameterTable::place(bool frozen) {
  int block = -1;
  const auto end_block = [&](int next) {
    if (next == block) return;
    size_ = round_up(size_, kBlockAlignment);
    if (!frozen && block >= 0) blocks_[static_cast<size_t>(block)].end = size_;
    if (!frozen && next >= 0) blocks_[static_cast<size_t>(next)].begin = size_;
    block = next;
  };
  for (ParameterEntry& entry : entries_) {
    if (entry.group.frozen != frozen) continue;
    end_block(entry.block);
    entry.begin = size_;
    size_ = round_up(entry.end(), kSliceAlignment);
  }
  end_block(-1);
  size_ = round_up(size_, kBlockAlignment);
}

const ParameterEntry* ParameterTable::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &entries_[found->second];
}

std::vector<NamedSlice> ParameterTable::slices() const {
  std::vector<NamedSlice> slices;
  for (const ParameterEntry& entry : entries_)
    std::ranges::move(entry.slices(), std::back_inserter(slices));
  return slices;
}

bool ParameterTable::is_lookup(const ParameterEntry& entry) const {
  return entry.group.kind == ParameterKind::embedding &&
         std::ranges::find(aliases_, entry.name, &ParameterList::Alias::of) == aliases_.end();
}

int64_t ParameterTable::parameter_count() const {
  int64_t count = 0;
  for (const ParameterEntry& entry : entries_) count += entry.numel();
  return count;
}

}  // namespace quern
