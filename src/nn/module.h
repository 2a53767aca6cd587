// A module owns parameters and child modules and names them in declare(), in forward order.
#pragma once

#include <string>
#include <vector>

#include "nn/parameter.h"

namespace quern {

class Module;

// Collects a model's parameters with their full names ("model.layers.0.mlp.down_proj.weight").
class ParameterList {
 public:
  void add(const std::string& name, Parameter& parameter);
  void add(const std::string& name, Module& child);  // everything below it, prefixed by "name."
  // A transformer block: its parameters become one contiguous range of the arena.
  void add_block(const std::string& name, Module& child);

  struct Entry {
    Parameter* parameter;
    int block;  // parameters of one block share a number; -1 outside blocks
  };
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  std::vector<Entry> entries_;
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

// A module that maps one Variable to one, and so can stand in a Sequential.
class Layer : public Module {
 public:
  virtual Variable forward(const Variable& x) const = 0;
  Variable operator()(const Variable& x) const { return forward(x); }
  // The same as a module range of that name, for observers.
  Variable operator()(const char* name, const Variable& x) const;
};

}  // namespace quern
