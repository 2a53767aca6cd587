// The parameter table: every parameter of a model with its place in the arena, made from declare()
// alone, without memory. The arena, checkpoints, Hugging Face files, counts of parameters and
// FLOPs, and the decoder's and collectives' ranges come from it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "nn/module.h"

namespace quern {

// A range of the arena with its name in files: a parameter, or a part of a fused one.
struct NamedSlice {
  std::string name;
  Shape shape;
  int64_t begin = 0;  // elements
};

struct ParameterEntry {
  std::string name;  // full: "model.layers.0.mlp.gate_up_proj.weight"
  Shape shape;
  ParameterGroup group;              // its kind, and how the optimizer treats it
  bool fp32 = false;                 // read in FP32 under every precision
  std::vector<ParameterPart> parts;  // with full names; empty: not fused
  int block = -1;                    // -1: outside blocks
  int64_t begin = 0;                 // first element in the arena
  size_t order = 0;                  // place in ParameterList::entries()

  int64_t numel() const { return shape.numel(); }
  int64_t end() const { return begin + numel(); }
  std::vector<NamedSlice> slices() const;  // its parts, or itself
};

class ParameterTable {
 public:
  // May change how the optimizer treats a parameter (freeze it, say).
  using Regroup = std::function<void(const std::string& name, ParameterGroup& group)>;

  // Trainable parameters come first, in forward order; frozen ones follow. Parameters are aligned
  // to 256 bytes and blocks to 1 KiB, in the BF16 buffer as well as in FP32 ones.
  explicit ParameterTable(Module& model, const Regroup& regroup = {});
  explicit ParameterTable(const ParameterList& list, const Regroup& regroup = {});

  const std::vector<ParameterEntry>& entries() const { return entries_; }  // in arena order
  const ParameterEntry* find(const std::string& name) const;               // null: there is none
  std::vector<NamedSlice> slices() const;                                  // in arena order
  // Second names of parameters, which files may contain too.
  const std::vector<ParameterList::Alias>& aliases() const { return aliases_; }
  // Whether the parameter is only read row by row: an embedding that no head shares.
  bool is_lookup(const ParameterEntry& entry) const;

  int64_t size() const { return size_; }            // elements, padding included
  int64_t trainable() const { return trainable_; }  // elements with gradients: the first ones
  int64_t parameter_count() const;                  // elements, without padding

  // Elements of the arena, padding included.
  struct Range {
    int64_t begin = 0, end = 0;
  };
  size_t block_count() const { return blocks_.size(); }
  // The trainable parameters of a block; empty where all are frozen.
  const Range& block(size_t i) const { return blocks_.at(i); }

 private:
  void place(bool frozen);

  std::vector<ParameterEntry> entries_;
  std::unordered_map<std::string, size_t> by_name_;
  std::vector<ParameterList::Alias> aliases_;
  std::vector<Range> blocks_;
  int64_t size_ = 0, trainable_ = 0;
};

}  // namespace quern
