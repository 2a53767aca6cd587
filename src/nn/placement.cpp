#include "nn/placement.h"

#include "base/error.h"

namespace quern {

Placement Placement::whole(int64_t size) {
  Placement placement;
  placement.append(0, size);
  return placement;
}

void Placement::add(int64_t begin, int64_t end, int64_t place) {
  QUERN_CHECK(begin <= end && (pieces_.empty() || pieces_.back().end <= begin),
              "placement: found elements ", begin, " to ", end, " behind those to ",
              pieces_.empty() ? 0 : pieces_.back().end);
  if (begin == end) return;
  pieces_.push_back({begin, end, place});
  size_ = std::max(size_, place + end - begin);
}

const Placement::Piece* Placement::find(int64_t element) const {
  const auto after = std::ranges::upper_bound(pieces_, element, {}, &Piece::begin);
  if (after == pieces_.begin() || element >= std::prev(after)->end) return nullptr;
  return &*std::prev(after);
}

int64_t Placement::of(int64_t element) const {
  const Piece* const piece = find(element);
  QUERN_CHECK(piece, "placement: element ", element, " is not in this buffer");
  return piece->place + element - piece->begin;
}

}  // namespace quern
