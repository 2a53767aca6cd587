// Tensor's views: new shapes and strides on the same storage.
#include "base/error.h"
#include "tensor/tensor.h"

namespace quern {

Tensor Tensor::view(const Shape& shape, const Strides& strides, int64_t offset) const {
  Tensor out = *this;
  out.shape_ = shape;
  out.strides_ = strides;
  out.offset_ = offset;
  return out;
}

Tensor Tensor::transpose(int a, int b) const {
  const int i = shape_.axis(a), j = shape_.axis(b);
  Shape shape = shape_;
  Strides strides = strides_;
  std::swap(shape[i], shape[j]);
  std::swap(strides[i], strides[j]);
  return view(shape, strides, offset_);
}

Tensor Tensor::permute(const std::vector<int>& dims) const {
  QUERN_CHECK(static_cast<int>(dims.size()) == ndim(), "permute: ", dims.size(),
              " dimensions given for shape ", shape_);
  Shape shape;
  Strides strides;
  unsigned seen = 0;
  for (const int dim : dims) {
    const int i = shape_.axis(dim);
    QUERN_CHECK(!(seen >> i & 1u), "permute: dimension ", dim, " is given twice");
    seen |= 1u << i;
    shape.push_back(shape_[i]);
    strides.push_back(strides_[i]);
  }
  return view(shape, strides, offset_);
}

Tensor Tensor::slice(int dim, int64_t begin, int64_t end) const {
  const int i = shape_.axis(dim);
  QUERN_CHECK(0 <= begin && begin <= end && end <= shape_[i], "slice: ", begin, " to ", end,
              " does not lie in dimension ", i, " of shape ", shape_);
  Shape shape = shape_;
  shape[i] = end - begin;
  return view(shape, strides_, offset_ + begin * strides_[i]);
}

Tensor Tensor::expand(const Shape& shape) const {
  const int added = shape.ndim() - ndim();
  QUERN_CHECK(added >= 0, "expand: shape ", shape_, " has more dimensions than ", shape);
  Strides strides = shape;
  for (int i = 0; i < shape.ndim(); ++i) {
    const int64_t here = i < added ? 1 : shape_[i - added];
    QUERN_CHECK(here == shape[i] || here == 1, "expand: shape ", shape_, " does not stretch to ",
                shape);
    strides[i] = i < added || (here == 1 && shape[i] != 1) ? 0 : strides_[i - added];
  }
  return view(shape, strides, offset_);
}

namespace {

Shape resolve(const Shape& from, Shape to) {
  int unknown = -1;
  int64_t known = 1;
  for (int i = 0; i < to.ndim(); ++i) {
    if (to[i] == -1) {
      QUERN_CHECK(unknown < 0, "reshape: more than one extent is -1 in ", to);
      unknown = i;
    } else {
      known *= to[i];
    }
  }
  if (unknown >= 0 && known > 0 && from.numel() % known == 0) to[unknown] = from.numel() / known;
  QUERN_CHECK(to.numel() == from.numel() && (unknown < 0 || to[unknown] >= 0), "reshape: shape ",
              from, " has ", from.numel(), " elements and does not become ", to);
  return to;
}

// Strides that show the same elements as `shape`, or false when only a copy can. Groups of
// dimensions with equal products are matched from the right; each group of the source must be one
// even run.
bool viewable(const Shape& from, const Strides& strides, const Shape& to, Strides& out) {
  out = to;
  int i = from.ndim() - 1, j = to.ndim() - 1;
  while (j >= 0) {
    while (i >= 0 && from[i] == 1) --i;
    if (i < 0) {
      for (; j >= 0; --j) out[j] = 1;
      return true;
    }
    int64_t have = from[i], want = to[j];
    int64_t step = strides[i];
    out[j] = step;
    while (have != want) {
      if (have < want) {  // take the next source dimension: it must continue the run
        do --i;
        while (i >= 0 && from[i] == 1);
        if (i < 0 || strides[i] != step * have) return false;
        have *= from[i];
      } else {
        --j;
        out[j] = step * want;
        want *= to[j];
      }
    }
    --i;
    --j;
  }
  return true;
}

}  // namespace

Tensor Tensor::reshape(const Shape& requested) const {
  const Shape shape = resolve(shape_, requested);
  Strides strides;
  if (numel() == 0) return view(shape, contiguous_strides(shape), offset_);
  if (viewable(shape_, strides_, shape, strides)) return view(shape, strides, offset_);
  const Tensor packed = clone("reshape");
  return packed.view(shape, contiguous_strides(shape), 0);
}

}  // namespace quern
