#include "hf/hf_export.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <type_traits>

#include "base/error.h"
#include "base/round_to_odd.h"
#include "hf/huggingface.h"
#include "io/folder.h"
#include "model/model_cost.h"

namespace quern {

namespace fs = std::filesystem;

namespace {

// The model's weights in forward order. Missing ones are reported first, then unknown ones.
std::vector<TensorView> ordered_weights(const ModelConfig& config,
                                        std::span<const TensorView> weights) {
  std::map<std::string, const TensorView*> by_name;
  for (const TensorView& weight : weights) by_name[weight.name] = &weight;
  const ParameterTable table = parameter_table(config);
  for (const ParameterList::Alias& alias : table.aliases()) by_name.erase(alias.name);
  std::vector<TensorView> ordered;
  for (const auto& [name, shape, begin] : table.slices()) {
    const auto found = by_name.find(name);
    QUERN_CHECK(found != by_name.end(), "export: weight '", name, "' is missing");
    const TensorView& weight = *found->second;
    QUERN_CHECK(weight.shape == shape, "export: weight '", name, "' has shape ", weight.shape,
                ", expected ", shape);
    QUERN_CHECK(is_floating(weight.dtype), "export: weight '", name, "' is ", weight.dtype,
                ", expected f32, bf16, f16 or f64");
    ordered.push_back(weight);
    by_name.erase(found);
  }
  QUERN_CHECK(by_name.empty(), "export: '", by_name.begin()->first,
              "' is not a weight of the model");
  return ordered;
}

// Calls f with a value of the dtype's C++ type.
template <class F>
auto visit_floating(DType dtype, const F& f) {
  switch (dtype) {
    case DType::f32: return f(float{});
    case DType::bf16: return f(bfloat16{});
    case DType::f16: return f(float16{});
    case DType::f64: return f(double{});
    default: fail(cat("export: dtype is ", dtype, ", expected floating point"));
  }
}

// Rounds to nearest even, once: FP64 goes to 16 bits by way of round_to_odd.
template <class To, class Exact>
To rounded(Exact value) {
  if constexpr (std::is_same_v<Exact, double> && sizeof(To) == sizeof(uint16_t)) {
    return static_cast<To>(round_to_odd(value));
  } else {
    return static_cast<To>(value);
  }
}

// Converts elements of From, which need not be aligned, to elements of To.
template <class From, class To>
void convert_piece(std::span<const std::byte> from, std::vector<To>& to, const TensorView& tensor) {
  to.resize(from.size() / sizeof(From));
  for (size_t i = 0; i < to.size(); ++i) {
    From value;
    std::memcpy(&value, from.data() + i * sizeof value, sizeof value);
    const auto exact = static_cast<acc_t<From>>(value);
    to[i] = rounded<To>(exact);
    QUERN_CHECK(!std::isinf(static_cast<float>(to[i])) || std::isinf(exact), "export: weight '",
                tensor.name, "' holds ", exact, ", which is beyond the range of ", dtype_of<To>,
                "; choose another dtype");
  }
}

void write_converted(SafetensorsWriter& writer, const TensorView& tensor, DType dtype) {
  constexpr size_t kPiece = size_t{1} << 20;  // elements: a few MB in memory at a time
  visit_floating(tensor.dtype, [&](auto from) {
    visit_floating(dtype, [&](auto to) {
      using From = decltype(from);
      std::vector<decltype(to)> piece;
      for (size_t at = 0; at < tensor.data.size(); at += kPiece * sizeof(From)) {
        const size_t bytes = std::min(kPiece * sizeof(From), tensor.data.size() - at);
        convert_piece<From>(tensor.data.subspan(at, bytes), piece, tensor);
        writer.write(std::as_bytes(std::span(piece)));
      }
    });
  });
}

// The tensors of one file.
struct Shard {
  std::vector<TensorView> tensors;
  std::vector<TensorEntry> entries;
  int64_t bytes = 0;
};

std::vector<Shard> split(std::span<const TensorView> weights, const HfExportOptions& options) {
  QUERN_CHECK(options.shard_bytes > 0, "export: shard_bytes is ", options.shard_bytes,
              ", expected above 0");
  std::vector<Shard> shards(1);
  for (const TensorView& weight : weights) {
    const bool turned = is_conv1d(weight.name, weight.shape);
    const TensorEntry entry{weight.name, options.dtype.value_or(weight.dtype),
                            turned ? transposed(weight.shape) : weight.shape};
    const int64_t bytes = byte_size(entry);
    if (shards.back().bytes > 0 && shards.back().bytes + bytes > options.shard_bytes) {
      shards.emplace_back();
    }
    shards.back().tensors.push_back(weight);
    shards.back().entries.push_back(entry);
    shards.back().bytes += bytes;
  }
  return shards;
}

void write_shard(const fs::path& path, const Shard& shard) {
  SafetensorsWriter writer(path, shard.entries, {{"format", "pt"}});
  for (size_t i = 0; i < shard.tensors.size(); ++i) {
    TensorView tensor = shard.tensors[i];
    std::vector<std::byte> turned;
    if (is_conv1d(tensor.name, tensor.shape)) tensor.data = turned = transposed(tensor);
    const DType dtype = shard.entries[i].dtype;
    if (tensor.dtype == dtype) {
      writer.write(tensor.data);
    } else {
      write_converted(writer, tensor, dtype);
    }
  }
  writer.commit();
}

void write_shards(const fs::path& folder, const std::vector<Shard>& shards) {
  std::vector<std::vector<TensorEntry>> entries;
  for (size_t i = 0; i < shards.size(); ++i) {
    write_shard(folder / safetensors_shard_name(kHfStem, i, shards.size()), shards[i]);
    entries.push_back(shards[i].entries);
  }
  if (shards.size() > 1) write_safetensors_index(folder, kHfStem, entries);
}

}  // namespace

void export_hf(const fs::path& folder, const ModelConfig& config,
               std::span<const TensorView> weights, const HfExportOptions& options) {
  const std::vector<TensorView> ordered = ordered_weights(config, weights);
  const std::vector<Shard> shards = split(ordered, options);
  create_folder(folder);
  write_hf_config(folder, config, options.dtype.value_or(ordered[0].dtype), options.config);
  write_shards(folder, shards);
}

}  // namespace quern
