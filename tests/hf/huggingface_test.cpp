#include "hf/huggingface.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "bench/golden_copy.h"
#include "model/model_cost.h"

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
    const auto weights = parameter_table(config).slices();
    EXPECT_EQ(source.names().size(), weights.size()) << name;
    for (const auto& [weight, shape, begin] : weights) {
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
  expect_error(with(R"({"weight_map": {"z": 1}})"),
               {"index.json", "weight_map: z is 1", "a string"});
  expect_error(with(R"({"weight_map": [1]})"), {"index.json", "weight_map is [1]"});
  expect_error(with("{}"), {"index.json", "no weight_map"});
  expect_error(with("{"), {"index.json", "not valid JSON"});
  EXPECT_NO_THROW(with(good)());
  fs::resize_file(folder / "one.safetensors", 20);
  expect_error(open, {"one.safetensors"});
  fs::remove(folder / "one.safetensors");
  expect_error(open, {"one.safetensors", "shard is missing", "2 tensors"});
}

TEST(TensorSource, IndexAndShardsMustHoldTheSame) {
  const TemporaryFolder folder;
  write_shards(folder.path());
  const auto with = [&](const std::string& map) {
    return [&folder, map] {
      write_file(folder / "model.safetensors.index.json", "{\"weight_map\": {" + map + "}}");
      TensorSource::open(folder.path());
    };
  };
  const std::string good = R"("a": "one.safetensors", "b": "one.safetensors")";
  expect_error(with(good + R"(, "c": "two.safetensors", "a": "two.safetensors")"),
               {"index.json", "names 'a' twice"});
  expect_error(with(R"("a": "one.safetensors", "c": "two.safetensors")"),
               {"one.safetensors", "holds tensor 'b', which", "does not list"});
  const std::vector<float> c{4, 5, 6};
  write_safetensors(folder / "two.safetensors", std::vector{view_of("a", c), view_of("c", c)});
  expect_error(with(good + R"(, "c": "two.safetensors")"),
               {"two.safetensors", "holds tensor 'a'", "says is in one.safetensors"});
}

TEST(TensorSource, NamesWeightsOfOtherForms) {
  for (const char* name : {"pytorch_model.bin", "tf_model.h5", "flax_model.msgpack"}) {
    const TemporaryFolder folder;
    write_file(folder / name, "x");
    expect_error([&] { TensorSource::open(folder.path()); },
                 {folder.path().string(), name, "expected safetensors"});
  }
}

TEST(HfWeights, AreThoseOfTransformersInEveryFamily) {
  for (const char* name :
       {"mha", "gqa_tied", "qwen2_bias", "qwen3_norm", "llama3_rope", "linear_rope", "gpt2"}) {
    const ModelConfig config = read_hf_config(golden_folder() / name);
    const TensorSource source = TensorSource::open(golden_folder() / name);
    const std::vector<TensorView> weights = model_weights(source, config);
    EXPECT_EQ(weights.size(), source.names().size()) << name;
    int64_t elements = 0;
    for (const TensorView& weight : weights) elements += weight.shape.numel();
    EXPECT_EQ(elements, parameter_count(config)) << name;
  }
}

// OpenAI's own folders: names without "transformer.", and the causal masks.
TEST(HfWeights, Gpt2HasTwoSpellings) {
  static const std::vector<std::byte> kMask(4 * 48 * 48);
  GoldenCopy copy("gpt2");
  copy.edit("model.safetensors", [](std::vector<TensorView>& views) {
    for (TensorView& view : views) view.name = view.name.substr(sizeof "transformer." - 1);
    views.push_back({"h.0.attn.bias", DType::f32, {1, 1, 48, 48}, kMask});
  });
  const fs::path golden = golden_folder() / "gpt2";
  const TensorSource source = TensorSource::open(copy.path()), other = TensorSource::open(golden);
  const std::vector<TensorView> found = model_weights(source, read_hf_config(golden));
  const std::vector<TensorView> expected = model_weights(other, read_hf_config(golden));
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].name, expected[i].name);
    EXPECT_EQ(found[i].shape, expected[i].shape);
    EXPECT_TRUE(std::ranges::equal(found[i].data, expected[i].data)) << found[i].name;
  }
}

// The weights of a golden case after a change.
void expect_refused(const char* name, const std::function<void(std::vector<TensorView>&)>& edit,
                    std::initializer_list<std::string> parts) {
  GoldenCopy copy(name);
  copy.edit("model.safetensors", edit);
  const TensorSource source = TensorSource::open(copy.path());
  expect_error([&] { model_weights(source, read_hf_config(copy.path())); }, parts);
}

TensorView& find(std::vector<TensorView>& views, const std::string& name) {
  return *std::find_if(views.begin(), views.end(),
                       [&](const TensorView& view) { return view.name == name; });
}

TEST(HfWeights, RefusesWhatIsNotTheModel) {
  using Views = std::vector<TensorView>;
  const auto without = [](const std::string& name) {
    return [name](Views& views) {
      std::erase_if(views, [&](const TensorView& view) { return view.name == name; });
    };
  };
  expect_refused("mha", without("model.norm.weight"), {"has no tensor 'model.norm.weight'"});
  expect_refused("mha", without("lm_head.weight"),
                 {"has no tensor 'lm_head.weight'", "tie_word_embeddings"});
  expect_refused("qwen2_bias", without("model.layers.1.self_attn.v_proj.bias"),
                 {"has no tensor 'model.layers.1.self_attn.v_proj.bias'"});
  expect_refused("qwen3_norm", without("model.layers.0.self_attn.k_norm.weight"),
                 {"has no tensor 'model.layers.0.self_attn.k_norm.weight'"});
  // A Llama with biases that config.json does not mention.
  static const std::vector<float> kBias(64);
  expect_refused("mha",
                 [](Views& views) {
                   views.push_back({"model.layers.0.self_attn.o_proj.bias",
                                    DType::f32,
                                    {64},
                                    std::as_bytes(std::span(kBias))});
                 },
                 {"'model.layers.0.self_attn.o_proj.bias' is not one of the model's"});
  expect_refused("qwen2_bias",
                 [](Views& views) {
                   find(views, "model.layers.0.self_attn.k_proj.bias").shape = {1, 32};
                 },
                 {"'model.layers.0.self_attn.k_proj.bias' has shape (1, 32), expected (32)"});
  expect_refused("mha", [](Views& views) { find(views, "model.norm.weight").dtype = DType::i32; },
                 {"'model.norm.weight' is i32", "expected f32, bf16, f16 or f64"});
  expect_refused("gqa_tied",
                 [](Views& views) {
                   TensorView head = find(views, "model.norm.weight");
                   head.name = "lm_head.weight";
                   views.push_back(head);
                 },
                 {"'lm_head.weight' differs from 'model.embed_tokens.weight'"});
}

TEST(HfWeights, PassesOverCopiesAndTables) {
  GoldenCopy copy("gqa_tied");
  static const std::vector<float> kTable(8);
  copy.edit("model.safetensors", [](std::vector<TensorView>& views) {
    TensorView head = find(views, "model.embed_tokens.weight");
    head.name = "lm_head.weight";
    views.push_back(head);
    views.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq",
                     DType::f32,
                     {8},
                     std::as_bytes(std::span(kTable))});
  });
  const ModelConfig config = read_hf_config(copy.path());
  EXPECT_EQ(model_weights(TensorSource::open(copy.path()), config).size(),
            parameter_table(config).slices().size());
}

}  // namespace
}  // namespace quern
