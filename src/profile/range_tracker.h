// Keeps where in the model work happens: the open ranges, each with its phase, its module path and
// whether it is a backward. The recorders of time and of memory are built on it.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "profile/time/profile.h"
#include "tensor/context.h"

namespace quern {

// Where something happens. Numbers in the tracker's Names.
struct Place {
  int32_t phase = 0;   // "" outside phases
  int32_t module = 0;  // "" outside modules
  int32_t op = 0;      // the outermost open op of the module (the one that it called), in an op's
                       // backward that of its forward; "" outside ops
  int32_t shapes = 0;  // of that op's inputs; "" until they are told
  bool backward = false;  // in an op's backward; not in what it computes again (checkpoint)
};

// Attached to the current Context from its making to its end. Everything happens on one thread.
class RangeTracker : public RangeObserver, public InputObserver {
 public:
  explicit RangeTracker(Names& names);
  RangeTracker(const RangeTracker&) = delete;
  RangeTracker& operator=(const RangeTracker&) = delete;

  void on_begin(const Range& range) override;
  void on_end() override;
  void on_inputs(const char* op, uint64_t node, const std::vector<Shape>& inputs) override;

  Place place() const;  // now

 protected:
  struct Open {
    RangeKind kind = RangeKind::op;
    int32_t name = 0;
    int32_t shapes = 0;  // of an op: its own inputs'
    Place place;         // with this range in it
  };
  const std::vector<Open>& open() const { return open_; }
  Names& names() { return names_; }

 private:
  // What an op's backward is told by: where its forward was.
  struct Forward {
    int32_t module = 0, op = 0, shapes = 0;
  };

  void enter_backward(Open& op, uint64_t node);
  int32_t path(int32_t outer, int32_t name);  // of a module in a module
  int32_t shapes_id(const std::vector<Shape>& inputs);

  Names& names_;
  int32_t forward_;  // the phase's name
  std::vector<Open> open_;
  std::unordered_map<uint64_t, Forward> forwards_;  // by node, until its backward has run
  std::unordered_map<uint64_t, int32_t> paths_;     // by outer path and name
  std::map<std::vector<int64_t>, int32_t> shapes_;  // by -1 - dimensions, extents, and so on
  std::vector<int64_t> shapes_key_;
  Observe<InputObserver> observe_inputs_{*this};
  ObserveRanges observe_ranges_{*this};
};

}  // namespace quern
