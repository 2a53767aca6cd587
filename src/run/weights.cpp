#include "run/weights.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <set>
#include <utility>

#include "base/error.h"
#include "run/nonfinite.h"
#include "tensor/factory.h"

namespace quern {

namespace {

// Named tensors of any source. `where` begins error messages.
struct Tensors {
  std::string where;
  std::vector<std::string> names;
  std::function<TensorView(const std::string&)> find;  // throws when there is none
};

Tensors tensors_of(const TensorSource& source) {
  return {source.folder().string(), source.names(),
          [&source](const std::string& name) { return source.tensor(name); }};
}

Tensors tensors_of(const SafetensorsShards& files, const std::string& prefix) {
  Tensors tensors{files.path().string(), files.names(),
                  [&files](const std::string& name) { return files.tensor(name); }};
  std::erase_if(tensors.names, [&](const std::string& name) { return !name.starts_with(prefix); });
  return tensors;
}

// Takes the values of a slice as they were found.
using Put = std::function<void(const NamedSlice&, const Tensor&)>;

Tensor checked_tensor(const TensorView& view, const Shape& shape, const std::string& where) {
  QUERN_CHECK(view.shape == shape, where, ": tensor '", view.name, "' has shape ", view.shape,
              ", expected ", shape);
  QUERN_CHECK(is_floating(view.dtype), where, ": tensor '", view.name, "' is ", view.dtype,
              ", expected f32, bf16, f16 or f64");
  return tensor_of(view);
}

// `table`: of the model whose spare tensors the file may contain; null: it may contain no other
// tensors.
void load(const OptimizerBuffer& buffer, const Tensors& tensors, const ParameterTable* table,
          const Put& put) {
  std::set<std::string> expected;
  for (const NamedSlice& slice : buffer.slices) {
    const std::string name = buffer.prefix + slice.name;
    put(slice, checked_tensor(tensors.find(name), slice.shape, tensors.where));
    expected.insert(name);
  }
  for (const std::string& name : tensors.names) {
    QUERN_CHECK(expected.contains(name) ||
                    (table && is_spare_tensor(name, *table, tensors.where, tensors.find)),
                tensors.where, ": tensor '", name, "' is not one of the model's");
  }
}

// The first rows of a matrix that has more rows than the arena's.
TensorView head_of(TensorView view, const Shape& shape) {
  const bool longer = view.shape.ndim() == 2 && shape.ndim() == 2 && view.shape[1] == shape[1] &&
                      view.shape[0] > shape[0];
  if (!longer) return view;
  view.data = view.data.first(static_cast<size_t>(shape.numel() * size_of(view.dtype)));
  view.shape = shape;
  return view;
}

void load_weights(ParameterArena& arena, Tensors tensors, const std::string& first_rows) {
  const auto slices = arena.named_slices();
  const auto cut = std::ranges::find(slices, first_rows, &NamedSlice::name);
  if (cut != slices.end()) {
    tensors.find = [find = tensors.find, &cut](const std::string& name) {
      return name == cut->name ? head_of(find(name), cut->shape) : find(name);
    };
  }
  const OptimizerBuffer values = values_of(arena);
  load(values, tensors, &arena.table(),
       [&](const NamedSlice& slice, const Tensor& found) { arena.set_values(slice.begin, found); });
  const std::string bad = find_nonfinite(values);
  QUERN_CHECK(bad.empty(), tensors.where, ": ", bad, ", expected finite numbers");
  arena.refresh_copies();
}

}  // namespace

OptimizerBuffer values_of(const ParameterArena& arena) {
  const Tensor& data = arena.is_split() ? arena.copies() : arena.values();
  OptimizerBuffer values{"", data, arena.named_slices()};
  if (arena.is_shared_out()) values.share = arena.layout().values;
  values.low = arena.low();
  return values;
}

Tensor tensor_of(const TensorView& view) {
  const Tensor tensor = Tensor::empty(view.shape, view.dtype, kCpu, "weights from a file");
  std::memcpy(tensor.raw_data(), view.data.data(), view.data.size());
  return tensor;
}

void load_weights(ParameterArena& arena, const TensorSource& source,
                  const std::string& first_rows) {
  load_weights(arena, tensors_of(source), first_rows);
}

void load_weights(ParameterArena& arena, const SafetensorsShards& files,
                  const std::string& first_rows) {
  load_weights(arena, tensors_of(files, ""), first_rows);
}

void load_buffer(const OptimizerBuffer& buffer, const SafetensorsShards& files) {
  load(buffer, tensors_of(files, buffer.prefix), nullptr,
       [&](const NamedSlice& slice, const Tensor& found) {
         if (!buffer.share) return copy(ParameterArena::slice(buffer.data, slice), found);
         copy_to_places(buffer.data, *buffer.share, slice.begin, found.reshape({found.numel()}));
       });
}

Tensor spread(const OptimizerBuffer& buffer, const NamedSlice& slice) {
  if (buffer.low.defined()) {
    return join_weights(ParameterArena::slice(buffer.data, slice),
                        ParameterArena::slice(buffer.low, slice));
  }
  if (!buffer.share) return ParameterArena::slice(buffer.data, slice);
  const Tensor whole = Tensor::empty(slice.shape, buffer.data.dtype(), kCpu, "part of a tensor");
  fill(whole, 0.0);
  copy_from_places(whole.reshape({whole.numel()}), buffer.data, *buffer.share, slice.begin);
  return whole;
}

namespace {

// Elements [begin, end) of a buffer that is no share. Split weights are joined in pieces, since a
// GPU may have no memory for all of them.
Tensor on_host(const OptimizerBuffer& buffer, int64_t begin, int64_t end) {
  if (!buffer.low.defined()) return buffer.data.slice(0, begin, end).to(kCpu);
  constexpr int64_t kMost = 1 << 22;
  const Tensor all = Tensor::empty({end - begin}, DType::f32, kCpu, "weights for a file");
  for (int64_t from = begin; from < end; from += kMost) {
    const int64_t to = std::min(from + kMost, end);
    copy(all.slice(0, from - begin, to - begin),
         join_weights(buffer.data.slice(0, from, to), buffer.low.slice(0, from, to)));
  }
  return all;
}

}  // namespace

HostTensors host_tensors(const OptimizerBuffer& buffer, const ShardedWeights* shards) {
  QUERN_CHECK(!buffer.share || shards, "files: '", buffer.prefix,
              "' is one rank's share, expected all of it");
  const auto begin_of = [](const NamedSlice& slice) { return slice.begin; };
  const int64_t begin =
      buffer.slices.empty() ? 0 : std::ranges::min(buffer.slices, {}, begin_of).begin;
  int64_t end = begin, packed = 0;
  for (const NamedSlice& slice : buffer.slices) {
    end = std::max(end, slice.begin + slice.shape.numel());
  }
  HostTensors host{buffer.share ? shards->gathered(buffer) : on_host(buffer, begin, end), {}};
  const DType dtype = host.memory.dtype();
  const auto width = static_cast<int64_t>(size_of(dtype));
  const auto* data = static_cast<const std::byte*>(host.memory.raw_data());
  for (const NamedSlice& slice : buffer.slices) {
    const int64_t numel = slice.shape.numel();
    // Those of a share lie one behind the other.
    const int64_t place =
        buffer.share ? std::exchange(packed, packed + numel) : slice.begin - begin;
    host.views.push_back({buffer.prefix + slice.name,
                          dtype,
                          slice.shape,
                          {data + place * width, static_cast<size_t>(numel * width)}});
  }
  return host;
}

HostTensors weights_of(const ParameterArena& arena) {
  arena.check_exact();
  return host_tensors(values_of(arena));
}

HostTensors gradients_of(const ParameterArena& arena) {
  return host_tensors({"", arena.grads(), arena.trainable_slices()});
}

}  // namespace quern
