#include "nn/parameter.h"

#include "base/error.h"

namespace quern {

Parameter::Parameter(Shape shape, Init init) : Parameter(shape, init, {}) {}

Parameter::Parameter(Shape shape, Init init, std::vector<ParameterPart> parts)
    : shape_(shape), init_(init), parts_(std::move(parts)), store_(std::make_shared<Leaf>()) {
  group.decay = shape.ndim() >= 2;
  if (shape.ndim() < 2) group.kind = ParameterKind::vector;
  int64_t row = 0;
  for (const ParameterPart& part : parts_) {
    QUERN_CHECK(part.row_begin == row, "parameter: part ", part.name, " begins at row ",
                part.row_begin, ", expected ", row);
    row += part.rows;
  }
  QUERN_CHECK(parts_.empty() || row == shape_[0], "parameter: its parts have ", row,
              " rows, expected ", shape_[0]);
}

const Variable& Parameter::checked(const Variable& variable) const {
  QUERN_CHECK(variable.defined(), "parameter ", name_.empty() ? "(undeclared)" : name_,
              begin_ >= 0 ? ": ranks share out its FP32 values; read weight()"
                          : " has no memory yet: build a ParameterArena for its model first");
  if (store_->on_use) store_->on_use();
  return variable;
}

}  // namespace quern
