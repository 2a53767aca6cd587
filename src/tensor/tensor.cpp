#include "tensor/tensor.h"

#include "base/error.h"
#include "kernels/copy.h"
#include "tensor/cuda_runtime.h"
#include "tensor/visit.h"

namespace quern {

Storage::Storage(std::shared_ptr<Allocator> allocator, int64_t bytes, MemoryTag tag)
    : data_(static_cast<char*>(allocator->allocate(bytes, tag))),
      bytes_(bytes),
      allocator_(std::move(allocator)) {}

Storage::Storage(void* data, int64_t bytes, std::shared_ptr<void> keep_alive)
    : data_(static_cast<char*>(data)), bytes_(bytes), keep_alive_(std::move(keep_alive)) {}

Storage::~Storage() {
  if (allocator_) allocator_->release(data_);
}

void Storage::record_use(kernels::cuda::Stream stream) const {
  if (allocator_) allocator_->record_use(data_, stream);
}

Tensor Tensor::empty(const Shape& shape, DType dtype, MemoryTag tag) {
  return empty(shape, dtype, Context::current().device(), tag);
}

Tensor Tensor::empty(const Shape& shape, DType dtype, Device device, MemoryTag tag) {
  return allocate(shape, dtype, device, Context::current().allocator(device), tag);
}

Tensor Tensor::empty_on_host(const Shape& shape, DType dtype, MemoryTag tag) {
  const Context& context = Context::current();
  return allocate(shape, dtype, context.device(), context.offload_allocator(), tag);
}

Tensor Tensor::allocate(const Shape& shape, DType dtype, Device device,
                        const std::shared_ptr<Allocator>& allocator, MemoryTag tag) {
  for (const int64_t dim : shape)
    QUERN_CHECK(dim >= 0, tag.name, ": shape ", shape, " has a negative extent");
  Tensor tensor;
  tensor.shape_ = shape;
  tensor.strides_ = contiguous_strides(shape);
  tensor.dtype_ = dtype;
  tensor.device_ = device;
  tensor.storage_ = std::make_shared<Storage>(allocator, tensor.bytes(), tag);
  return tensor;
}

Tensor Tensor::borrow(void* data, const Shape& shape, DType dtype, Device device,
                      std::shared_ptr<void> keep_alive) {
  Tensor tensor;
  tensor.shape_ = shape;
  tensor.strides_ = contiguous_strides(shape);
  tensor.dtype_ = dtype;
  tensor.device_ = device;
  tensor.storage_ = std::make_shared<Storage>(data, tensor.bytes(), std::move(keep_alive));
  return tensor;
}

bool Tensor::is_contiguous() const {
  int64_t step = 1;
  for (int i = ndim() - 1; i >= 0; --i) {
    if (shape_[i] != 1 && strides_[i] != step) return numel() == 0;
    step *= shape_[i];
  }
  return true;
}

void* Tensor::raw_data() const {
  QUERN_CHECK(defined(), "tensor: an undefined tensor has no data");
  return storage_->data() + offset_ * static_cast<int64_t>(size_of(dtype_));
}

void Tensor::check_dtype(DType expected) const {
  QUERN_CHECK(dtype_ == expected, "tensor: dtype is ", dtype_, ", expected ", expected);
}

Tensor Tensor::contiguous() const {
  return is_contiguous() ? *this : clone("contiguous");
}

Tensor Tensor::clone(const char* name) const {
  const Tensor out = empty(shape_, dtype_, device_, name);
  copy(out, *this);
  return out;
}

Tensor Tensor::to(DType dtype) const {
  if (dtype == dtype_) return *this;
  const Tensor out = empty(shape_, dtype, device_, "convert");
  copy(out, *this);
  return out;
}

Tensor Tensor::to(Device device) const {
  if (device == device_) return *this;
  const Tensor out = empty(shape_, dtype_, device, "device copy");
  copy(out, *this);
  return out;
}

double Tensor::item() const {
  QUERN_CHECK(numel() == 1, "item: shape is ", shape_, ", expected one element");
  return reshape(Shape{}).to(kCpu).to(DType::f64).to_vector<double>()[0];
}

void Tensor::download(void* out) const {
  const Tensor packed = contiguous();
  copy(borrow(out, shape_, dtype_, kCpu), packed);
}

namespace {

void copy_on_one_device(const Tensor& dst, const Tensor& src) {
  kernels::StridedCopy layout;
  layout.ndim = dst.ndim();
  for (int i = 0; i < dst.ndim(); ++i) {
    layout.shape[i] = dst.shape()[i];
    layout.dst_strides[i] = dst.strides()[i];
    layout.src_strides[i] = src.strides()[i];
  }
  on_device(dst.device(), [&](auto stream) {
    copy(dst.raw_data(), dst.dtype(), src.raw_data(), src.dtype(), layout, stream);
  });
}

}  // namespace

void copy(const Tensor& dst, const Tensor& src) {
  QUERN_CHECK(dst.shape() == src.shape(), "copy: source has shape ", src.shape(), ", expected ",
              dst.shape());
  if (dst.device() == src.device()) return copy_on_one_device(dst, src);
  if (!dst.is_contiguous()) {  // gather on the source's device, scatter on the destination's
    const Tensor staged = Tensor::empty(dst.shape(), dst.dtype(), dst.device(), "copy staging");
    copy(staged, src);
    return copy_on_one_device(dst, staged);
  }
  const Tensor packed = src.to(dst.dtype()).contiguous();
  const Context& context = Context::current();
  if (context.is_dry()) return;
  cuda::copy(dst.raw_data(), packed.raw_data(), dst.bytes(), context.cuda_stream());
  context.synchronize();  // `packed` is released here, and host memory must be readable on return
}

void fill(const Tensor& x, double value) {
  QUERN_CHECK(x.is_contiguous(), "fill: expected a contiguous tensor, shape ", x.shape());
  on_device(x.device(),
            [&](auto stream) { fill(x.raw_data(), x.dtype(), x.numel(), value, stream); });
}

Tensor Tensor::view(const Shape& shape, const Strides& strides, int64_t offset) const {
  Tensor out = *this;
  out.shape_ = shape;
  out.strides_ = strides;
  out.offset_ = offset;
  for (int i = shape.ndim() - 1; i >= 0; --i) {  // the step of an only element leads nowhere
    const bool last = i + 1 == shape.ndim();
    if (shape[i] == 1) out.strides_[i] = last ? 1 : out.strides_[i + 1] * shape[i + 1];
  }
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

// Strides of a view of the same elements with shape `to`, or false when that needs a copy. Groups
// of dimensions with equal products are matched from the right; each group of the source must be
// one run with a fixed step.
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
        while (from[i] == 1);  // there is one: both shapes have the same number of elements
        if (strides[i] != step * have) return false;
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
