#include "nn/arena.h"

#include "base/error.h"
#include "kernels/random.h"
#include "tensor/factory.h"
#include "tensor/visit.h"

namespace quern {

namespace {

constexpr double kTruncation = 3.0;  // standard deviations

Tensor view(const Tensor& buffer, int64_t begin, const Shape& shape) {
  return buffer.slice(0, begin, begin + shape.numel()).reshape(shape);
}

}  // namespace

ParameterArena::ParameterArena(Module& model, const Options& options)
    : ParameterArena(ParameterList(model), options) {}

ParameterArena::ParameterArena(const ParameterList& list, const Options& options)
    : table_(list, options.regroup) {
  for (const auto& make : list.constants()) make();
  values_ = Tensor::empty({size()}, DType::f32, {"parameters", MemoryCategory::parameters});
  fill(values_, 0.0);
  if (options.precision == Precision::bf16) {
    copies_ = Tensor::empty({size()}, DType::bf16,
                            {"parameters (bf16 copy)", MemoryCategory::parameters});
  }
  if (options.training) {
    grads_ = Tensor::empty({trainable()}, DType::f32, {"gradients", MemoryCategory::gradients});
    fill(grads_, 0.0);
  }
  for (const ParameterEntry& entry : table_.entries()) {
    parameters_.push_back(list.entries()[entry.order].parameter);
    connect(*parameters_.back(), entry, options.training);
  }
  initialise(options.seed);
}

void ParameterArena::connect(Parameter& parameter, const ParameterEntry& entry, bool training) {
  QUERN_CHECK(!parameter.master_.defined(), "parameter ", entry.name,
              " has the memory of another arena");
  parameter.name_ = parameter.store_->name = entry.name;
  parameter.begin_ = entry.begin;
  parameter.group = entry.group;
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

// Each value depends only on the seed and the offset.
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

std::vector<NamedSlice> ParameterArena::trainable_slices() const {
  std::vector<NamedSlice> slices = named_slices();
  std::erase_if(slices, [this](const NamedSlice& slice) { return slice.begin >= trainable(); });
  return slices;
}

Tensor ParameterArena::slice(const Tensor& buffer, const NamedSlice& slice) {
  return view(buffer, slice.begin, slice.shape);
}

void ParameterArena::zero_grad() {
  for (Parameter* parameter : parameters_) parameter->store_->zero();
}

void ParameterArena::finish_gradients() {
  for (Parameter* parameter : parameters_) {
    Leaf& leaf = *parameter->store_;
    QUERN_CHECK(leaf.owed == 0, leaf.name, ": ", leaf.owed,
                leaf.owed == 1 ? " loss has" : " losses have",
                " added to its gradient in the forward and backward was not run; compute a loss "
                "that is only read under NoGrad");
    if (!leaf.has_buffer || !leaf.fresh) continue;
    fill(leaf.grad, 0.0);
    leaf.fresh = false;
  }
}

void ParameterArena::refresh_copies() {
  if (copies_.defined()) copy(copies_, values_);
}

}  // namespace quern
