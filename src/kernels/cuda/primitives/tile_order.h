// The order in which persistent blocks take tiles.
#pragma once

#include "kernels/cuda/plan.h"

namespace quern::kernels::cuda {

// Tile number `i` of a grid of `rows` by `columns`. The order goes down `group` rows, then to the
// next column, then to the next group of rows. Concurrent tiles share few rows and columns, so that
// their inputs stay in L2.
template <class Int>
struct GroupedTile {
  Int row, column;

  QUERN_HD GroupedTile(Int i, Int rows, Int columns, Int group) {
    const Int first = i / (group * columns) * group;
    const Int here = group < rows - first ? group : rows - first;
    const Int place = i - first * columns;
    row = first + place % here;
    column = place / here;
  }

  // The same with the last `last` rows as a group of their own.
  QUERN_HD static GroupedTile with_last_group(Int i, Int rows, Int columns, Int group, Int last) {
    const Int before = rows - last;
    if (i < before * columns) return GroupedTile(i, before, columns, group);
    GroupedTile tile(i - before * columns, last, columns, last);
    tile.row += before;
    return tile;
  }
};

}  // namespace quern::kernels::cuda
