#include "tensor/tensor.h"

#include "base/error.h"
#include "kernels/copy.h"
#include "tensor/cuda_runtime.h"
#include "tensor/visit.h"

namespace quern {

Storage::Storage(std::shared_ptr<Allocator> allocator, int64_t bytes, const char* name)
    : data_(static_cast<char*>(allocator->allocate(bytes, name))),
      bytes_(bytes),
      allocator_(std::move(allocator)) {}

Storage::Storage(void* data, int64_t bytes, std::shared_ptr<void> keep_alive)
    : data_(static_cast<char*>(data)), bytes_(bytes), keep_alive_(std::move(keep_alive)) {}

Storage::~Storage() {
  if (allocator_) allocator_->release(data_);
}

Tensor Tensor::empty(const Shape& shape, DType dtype, const char* name) {
  return empty(shape, dtype, Context::current().device(), name);
}

Tensor Tensor::empty(const Shape& shape, DType dtype, Device device, const char* name) {
  for (const int64_t dim : shape)
    QUERN_CHECK(dim >= 0, name, ": shape ", shape, " has a negative extent");
  Tensor tensor;
  tensor.shape_ = shape;
  tensor.strides_ = contiguous_strides(shape);
  tensor.dtype_ = dtype;
  tensor.device_ = device;
  tensor.storage_ =
      std::make_shared<Storage>(Context::current().allocator(device), tensor.bytes(), name);
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
  if (!dst.is_contiguous()) {  // gather on the far side, scatter on this one
    const Tensor staged = Tensor::empty(dst.shape(), dst.dtype(), dst.device(), "copy staging");
    copy(staged, src);
    return copy_on_one_device(dst, staged);
  }
  const Tensor packed = src.to(dst.dtype()).contiguous();
  const Context& context = Context::current();
  cuda::copy(dst.raw_data(), packed.raw_data(), dst.bytes(), context.cuda_stream().handle);
  context.synchronize();  // `packed` may go, and host memory must be readable on return
}

void fill(const Tensor& x, double value) {
  QUERN_CHECK(x.is_contiguous(), "fill: expected a contiguous tensor, shape ", x.shape());
  on_device(x.device(),
            [&](auto stream) { fill(x.raw_data(), x.dtype(), x.numel(), value, stream); });
}

}  // namespace quern
