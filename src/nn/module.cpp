#include "nn/module.h"

#include <utility>

#include "base/error.h"
#include "tensor/context.h"

namespace quern {

Variable Layer::operator()(const char* name, const Variable& x) const {
  const RangeScope range(RangeKind::module, name);
  return forward(x);
}

ParameterList::ParameterList(Module& model) {
  model.declare(*this);
}

void ParameterList::add(const std::string& name, Parameter& parameter) {
  const auto [place, added] = declared_.emplace(&parameter, entries_.size());
  QUERN_CHECK(added, "parameter ", prefix_, name, " was already declared as ",
              entries_[place->second].name);
  entries_.push_back({&parameter, prefix_ + name, prefix_, block_});
}

void ParameterList::add_alias(const std::string& name, const Parameter& parameter) {
  const auto place = declared_.find(&parameter);
  QUERN_CHECK(place != declared_.end(), "declare: ", prefix_, name,
              " is a second name, expected a parameter that was declared before");
  aliases_.push_back({prefix_ + name, entries_[place->second].name});
}

void ParameterList::add(const std::string& name, Module& child) {
  const std::string outer = std::exchange(prefix_, prefix_ + name + ".");
  child.declare(*this);
  prefix_ = outer;
}

void ParameterList::add_block(const std::string& name, Module& child) {
  QUERN_CHECK(block_ < 0, "declare: block ", name, " lies within another block");
  block_ = blocks_++;
  add(name, child);
  block_ = -1;
}

}  // namespace quern
