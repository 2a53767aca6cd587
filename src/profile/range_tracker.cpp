#include "profile/range_tracker.h"

#include "base/error.h"

namespace quern {

int32_t Names::id(std::string_view name) {
  const auto found = ids_.find(name);
  if (found != ids_.end()) return found->second;
  const auto next = static_cast<int32_t>(names_.size());
  names_.emplace_back(name);
  ids_.emplace(names_.back(), next);
  return next;
}

RangeTracker::RangeTracker(Names& names) : names_(names), forward_(names.id("forward")) {}

void RangeTracker::on_begin(const Range& range) {
  Open next{range.kind, names_.id(range.name), 0, place()};
  Place& place = next.place;
  switch (range.kind) {
    case RangeKind::phase:
      if (open_.empty() && next.name == forward_) forwards_.clear();  // those without a backward
      place.phase = next.name;
      break;
    case RangeKind::module:  // also in a backward that recomputes a forward
      place = {.phase = place.phase, .module = path(place.module, next.name)};
      break;
    case RangeKind::op:
      if (range.node != Range::kNoNode) {
        enter_backward(next, range.node);
      } else if (place.op == 0) {
        place.op = next.name;
      }
      break;
  }
  open_.push_back(next);
}

void RangeTracker::enter_backward(Open& op, uint64_t node) {
  const auto found = forwards_.find(node);
  const bool known = found != forwards_.end();  // else the forward ran before this was attached
  const Place forward = known ? found->second : Place{.module = op.place.module, .op = op.name};
  op.place = {op.place.phase, forward.module, forward.op, forward.shapes, true};
  op.shapes = forward.shapes;
  if (known) forwards_.erase(found);
}

int32_t RangeTracker::path(int32_t outer, int32_t name) {
  if (outer == 0) return name;
  const uint64_t key = static_cast<uint64_t>(outer) << 32 | static_cast<uint32_t>(name);
  const auto [found, added] = paths_.emplace(key, 0);
  if (added) found->second = names_.id(names_[outer] + "." + names_[name]);
  return found->second;
}

void RangeTracker::on_end() {
  if (!open_.empty()) open_.pop_back();  // else the range began before this was attached
}

// Shapes repeat step after step, so their text is made once.
int32_t RangeTracker::shapes_id(const std::vector<Shape>& inputs) {
  shapes_key_.clear();
  for (const Shape& shape : inputs) {
    shapes_key_.push_back(-1 - shape.ndim());
    shapes_key_.insert(shapes_key_.end(), shape.begin(), shape.end());
  }
  const auto found = shapes_.find(shapes_key_);
  if (found != shapes_.end()) return found->second;
  std::string text;
  for (const Shape& shape : inputs) text += cat(text.empty() ? "" : " ", shape);
  return shapes_[shapes_key_] = names_.id(text);
}

// The innermost open op records its inputs. A composed op records none and takes the shapes of its
// first part.
void RangeTracker::on_inputs(const char* name, uint64_t node, const std::vector<Shape>& inputs) {
  if (observe_inputs_.previous()) observe_inputs_.previous()->on_inputs(name, node, inputs);
  const int32_t shapes = shapes_id(inputs);
  if (node != Range::kNoNode) forwards_[node] = {0, place().module, place().op, shapes};
  for (size_t i = open_.size(); i-- > 0 && open_[i].kind == RangeKind::op;) {
    Open& op = open_[i];
    if (op.shapes == 0) op.shapes = shapes;
    if (op.place.shapes == 0) op.place.shapes = shapes;
  }
}

Place RangeTracker::place() const {
  return open_.empty() ? Place{} : open_.back().place;
}

}  // namespace quern
