#include "profile/range_tracker.h"

#include "base/error.h"

namespace quern {

int32_t Names::id(const std::string& name) {
  const auto [found, added] = ids_.emplace(name, static_cast<int32_t>(names_.size()));
  if (added) names_.push_back(name);
  return found->second;
}

RangeTracker::RangeTracker(Names& names)
    : names_(names),
      forward_(names.id("forward")),
      context_(Context::current()),
      previous_(context_.input_observer),
      observe_(*this) {
  context_.input_observer = this;
}

RangeTracker::~RangeTracker() {
  context_.input_observer = previous_;
}

void RangeTracker::on_begin(const Range& range) {
  Open next{range.kind, names_.id(range.name), place()};
  Place& place = next.place;
  switch (range.kind) {
    case RangeKind::phase:
      if (open_.empty() && next.name == forward_) forwards_.clear();  // whose backward never came
      place.phase = next.name;
      break;
    case RangeKind::module: {
      const std::string& outer = names_[place.module];
      place.module = outer.empty() ? next.name : names_.id(outer + "." + range.name);
      break;
    }
    case RangeKind::op: {
      const bool outermost = place.op == 0;
      if (outermost) place.op = next.name;
      const auto forward = forwards_.find(range.node);
      if (forward == forwards_.end()) break;
      place.backward = true;
      place.module = forward->second.module;
      if (outermost) place.op = forward->second.op;
      place.shapes = forward->second.shapes;
      forwards_.erase(forward);
      break;
    }
  }
  open_.push_back(next);
}

void RangeTracker::on_end() {
  open_.pop_back();
}

// The op that records is the innermost open one. A composed op records none of its own: it has the
// shapes of its first part.
void RangeTracker::on_inputs(const char*, uint64_t node, const std::vector<Shape>& inputs) {
  std::string text;
  for (const Shape& shape : inputs) text += cat(text.empty() ? "" : " ", shape);
  const int32_t shapes = names_.id(text);
  if (node != Range::kNoNode) forwards_[node] = {place().module, place().op, shapes};
  for (size_t i = open_.size(); i-- > 0 && open_[i].kind == RangeKind::op;) {
    if (open_[i].place.shapes == 0) open_[i].place.shapes = shapes;
  }
}

Place RangeTracker::place() const {
  return open_.empty() ? Place{} : open_.back().place;
}

}  // namespace quern
