#include "nn/module.h"

#include <utility>

#include "base/error.h"
#include "tensor/context.h"

namespace quern {

Variable Layer::operator()(const char* name, const Variable& x) const {
  const RangeScope range(RangeKind::module, name);
  return forward(x);
}

void ParameterList::add(const std::string& name, Parameter& parameter) {
  QUERN_CHECK(parameter.name_.empty(), "parameter ", prefix_, name, " was already declared as ",
              parameter.name_);
  parameter.name_ = prefix_ + name;
  parameter.store_->name = parameter.name_;
  for (ParameterPart& part : parameter.parts_) part.name = prefix_ + part.name;
  entries_.push_back({&parameter, block_});
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
