// Tracks the place of the work in the model: the open ranges, with phase, module path and whether
// they belong to a backward. Base of the recorders of time and of memory.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "profile/time/profile.h"
#include "tensor/context.h"

namespace quern {

// The place of an event. The fields are numbers in the tracker's Names.
struct Place {
  int32_t phase = 0;      // "" outside phases
  int32_t module = 0;     // "" outside modules
  int32_t op = 0;         // the outermost open op of the module; in an op's
                          // backward its forward's; "" outside ops
  int32_t shapes = 0;     // of that op's inputs; "" until they are known
  bool backward = false;  // in an op's backward, except in what it recomputes (checkpoint)

  friend auto operator<=>(const Place&, const Place&) = default;
};

// Attached to the current Context from construction to destruction. For use on one thread.
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
    int32_t shapes = 0;  // of an op's own inputs
    Place place;         // including this range
  };
  const std::vector<Open>& open() const { return open_; }
  Names& names() { return names_; }

 private:
  void enter_backward(Open& op, uint64_t node);
  int32_t path(int32_t outer, int32_t name);  // the path of a module inside another
  int32_t shapes_id(const std::vector<Shape>& inputs);

  Names& names_;
  int32_t forward_;  // the phase's name
  std::vector<Open> open_;
  std::unordered_map<uint64_t, Place> forwards_;  // of ops, by node, until their backwards have run
  std::unordered_map<uint64_t, int32_t> paths_;   // by outer path and name
  std::map<std::vector<int64_t>, int32_t> shapes_;  // key, for each shape: -1 - ndim, extents
  std::vector<int64_t> shapes_key_;
  Observe<InputObserver> observe_inputs_{*this};
  ObserveRanges observe_ranges_{*this};
};

}  // namespace quern
