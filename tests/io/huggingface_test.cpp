#include "io/huggingface.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "support/files.h"

namespace quern {
namespace {

namespace fs = std::filesystem;
using namespace testing_support;

TensorView view_of(const std::string& name, const std::vector<float>& data) {
  return {name, DType::f32, {static_cast<int64_t>(data.size())}, std::as_bytes(std::span(data))};
}

// Two shards with tensors a, b and c.
void write_shards(const fs::path& folder) {
  const std::vector<float> a{1}, b{2, 3}, c{4, 5, 6};
  write_safetensors(folder / "one.safetensors", std::vector{view_of("a", a), view_of("b", b)});
  write_safetensors(folder / "two.safetensors", std::vector{view_of("c", c)});
  write_file(folder / "model.safetensors.index.json",
             R"({"metadata": {"total_size": 24}, "weight_map":
                 {"a": "one.safetensors", "c": "two.safetensors", "b": "one.safetensors"}})");
}

TEST(TensorSource, ReadsASingleFile) {
  for (const char* name : {"mha", "gqa_tied"}) {
    const ModelConfig config = read_hf_config(golden_folder() / name);
    const TensorSource source = TensorSource::open(golden_folder() / name);
    const auto weights = hf_weights(config);
    EXPECT_EQ(source.names().size(), weights.size()) << name;
    for (const auto& [weight, shape] : weights) {
      EXPECT_EQ(source.tensor(weight, shape).dtype, DType::f32) << weight;
    }
  }
}

TEST(TensorSource, ReadsShards) {
  const TemporaryFolder folder;
  write_shards(folder.path());
  const TensorSource source = TensorSource::open(folder.path());
  EXPECT_EQ(source.names(), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(source.tensor("b").shape, (Shape{2}));
  EXPECT_EQ(source.tensor("c", {3}).data.size(), 12u);
  EXPECT_FALSE(source.contains("d"));
  expect_error([&] { source.tensor("d"); }, {folder.path().string(), "'d'"});
  expect_error(
      [&] {
        source.tensor("c", {1, 3});
      },
      {"two.safetensors", "'c'", "(3)", "expected (1, 3)"});
}

TEST(TensorSource, NamesWhatIsWrongWithShards) {
  const TemporaryFolder folder;
  const auto open = [&] { TensorSource::open(folder.path()); };
  expect_error(open, {folder.path().string(), "neither model.safetensors nor"});
  write_shards(folder.path());
  const fs::path index = folder / "model.safetensors.index.json";
  const std::string good = read_file(index);
  const auto with = [&](const std::string& text) {
    return [=] {
      write_file(index, text);
      open();
    };
  };
  expect_error(with(R"({"weight_map": {"z": "two.safetensors"}})"),
               {"two.safetensors", "has no tensor 'z'"});
  expect_error(with(R"({"weight_map": {"z": "../two.safetensors"}})"),
               {"index.json", "../two.safetensors", "same folder"});
  expect_error(with(R"({"weight_map": {"z": ".."}})"), {"index.json", "same folder"});
  expect_error(with(R"({"weight_map": {"z": 1}})"), {"index.json", "'z'", "not a string"});
  expect_error(with(R"({"weight_map": [1]})"), {"index.json", "no weight_map"});
  expect_error(with("{}"), {"index.json", "no weight_map"});
  expect_error(with("{"), {"index.json", "not valid JSON"});
  EXPECT_NO_THROW(with(good)());
  fs::resize_file(folder / "one.safetensors", 20);
  expect_error(open, {"one.safetensors"});
  fs::remove(folder / "one.safetensors");
  expect_error(open, {"one.safetensors", "shard is missing", "2 tensors"});
}

// A golden model's tensors, for export.
std::vector<TensorView> all_tensors(const TensorSource& source) {
  std::vector<TensorView> tensors;
  for (const std::string& name : source.names()) tensors.push_back(source.tensor(name));
  return tensors;
}

TEST(ExportHf, IsReadBackAsItWas) {
  for (const char* name : {"mha", "gqa_tied"}) {
    const TemporaryFolder folder;
    const ModelConfig config = read_hf_config(golden_folder() / name);
    const TensorSource source = TensorSource::open(golden_folder() / name);
    export_hf(folder / "out", config, all_tensors(source), 2);

    EXPECT_EQ(read_hf_config(folder / "out"), config);
    const auto file = SafetensorsFile::open(folder / "out/model.safetensors");
    EXPECT_EQ(file.metadata(), (Metadata{{"format", "pt"}}));
    EXPECT_EQ(file.entries().size(), source.names().size());
    for (const std::string& tensor : source.names()) {
      EXPECT_TRUE(std::ranges::equal(file.tensor(tensor).data, source.tensor(tensor).data));
    }
    EXPECT_TRUE(fs::exists(folder / "out/generation_config.json"));
  }
}

TEST(ExportHf, LeavesATiedHeadOut) {
  const TemporaryFolder folder;
  const ModelConfig config = read_hf_config(golden_folder() / "gqa_tied");
  const TensorSource source = TensorSource::open(golden_folder() / "gqa_tied");
  std::vector<TensorView> tensors = all_tensors(source);
  TensorView head = source.tensor("model.embed_tokens.weight");
  head.name = "lm_head.weight";
  tensors.push_back(head);
  export_hf(folder / "out", config, tensors);
  EXPECT_FALSE(TensorSource::open(folder / "out").contains("lm_head.weight"));
}

TEST(ExportHf, RefusesIncompleteModels) {
  const TemporaryFolder folder;
  const ModelConfig config = read_hf_config(golden_folder() / "mha");
  const TensorSource source = TensorSource::open(golden_folder() / "mha");
  const auto attempt = [&](auto change) {
    return [&, change] {
      std::vector<TensorView> tensors = all_tensors(source);
      change(tensors);
      export_hf(folder / "out", config, tensors);
    };
  };
  using Tensors = std::vector<TensorView>;
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
