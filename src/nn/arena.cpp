#include "nn/arena.h"

#include <algorithm>

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

void split_weights(const Tensor& copies, const Tensor& low, const Tensor& weights) {
  QUERN_CHECK(weights.numel() == copies.numel() && weights.is_contiguous(), "split_weights: found ",
              weights.shape(), ", expected contiguous ", copies.shape());
  on_device(copies.device(), [&](auto stream) {
    split_weights(copies.data<bfloat16>(), low.defined() ? low.data<uint16_t>() : nullptr,
                  weights.data<float>(), weights.numel(), stream);
  });
}

Tensor join_weights(const Tensor& copies, const Tensor& low) {
  const Tensor weights =
      Tensor::empty(copies.shape(), DType::f32, {"joined weights", MemoryCategory::workspace});
  on_device(copies.device(), [&](auto stream) {
    join_weights(weights.data<float>(), copies.data<bfloat16>(), low.data<uint16_t>(),
                 weights.numel(), stream);
  });
  return weights;
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
                         bool on_host = false, DType dtype = DType::f32) {
    const Shape shape{places.size()};
    const MemoryTag tag(name, category);
    const Tensor made =
        on_host ? Tensor::empty_on_host(shape, dtype, tag) : Tensor::empty(shape, dtype, tag);
    fill(made, 0.0);
    return made;
  };
  constexpr MemoryCategory kParameters = MemoryCategory::parameters;
  const bool bf16 = has_bf16_activations(options.precision);
  const bool on_host = bf16 && offload_ == Offload::optimizer;
  if (!bf16 || is_shared_out()) {
    values_ = buffer(layout_.values, "parameters", kParameters, on_host);
  } else if (options.training) {
    low_ = buffer(layout_.values, "parameters (low 16 bits)", kParameters, on_host, DType::u16);
  }
  if (bf16) {
    constexpr int64_t kAligned = 64;  // 256 bytes
    for (const ParameterEntry& entry : table_.entries()) {
      const int64_t place = round_up(vector_places_.size(), kAligned);
      if (entry.fp32) vector_places_.add(entry.begin, entry.end(), place);
    }
    vectors_ = buffer(vector_places_, "parameters (vectors in FP32)", kParameters);
  }
  if (low_.defined()) {
    std::vector<kernels::WeightRun> runs;
    for (const Placement::Piece& piece : vector_places_.pieces()) {
      runs.push_back({.begin = piece.begin, .to = piece.place, .count = piece.end - piece.begin});
    }
    vector_runs_ = upload_table(runs, {"vector runs", kParameters});
  }
  if (options.training && layout_.gradients_in_turns) {
    sums_ = buffer(layout_.sums, "gradient sums", MemoryCategory::gradients);
  }
  const PoolScope moved(*Context::current().allocator(), options.moved);
  if (bf16) {
    copies_ = buffer(layout_.weights, "parameters (bf16 copy)", kParameters, false, DType::bf16);
  } else if (is_shared_out()) {
    copies_ = buffer(layout_.weights, "parameters (all ranks')", kParameters);
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

// Sets a range's values to what `write` writes.
void ParameterArena::set_by(int64_t begin, const Shape& shape,
                            const std::function<void(const Tensor&)>& write) {
  if (!is_shared_out() && !is_split()) return write(view(values_, begin, shape));
  const Tensor drawn = Tensor::empty({shape.numel()}, DType::f32, "initial values");
  write(drawn);
  set_values(begin, drawn);
}

// Each value depends only on the seed and the offset.
void ParameterArena::initialise(uint64_t seed) {
  const auto draw = [&](int64_t begin, const Shape& shape, const Init& init) {
    set_by(begin, shape, [&](const Tensor& value) {
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

kernels::WeightArrays ParameterArena::weight_arrays() const {
  kernels::WeightArrays arrays;
  if (is_split()) {
    check_exact();
    arrays.copies = copies_.data<bfloat16>();
    arrays.low = low_.data<uint16_t>();
  } else {
    arrays.values = values_.data<float>();
  }
  return arrays;
}

void ParameterArena::check_exact() const {
  QUERN_CHECK(low_.defined() || !is_split(), "this arena was built without gradients (training = ",
              "false) under bf16, so its weights are rounded; expected one with gradients");
}

Tensor ParameterArena::exact_values() const {
  check_exact();
  return is_split() ? join_weights(copies_, low_) : values_;
}

void ParameterArena::set_exact_values(const Tensor& values) {
  check_exact();
  if (is_split()) return set_values(0, values);
  if (!values.shares_storage(values_)) copy(values_, values);
  refresh_copies();
}

void ParameterArena::set_values(int64_t begin, const Tensor& values) {
  const Tensor flat = values.contiguous().reshape({values.numel()});
  if (!is_split()) return copy_to_places(values_, layout_.values, begin, flat);
  constexpr int64_t kMost = 1 << 24;  // of a buffer's elements, in FP32 on the device at a time
  for (int64_t from = 0; from < flat.numel(); from += kMost) {
    const int64_t to = std::min(from + kMost, flat.numel()), first = begin + from;
    const Tensor exact = flat.slice(0, from, to).to(DType::f32).to(copies_.device());
    const auto part = [&](const Tensor& buffer) {
      return buffer.defined() ? buffer.slice(0, first, begin + to) : buffer;
    };
    split_weights(part(copies_), part(low_), exact);
    copy_to_places(vectors_, vector_places_, first, exact);
  }
}

void ParameterArena::refresh_vectors() {
  if (!low_.defined()) return;
  on_device(vectors_.device(), [&](auto stream) {
    join_runs(vectors_.data<float>(), copies_.data<bfloat16>(), low_.data<uint16_t>(),
              static_cast<const kernels::WeightRun*>(vector_runs_.raw_data()),
              static_cast<int64_t>(vector_places_.pieces().size()), stream);
  });
}

void ParameterArena::refresh_frozen() {
  for (const Parameter* parameter : parameters_) {
    if (parameter->begin() < trainable()) continue;
    const Tensor value = view(values_, layout_.values.of(parameter->begin()), parameter->shape());
    const Tensor& weight = parameter->weight_.value();
    if (weight.dtype() == DType::bf16) {
      split_weights(weight, {}, value);
    } else {
      copy(weight, value);
    }
    if (parameter->master_.defined()) copy(parameter->master_.value(), value);
  }
}

// Where ops read the values themselves there is nothing to do.
void ParameterArena::refresh_copies() {
  if (is_shared_out()) return refresh_frozen();
  refresh_vectors();
}

}  // namespace quern
