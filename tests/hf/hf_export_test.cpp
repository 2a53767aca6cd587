#include "hf/hf_export.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "hf/huggingface.h"
#include "model/model_cost.h"
#include "support/files.h"

namespace quern {
namespace {

namespace fs = std::filesystem;
using namespace testing_support;
using Tensors = std::vector<TensorView>;

Tensors all_tensors(const TensorSource& source) {
  Tensors tensors;
  for (const std::string& name : source.names()) tensors.push_back(source.tensor(name));
  return tensors;
}

void expect_same_tensors(const fs::path& a, const fs::path& b) {
  const TensorSource first = TensorSource::open(a), second = TensorSource::open(b);
  ASSERT_EQ(first.names(), second.names());
  for (const std::string& name : first.names()) {
    const TensorView x = first.tensor(name), y = second.tensor(name);
    EXPECT_EQ(x.dtype, y.dtype) << name;
    EXPECT_EQ(x.shape, y.shape) << name;
    EXPECT_TRUE(std::ranges::equal(x.data, y.data)) << name;
  }
}

TEST(ExportHf, IsReadBackAsItWas) {
  for (const char* name :
       {"mha", "gqa_tied", "qwen2_bias", "qwen3_norm", "llama3_rope", "linear_rope", "gpt2"}) {
    const TemporaryFolder folder;
    const ModelConfig config = read_hf_config(golden_folder() / name);
    const TensorSource source = TensorSource::open(golden_folder() / name);
    export_hf(folder / "out", config, all_tensors(source));
    EXPECT_EQ(read_hf_config(folder / "out"), config);
    EXPECT_EQ(SafetensorsFile::open(folder / "out/model.safetensors").metadata(),
              (Metadata{{"format", "pt"}}));
    expect_same_tensors(folder / "out", golden_folder() / name);
    EXPECT_TRUE(fs::exists(folder / "out/generation_config.json"));
  }
}

// Conv1D: (in, out) in the file.
TEST(ExportHf, WritesGpt2AsTransformersDoes) {
  const TemporaryFolder folder;
  const fs::path golden = golden_folder() / "gpt2";
  export_hf(folder / "out", read_hf_config(golden), all_tensors(TensorSource::open(golden)));
  const auto found = SafetensorsFile::open(folder / "out/model.safetensors");
  const auto expected = SafetensorsFile::open(golden / "model.safetensors");
  EXPECT_EQ(found.tensor("transformer.h.0.mlp.c_fc.weight").shape, (Shape{64, 256}));
  EXPECT_EQ(found.entries().size(), expected.entries().size());
  for (const auto& entry : expected.entries()) {
    EXPECT_EQ(found.tensor(entry.name).shape, entry.shape) << entry.name;
    EXPECT_TRUE(std::ranges::equal(found.tensor(entry.name).data, entry.data)) << entry.name;
  }
}

TEST(ExportHf, LeavesATiedHeadOut) {
  const TemporaryFolder folder;
  const ModelConfig config = read_hf_config(golden_folder() / "gqa_tied");
  const TensorSource source = TensorSource::open(golden_folder() / "gqa_tied");
  Tensors tensors = all_tensors(source);
  TensorView head = source.tensor("model.embed_tokens.weight");
  head.name = "lm_head.weight";
  tensors.push_back(head);
  export_hf(folder / "out", config, tensors);
  EXPECT_FALSE(TensorSource::open(folder / "out").contains("lm_head.weight"));
}

TEST(ExportHf, SplitsIntoShards) {
  const TemporaryFolder folder;
  const ModelConfig config = read_hf_config(golden_folder() / "mha");
  const TensorSource source = TensorSource::open(golden_folder() / "mha");
  export_hf(folder / "out", config, all_tensors(source), {.shard_bytes = 100'000});
  EXPECT_FALSE(fs::exists(folder / "out/model.safetensors"));
  expect_same_tensors(folder / "out", golden_folder() / "mha");

  const auto index = nlohmann::json::parse(read_file(folder / "out/model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], 4 * parameter_count(config));
  EXPECT_EQ(index["weight_map"].size(), source.names().size());
  EXPECT_EQ(index["weight_map"]["model.embed_tokens.weight"], "model-00001-of-00005.safetensors");
  EXPECT_EQ(index["weight_map"]["lm_head.weight"], "model-00005-of-00005.safetensors");
  for (int i = 1; i <= 5; ++i) {
    const auto file = SafetensorsFile::open(
        folder / ("out/model-0000" + std::to_string(i) + "-of-00005.safetensors"));
    EXPECT_LE(file.bytes().size(), 100'000u + 2'000u) << i;  // the header is not counted
    EXPECT_EQ(file.metadata(), (Metadata{{"format", "pt"}}));
  }
  // A tensor larger than a shard gets its own shard.
  export_hf(folder / "tiny", config, all_tensors(source), {.shard_bytes = 1});
  EXPECT_TRUE(fs::exists(folder / "tiny/model-00021-of-00021.safetensors"));
  expect_same_tensors(folder / "tiny", golden_folder() / "mha");
}

// Puts `values` at the start of a model's first weight and exports it as `dtype`.
template <class To, class From = float>
std::vector<To> exported(std::vector<From> values, DType dtype) {
  const TemporaryFolder folder;
  const ModelConfig config = read_hf_config(golden_folder() / "mha");
  const TensorSource source = TensorSource::open(golden_folder() / "mha");
  Tensors tensors = all_tensors(source);
  const size_t count = values.size();
  for (TensorView& tensor : tensors) {
    if (tensor.name != "model.embed_tokens.weight") continue;
    values.resize(static_cast<size_t>(tensor.shape.numel()));
    tensor.dtype = dtype_of<From>;
    tensor.data = std::as_bytes(std::span<const From>(values));
  }
  export_hf(folder / "out", config, tensors, {.dtype = dtype});
  EXPECT_EQ(read_hf_dtype(folder / "out"), dtype);
  const TensorSource out = TensorSource::open(folder / "out");
  for (const std::string& name : out.names()) EXPECT_EQ(out.tensor(name).dtype, dtype) << name;
  std::vector<To> found(count);
  std::memcpy(found.data(), out.tensor("model.embed_tokens.weight").data.data(),
              count * sizeof(To));
  return found;
}

TEST(ExportHf, RoundsToNearestEven) {
  // Halves of the last bit: bfloat16 has 7 stored bits, float16 10.
  const float b = 0x1p-8f, h = 0x1p-11f;
  const auto bf16 =
      exported<bfloat16>({1 + b, 1 + 3 * b, 1 + b * 1.001f, -1 - b, 0.0f}, DType::bf16);
  const std::vector<float> expected{1.0f, 1 + 4 * b, 1 + 2 * b, -1.0f, 0.0f};
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(static_cast<float>(bf16[i]), expected[i]);
  const auto f16 =
      exported<float16>({1 + h, 1 + 3 * h, 1 + h * 1.001f, -1 - h, 65504.0f, 65519.0f}, DType::f16);
  const std::vector<float> halves{1.0f, 1 + 4 * h, 1 + 2 * h, -1.0f, 65504.0f, 65504.0f};
  for (size_t i = 0; i < halves.size(); ++i) EXPECT_EQ(static_cast<float>(f16[i]), halves[i]);
}

// All but the first, a tie, are so near to one that FP32 would place them on it, and then at the
// other side.
TEST(ExportHf, DoublesAreRoundedOnce) {
  const double b = 0x1p-8, h = 0x1p-11, little = 0x1p-40;  // halves of the last bit, as above
  const double largest_bf16 = 0x1.FEp127, over_bf16 = 0x1.FFp127;  // from the tie on: infinite
  const auto bf16 = exported<bfloat16, double>(
      {1 + b, 1 + b + little, 1 + 3 * b - little, -1 - b - little, std::nextafter(over_bf16, 0.0)},
      DType::bf16);
  const std::vector<double> expected{1.0, 1 + 2 * b, 1 + 2 * b, -1 - 2 * b, largest_bf16};
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(static_cast<float>(bf16[i]), expected[i]);
  // The last one is above half of the smallest subnormal.
  const auto f16 =
      exported<float16, double>({1 + h, 1 + h + little, 1 + 3 * h - little, -1 - h - little,
                                 65520.0 - little * 0x1p10, 0x1p-25 + 0x1p-60},
                                DType::f16);
  const std::vector<double> halves{1.0, 1 + 2 * h, 1 + 2 * h, -1 - 2 * h, 65504.0, 0x1p-24};
  for (size_t i = 0; i < halves.size(); ++i) EXPECT_EQ(static_cast<float>(f16[i]), halves[i]);
}

TEST(ExportHf, WhatIsNotFiniteStays) {
  const float infinity = std::numeric_limits<float>::infinity();
  const auto f16 = exported<float16>({infinity, -infinity, std::nanf("")}, DType::f16);
  EXPECT_EQ(static_cast<float>(f16[0]), infinity);
  EXPECT_EQ(static_cast<float>(f16[1]), -infinity);
  EXPECT_TRUE(std::isnan(static_cast<float>(f16[2])));
}

TEST(ExportHf, AValueBeyondTheDtypeIsAnError) {
  expect_error(
      [] {
        exported<float16>({0.0f, 65520.0f}, DType::f16);
      },
      {"'model.embed_tokens.weight' holds 65520", "range of f16"});
  expect_error([] { exported<bfloat16>({3.4e38f}, DType::bf16); },
               {"'model.embed_tokens.weight'", "range of bf16"});
}

TEST(ExportHf, RefusesIncompleteModels) {
  const TemporaryFolder folder;
  const ModelConfig config = read_hf_config(golden_folder() / "mha");
  const TensorSource source = TensorSource::open(golden_folder() / "mha");
  const auto attempt = [&](auto change) {
    return [&, change] {
      Tensors tensors = all_tensors(source);
      change(tensors);
      export_hf(folder / "out", config, tensors);
    };
  };
  expect_error(attempt([](Tensors& t) { t.clear(); }), {"embed_tokens.weight' is missing"});
  expect_error(attempt([](Tensors& t) { t.erase(t.begin()); }), {"'lm_head.weight' is missing"});
  expect_error(attempt([](Tensors& t) { t[0].shape = {64, 97}; }), {"(64, 97)", "(97, 64)"});
  expect_error(attempt([](Tensors& t) { t[3].dtype = DType::i32; }), {"i32", "expected f32"});
  expect_error(attempt([](Tensors& t) { t.push_back(t[0]), t.back().name = "extra"; }),
               {"'extra' is not a weight"});
  EXPECT_FALSE(fs::exists(folder / "out"));
}

}  // namespace
}  // namespace quern
