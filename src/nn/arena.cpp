#include "nn/arena.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/random.h"
#include "tensor/factory.h"
#include "tensor/visit.h"

namespace quern {

namespace {

// In elements, so that both the FP32 and the BF16 buffer keep the promise: slices at 256 bytes,
// blocks at 1 KiB.
constexpr int64_t kSliceAlignment = 256 / 2;
constexpr int64_t kBlockAlignment = 1024 / 2;
constexpr double kTruncation = 3.0;  // standard deviations

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

Tensor view(const Tensor& buffer, int64_t begin, const Shape& shape) {
  return buffer.slice(0, begin, begin + shape.numel()).reshape(shape);
}

}  // namespace

ParameterArena::ParameterArena(Module& model, const Options& options) {
  ParameterList list;
  model.declare(list);
  if (options.regroup) {
    for (const ParameterList::Entry& entry : list.entries()) {
      options.regroup(entry.parameter->name(), entry.parameter->group);
    }
  }
  place(list);
  values_ = Tensor::empty({size_}, DType::f32, "parameters");
  fill(values_, 0.0);
  if (options.precision == Precision::bf16) {
    copies_ = Tensor::empty({size_}, DType::bf16, "parameters (bf16 copy)");
  }
  if (options.training) {
    grads_ = Tensor::empty({trainable_}, DType::f32, "gradients");
    moment1_ = Tensor::empty({trainable_}, DType::f32, "adam first moment");
    moment2_ = Tensor::empty({trainable_}, DType::f32, "adam second moment");
    for (const Tensor& buffer : {grads_, moment1_, moment2_}) fill(buffer, 0.0);
  }
  for (Parameter* parameter : parameters_) connect(*parameter, options.training);
  initialise(options.seed);
}

// Offsets: trainable parameters first, then frozen ones, each run in declaration order.
void ParameterArena::place(const ParameterList& list) {
  for (const bool frozen : {false, true}) {
    int block = -1;
    for (const ParameterList::Entry& entry : list.entries()) {
      if (entry.parameter->group.frozen != frozen) continue;
      if (entry.block != block) size_ = round_up(size_, kBlockAlignment);
      block = entry.block;
      entry.parameter->begin_ = size_;
      parameters_.push_back(entry.parameter);
      size_ = round_up(size_ + entry.parameter->numel(), kSliceAlignment);
    }
    size_ = round_up(size_, kBlockAlignment);
    if (!frozen) trainable_ = size_;
  }
}

void ParameterArena::connect(Parameter& parameter, bool training) {
  const Tensor value = view(values_, parameter.begin_, parameter.shape_);
  const Tensor compute =
      copies_.defined() ? view(copies_, parameter.begin_, parameter.shape_) : value;
  if (!training || parameter.group.frozen) {
    parameter.master_ = value;
    parameter.weight_ = compute;
    return;
  }
  Leaf& leaf = *parameter.store_;
  leaf.grad = view(grads_, parameter.begin_, parameter.shape_);
  leaf.has_buffer = true;
  parameter.master_ = Variable::leaf(value, parameter.store_);
  parameter.weight_ = Variable::leaf(compute, parameter.store_);
}

// An element depends on the seed and its place in the arena, whoever draws it.
void ParameterArena::initialise(uint64_t seed) {
  const auto draw = [&](int64_t begin, const Shape& shape, const Init& init) {
    const Tensor value = view(values_, begin, shape);
    if (init.kind == Init::Kind::constant) return fill(value, init.value);
    const double cut = init.kind == Init::Kind::truncated_normal ? kTruncation : 0.0;
    const kernels::PhiloxKey key{seed, static_cast<uint64_t>(begin)};
    on_device(value.device(), [&](auto stream) {
      normal(value.data<float>(), value.numel(), 0.0, init.std, cut, key, stream);
    });
  };
  for (const Parameter* parameter : parameters_) {
    if (parameter->parts().empty()) draw(parameter->begin(), parameter->shape(), parameter->init_);
    for (const ParameterPart& part : parameter->parts()) {
      Shape shape = parameter->shape();
      const int64_t width = parameter->numel() / shape[0];
      shape[0] = part.rows;
      draw(parameter->begin() + part.row_begin * width, shape,
           part.init.value_or(parameter->init_));
    }
  }
  refresh_copies();
}

std::vector<NamedSlice> ParameterArena::named_slices() const {
  std::vector<NamedSlice> slices;
  for (const Parameter* parameter : parameters_) {
    if (parameter->parts().empty()) {
      slices.push_back({parameter->name(), parameter->shape(), parameter->begin()});
      continue;
    }
    const int64_t width = parameter->numel() / parameter->shape()[0];
    for (const ParameterPart& part : parameter->parts()) {
      Shape shape = parameter->shape();
      shape[0] = part.rows;
      slices.push_back({part.name, shape, parameter->begin() + part.row_begin * width});
    }
  }
  return slices;
}

Tensor ParameterArena::slice(const Tensor& buffer, const NamedSlice& slice) const {
  return view(buffer, slice.begin, slice.shape);
}

void ParameterArena::zero_grad() {
  for (Parameter* parameter : parameters_) parameter->store_->zero();
}

void ParameterArena::finish_gradients() {
  for (Parameter* parameter : parameters_) {
    Leaf& leaf = *parameter->store_;
    if (!leaf.has_buffer || !leaf.fresh) continue;
    fill(leaf.grad, 0.0);
    leaf.fresh = false;
  }
}

void ParameterArena::refresh_copies() {
  if (copies_.defined()) copy(copies_, values_);
}

}  // namespace quern
