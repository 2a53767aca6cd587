// Tensor: a value handle on storage that it shares with its views. Shapes are row-major. Strides
// are in elements and may be 0 (expand). An extent of 1 gets a packed stride, since kernels check
// the alignment of strides. As with a pointer, a const Tensor gives write access to its elements.
#pragma once

#include <memory>
#include <vector>

#include "base/device.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "tensor/allocator.h"

namespace quern {

// A run of bytes on one device, released with the last Tensor that uses it.
class Storage {
 public:
  Storage(std::shared_ptr<Allocator> allocator, int64_t bytes, MemoryTag tag);
  Storage(void* data, int64_t bytes, std::shared_ptr<void> keep_alive);  // borrowed memory
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  void record_use(kernels::cuda::Stream stream) const;

 private:
  char* data_ = nullptr;
  int64_t bytes_ = 0;
  std::shared_ptr<Allocator> allocator_;  // null when borrowed
  std::shared_ptr<void> keep_alive_;
};

class Tensor {
 public:
  Tensor() = default;  // undefined: no storage

  // Uninitialised, on the given device (or the current Context's).
  static Tensor empty(const Shape& shape, DType dtype, MemoryTag tag = "tensor");
  static Tensor empty(const Shape& shape, DType dtype, Device device, MemoryTag tag = "tensor");
  // The same on the current Context's device, but in memory of its offload_allocator().
  static Tensor empty_on_host(const Shape& shape, DType dtype, MemoryTag tag = "tensor");
  // Uses memory owned elsewhere; the storage keeps keep_alive.
  static Tensor borrow(void* data, const Shape& shape, DType dtype, Device device,
                       std::shared_ptr<void> keep_alive = nullptr);

  bool defined() const { return storage_ != nullptr; }
  const Shape& shape() const { return shape_; }
  const Strides& strides() const { return strides_; }
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  int ndim() const { return shape_.ndim(); }
  int64_t dim(int i) const { return shape_[shape_.axis(i)]; }
  int64_t numel() const { return shape_.numel(); }
  int64_t bytes() const { return numel() * static_cast<int64_t>(size_of(dtype_)); }
  bool is_contiguous() const;
  bool is_sole_owner() const { return storage_.use_count() == 1; }  // no other Tensor uses it
  bool shares_storage(const Tensor& other) const { return storage_ == other.storage_; }
  // Call it after work on another stream that uses this tensor: see Allocator::record_use. Borrowed
  // memory must stay valid until that work is done.
  void record_use(kernels::cuda::Stream stream) const { storage_->record_use(stream); }

  // First element. Throws when T is not the dtype.
  template <class T>
  T* data() const {
    check_dtype(dtype_of<T>);
    return static_cast<T*>(raw_data());
  }
  void* raw_data() const;

  // Views: no element moves.
  Tensor transpose(int a, int b) const;
  Tensor permute(const std::vector<int>& dims) const;
  Tensor slice(int dim, int64_t begin, int64_t end) const;  // begin <= i < end
  Tensor expand(const Shape& shape) const;                  // extents of 1 repeat
  // A view where the strides allow one, else a contiguous copy. One extent may be -1.
  Tensor reshape(const Shape& shape) const;

  Tensor contiguous() const;  // itself if it is contiguous
  Tensor clone(const char* name = "clone") const;
  Tensor to(DType dtype) const;    // itself if it has that dtype
  Tensor to(Device device) const;  // itself if it is there; a copy waits for the device

  // The single element, converted to double; waits for the device.
  double item() const;
  // All elements in row-major order on the host; waits for the device. T must be the dtype.
  template <class T>
  std::vector<T> to_vector() const {
    check_dtype(dtype_of<T>);
    std::vector<T> out(static_cast<size_t>(numel()));
    download(out.data());
    return out;
  }

 private:
  static Tensor allocate(const Shape& shape, DType dtype, Device device,
                         const std::shared_ptr<Allocator>& allocator, MemoryTag tag);
  void check_dtype(DType expected) const;
  void download(void* out) const;
  Tensor view(const Shape& shape, const Strides& strides, int64_t offset) const;

  std::shared_ptr<Storage> storage_;
  Shape shape_;
  Strides strides_;
  int64_t offset_ = 0;  // elements
  DType dtype_ = DType::f32;
  Device device_;
};

// dst = src, converted; the shapes must be equal. A copy across devices waits for the device; one
// on the same device does not.
void copy(const Tensor& dst, const Tensor& src);
void fill(const Tensor& x, double value);  // contiguous x

}  // namespace quern
