#include "nn/arena.h"

#include "base/error.h"
#include "base/round_up.h"
#include "kernels/random.h"
#include "tensor/factory.h"
#include "tensor/visit.h"

namespace quern {

namespace {

constexpr double kTruncation = 3.0;  // standard deviations

Tensor view(const Tensor& buffer, int64_t begin, const Shape& shape) {
  return buffer.slice(0, begin, begin + shape.numel()).reshape(shape);
}

// Calls f(a part that the buffer has, the same of the range).
template <class F>
void for_each_part(const Tensor& buffer, const Placement& places, int64_t begin,
                   const Tensor& range, const F& f) {
  places.for_each_part(begin, begin + range.numel(), [&](int64_t from, int64_t to, int64_t place) {
    f(buffer.slice(0, place, place + to - from), range.slice(0, from - begin, to - begin));
  });
}

}  // namespace

void copy_to_places(const Tensor& buffer, const Placement& places, int64_t begin,
                    const Tensor& range) {
  for_each_part(buffer, places, begin, range,
                [](const Tensor& part, const Tensor& of_range) { copy(part, of_range); });
}

void copy_from_places(const Tensor& range, const Tensor& buffer, const Placement& places,
                      int64_t begin) {
  for_each_part(buffer, places, begin, range,
                [](const Tensor& part, const Tensor& of_range) { copy(of_range, part); });
}

ArenaLayout ArenaLayout::whole(const ParameterTable& table) {
  const Placement all = Placement::whole(table.size());
  const Placement trained = Placement::whole(table.trainable());
  return {all, all, trained, trained};
}

ParameterArena::ParameterArena(Module& model, const Options& options)
    : ParameterArena(ParameterList(model), options) {}

ParameterArena::ParameterArena(const ParameterList& list, const Options& options)
    : table_(list, options.regroup), offload_(options.offload) {
  for (const auto& make : list.constants()) make();
  layout_ = options.layout ? options.layout(table_) : ArenaLayout::whole(table_);
  allocate(options);
  for (const ParameterEntry& entry : table_.entries()) {
    parameters_.push_back(list.entries()[entry.order].parameter);
    connect(*parameters_.back(), entry, options.training);
  }
  initialise(options.seed);
}

void ParameterArena::allocate(const Options& options) {
  const auto buffer = [](const Placement& places, const char* name, MemoryCategory category,
                         bool on_host = false) {
    const Shape shape{places.size()};
    const MemoryTag tag(name, category);
    const Tensor made = on_host ? Tensor::empty_on_host(shape, DType::f32, tag)
                                : Tensor::empty(shape, DType::f32, tag);
    fill(made, 0.0);
    return made;
  };
  const bool bf16 = has_bf16_activations(options.precision);
  const bool on_host = bf16 && offload_ == Offload::optimizer;
  values_ = buffer(layout_.values, "parameters", MemoryCategory::parameters, on_host);
  if (bf16 && (is_shared_out() || on_host)) {
    constexpr int64_t kAligned = 64;  // 256 bytes
    for (const ParameterEntry& entry : table_.entries()) {
      const int64_t place = round_up(vector_places_.size(), kAligned);
      if (entry.fp32) vector_places_.add(entry.begin, entry.end(), place);
    }
    vectors_ = buffer(vector_places_, "parameters (vectors in FP32)", MemoryCategory::parameters);
  }
  if (options.training && layout_.gradients_in_turns) {
    sums_ = buffer(layout_.sums, "gradient sums", MemoryCategory::gradients);
  }
  const PoolScope moved(*Context::current().allocator(), options.moved);
  if (bf16) {
    copies_ = Tensor::empty({layout_.weights.size()}, DType::bf16,
                            {"parameters (bf16 copy)", MemoryCategory::parameters});
    if (is_shared_out()) fill(copies_, 0.0);
  } else if (is_shared_out()) {
    copies_ = buffer(layout_.weights, "parameters (all ranks')", MemoryCategory::parameters);
  }
  if (!options.training) return;
  grads_ = buffer(layout_.gradients, "gradients", MemoryCategory::gradients);
  if (!is_shared_out()) grads_ = grads_.slice(0, 0, trainable());
  if (!sums_.defined()) sums_ = grads_;
}

void ParameterArena::connect(Parameter& parameter, const ParameterEntry& entry, bool training) {
  QUERN_CHECK(parameter.begin_ < 0, "parameter ", entry.name, " has the memory of another arena");
  parameter.name_ = parameter.store_->name = entry.name;
  parameter.begin_ = entry.begin;
  parameter.group = entry.group;
  const auto place = [&](const Tensor& buffer, const Placement& places) {
    return view(buffer, places.of(entry.begin), entry.shape);
  };
  const Tensor weight =
      copies_.defined() ? place(copies_, layout_.weights) : place(values_, layout_.values);
  Tensor master = weight;
  if (weight.dtype() == DType::bf16 && !has_vectors()) master = place(values_, layout_.values);
  if (has_vectors()) master = entry.fp32 ? place(vectors_, vector_places_) : Tensor();
  if (!training || parameter.group.frozen) {
    parameter.master_ = master;
    parameter.weight_ = weight;
    return;
  }
  Leaf& leaf = *parameter.store_;
  leaf.grad = place(grads_, layout_.gradients);
  leaf.has_buffer = true;
  if (master.defined()) parameter.master_ = Variable::leaf(master, parameter.store_);
  parameter.weight_ = Variable::leaf(weight, parameter.store_);
}

void ParameterArena::read_weights_from(const Tensor& buffer, const Placement& places) {
  for (Parameter* parameter : parameters_) {
    if (!places.holds(parameter->begin())) continue;
    const bool is_master = parameter->weight_.dtype() == DType::f32;
    parameter->weight_ = Variable::leaf(
        view(buffer, places.of(parameter->begin()), parameter->shape()), parameter->store_);
    if (is_master) parameter->master_ = parameter->weight_;
  }
}

// Calls `set` with the values of a range; of what is not here it sets a copy.
void ParameterArena::set_values(int64_t begin, const Shape& shape,
                                const std::function<void(const Tensor&)>& set) {
  if (!is_shared_out()) return set(view(values_, begin, shape));
  const Tensor all = Tensor::empty({shape.numel()}, DType::f32, "initial values");
  set(all);
  copy_to_places(values_, layout_.values, begin, all);
}

// Each value depends only on the seed and the offset.
void ParameterArena::initialise(uint64_t seed) {
  const auto draw = [&](int64_t begin, const Shape& shape, const Init& init) {
    set_values(begin, shape, [&](const Tensor& value) {
      if (init.kind == Init::Kind::constant) return fill(value, init.value);
      const double cut = init.kind == Init::Kind::truncated_normal ? kTruncation : 0.0;
      const kernels::PhiloxKey key{seed, static_cast<uint64_t>(begin)};
      on_device(value.device(), [&](auto stream) {
        normal(value.data<float>(), value.numel(), 0.0, init.std, cut, key, stream);
      });
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

void ParameterArena::refresh_vectors() {
  if (!has_vectors() || is_shared_out()) return;
  for (const Placement::Piece& vector : vector_places_.pieces()) {
    const int64_t count = vector.end - vector.begin;
    copy(vectors_.slice(0, vector.place, vector.place + count),
         values_.slice(0, vector.begin, vector.end));
  }
}

void ParameterArena::refresh_copies() {
  if (!copies_.defined()) return;
  if (!is_shared_out()) {
    copy(copies_, values_);
    return refresh_vectors();
  }
  for (const Parameter* parameter : parameters_) {
    if (parameter->begin() < trainable()) continue;
    const Tensor value = view(values_, layout_.values.of(parameter->begin()), parameter->shape());
    copy(parameter->weight_.value(), value);
    if (parameter->master_.defined()) copy(parameter->master_.value(), value);
  }
}

}  // namespace quern
