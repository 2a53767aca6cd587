// Maps elements of the arena to places in a buffer: all at their own places, a rank's ranges one
// behind the other, or blocks that take turns at one place.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace quern {

class Placement {
 public:
  struct Piece {
    int64_t begin = 0, end = 0;  // elements of the arena
    int64_t place = 0;           // of `begin`, in the buffer
  };

  Placement() = default;  // of nothing
  static Placement whole(int64_t size);

  // Pieces are added in the order of the arena.
  void add(int64_t begin, int64_t end, int64_t place);
  void append(int64_t begin, int64_t end) { add(begin, end, size_); }  // behind the others

  void extend(int64_t size) { size_ = std::max(size_, size); }  // with unused elements

  int64_t size() const { return size_; }  // elements of the buffer
  const std::vector<Piece>& pieces() const { return pieces_; }
  bool holds(int64_t element) const { return find(element) != nullptr; }
  int64_t of(int64_t element) const;  // its place; throws when the buffer does not have it

  // Calls f(begin, end, place) for each part of the range that the buffer has.
  template <class F>
  void for_each_part(int64_t begin, int64_t end, const F& f) const {
    for (const Piece& piece : pieces_) {
      const int64_t from = std::max(begin, piece.begin), to = std::min(end, piece.end);
      if (from < to) f(from, to, piece.place + from - piece.begin);
    }
  }

 private:
  const Piece* find(int64_t element) const;

  std::vector<Piece> pieces_;
  int64_t size_ = 0;
};

}  // namespace quern
