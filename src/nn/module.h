// A module owns parameters and child modules and names them in declare(), in forward order.
#pragma once

#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "nn/parameter.h"

namespace quern {

class Module;

// Collects a model's parameters with their full names ("model.layers.0.mlp.down_proj.weight").
// Needs no memory: ParameterTable places them, ParameterArena gives them memory.
class ParameterList {
 public:
  ParameterList() = default;
  explicit ParameterList(Module& model);  // all that the model declares
  void add(const std::string& name, Parameter& parameter);
  void add(const std::string& name, Module& child);  // everything below it, prefixed by "name."
  // A Transformer block: its parameters become one contiguous range of the arena.
  void add_block(const std::string& name, Module& child);
  // A second name of a parameter that is in the list: a tied head.
  void add_alias(const std::string& name, const Parameter& parameter);
  // Tensors that are computed, not learned, such as RoPE's table. The arena calls `make` before it
  // allocates the parameters.
  void add_constant(std::function<void()> make) { constants_.push_back(std::move(make)); }

  struct Entry {
    Parameter* parameter;
    std::string name;    // full
    std::string module;  // prefix of the module that declared it: "model.layers.0.mlp."
    int block;           // parameters of one block share a number; -1 outside blocks
  };
  struct Alias {
    std::string name, of;  // full
  };
  const std::vector<Entry>& entries() const { return entries_; }
  const std::vector<Alias>& aliases() const { return aliases_; }
  const std::vector<std::function<void()>>& constants() const { return constants_; }

 private:
  std::vector<Entry> entries_;
  std::unordered_map<const Parameter*, size_t> declared_;  // places in entries_
  std::vector<Alias> aliases_;
  std::vector<std::function<void()>> constants_;
  std::string prefix_;
  int block_ = -1, blocks_ = 0;
};

class Module {
 public:
  Module() = default;
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  virtual void declare(ParameterList& list) = 0;
};

// A module that maps one Variable to one Variable: Sequential chains such modules.
class Layer : public Module {
 public:
  virtual Variable forward(const Variable& x) const = 0;
  Variable operator()(const Variable& x) const { return forward(x); }
  // The same within a module range of that name, for observers.
  Variable operator()(const char* name, const Variable& x) const;
};

}  // namespace quern
