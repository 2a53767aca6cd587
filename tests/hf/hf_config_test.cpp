#include "hf/hf_config.h"

#include <gtest/gtest.h>

#include <vector>

#include "support/files.h"

namespace quern {
namespace {

using namespace testing_support;

// The keys of a folder from the time of Llama 2; every test changes one thing.
constexpr std::string_view kOld = R"({
  "model_type": "llama", "hidden_act": "silu", "vocab_size": 32000, "hidden_size": 64,
  "intermediate_size": 172, "num_hidden_layers": 2, "num_attention_heads": 4,
  "max_position_embeddings": 128, "rms_norm_eps": 1e-05, "rope_scaling": null,
  "rope_theta": 50000.0, "tie_word_embeddings": true, "torch_dtype": "float16"})";

std::string changed(const std::string& from, const std::string& to) {
  std::string text(kOld);
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

ModelConfig read(const std::string& text) {
  const TemporaryFolder folder;
  write_file(folder / "config.json", text);
  return read_hf_config(folder.path());
}

std::string with(const std::string& member) {
  return changed("{", "{" + member + ",");
}

TEST(HfConfig, ReadsTheGoldenCases) {
  const ModelConfig mha = read_hf_config(golden_folder() / "mha");
  const ModelConfig expected{.vocab_size = 97,
                             .context = 64,
                             .d_model = 64,
                             .d_ff = 160,
                             .layers = 2,
                             .heads = 4,
                             .rope_theta = 10000.0,
                             .norm_eps = 1e-5};
  EXPECT_EQ(mha, expected);
  const ModelConfig gqa = read_hf_config(golden_folder() / "gqa_tied");
  EXPECT_EQ(gqa.kv_heads, 2);
  EXPECT_EQ(gqa.heads, 6);
  EXPECT_TRUE(gqa.tied);
  EXPECT_EQ(gqa.rope_theta, 500000.0);
}

TEST(HfConfig, ReadsGpt2) {
  const ModelConfig golden = read_hf_config(golden_folder() / "gpt2");
  const ModelConfig expected{.vocab_size = 97,
                             .context = 48,
                             .d_model = 64,
                             .d_ff = 256,
                             .layers = 2,
                             .heads = 4,
                             .tied = true,
                             .norm = NormKind::layer,
                             .mlp = MlpKind::gelu,
                             .positions = PositionKind::learned,
                             .bias = true,
                             .norm_eps = 1e-5};
  EXPECT_EQ(golden, expected);
  ModelConfig small;
  apply_size(small, "gpt2");
  EXPECT_EQ(read(R"({"model_type": "gpt2"})"), small);  // its defaults
  const auto refused = [](const std::string& member, const std::string& found) {
    expect_error([&] { read(R"({"model_type": "gpt2", )" + member + "}"); },
                 {"config.json: ", found, "expected"});
  };
  refused(R"("activation_function": "relu")", "activation_function is \"relu\"");
  refused(R"("scale_attn_weights": false)", "scale_attn_weights is false");
  refused(R"("scale_attn_by_inverse_layer_idx": true)", "scale_attn_by_inverse_layer_idx is true");
  refused(R"("add_cross_attention": true)", "add_cross_attention is true");
  refused(R"("n_embd": 65)", "d_model is 65");
}

TEST(HfConfig, ReadsTheOldSpelling) {
  const ModelConfig config = read(std::string(kOld));
  EXPECT_EQ(config.vocab_size, 32000);
  EXPECT_EQ(config.d_model, 64);
  EXPECT_EQ(config.d_ff, 172);
  EXPECT_EQ(config.layers, 2);
  EXPECT_EQ(config.heads, 4);
  EXPECT_EQ(config.kv_heads, 0);
  EXPECT_EQ(config.head_dim, 0);
  EXPECT_EQ(config.context, 128);
  EXPECT_EQ(config.norm_eps, 1e-5);
  EXPECT_EQ(config.rope_theta, 50000.0);
  EXPECT_TRUE(config.tied);
}

TEST(HfConfig, ReadsOptionalKeysAndTheirAbsence) {
  EXPECT_EQ(read(with(R"("num_key_value_heads": 2)")).kv_heads, 2);
  EXPECT_EQ(read(with(R"("num_key_value_heads": null)")).kv_heads, 0);
  EXPECT_EQ(read(with(R"("head_dim": 32)")).head_dim, 32);
  EXPECT_EQ(read(with(R"("head_dim": 16)")).head_dim, 0);  // d_model / heads
  EXPECT_EQ(read(changed(R"("rope_theta": 50000.0,)", "")).rope_theta, 10000.0);
  EXPECT_EQ(read(changed(R"("rms_norm_eps": 1e-05,)", "")).norm_eps, 1e-6);
  EXPECT_EQ(read(changed(R"("rope_theta": 50000.0)",
                         R"("rope_parameters": {"rope_theta": 7.5e5, "rope_type": "default"})"))
                .rope_theta,
            7.5e5);
  EXPECT_EQ(read(changed("null", R"({"type": "default"})")).rope_theta, 50000.0);
  EXPECT_NO_THROW(read(with(R"("sliding_window": null, "attention_bias": false)")));
  EXPECT_NO_THROW(read(with(R"("sliding_window": 8, "use_sliding_window": false)")));
}

// kOld with another model_type.
std::string of_type(const std::string& type, const std::string& member = "\"x\": 0") {
  std::string text = with(member);
  return text.replace(text.find("\"llama\""), 7, "\"" + type + "\"");
}

TEST(HfConfig, ReadsTheGoldenFamilies) {
  const ModelConfig qwen2 = read_hf_config(golden_folder() / "qwen2_bias");
  EXPECT_TRUE(qwen2.qkv_bias && qwen2.tied);
  EXPECT_FALSE(qwen2.qk_norm);
  EXPECT_EQ(qwen2.head_size(), 16);
  const ModelConfig qwen3 = read_hf_config(golden_folder() / "qwen3_norm");
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_FALSE(qwen3.qkv_bias);
  EXPECT_EQ(qwen3.head_dim, 24);
  EXPECT_EQ(qwen3.q_width(), 96);
  EXPECT_EQ(read_hf_config(golden_folder() / "llama3_rope").rope_scaling,
            (RopeScaling{RopeScalingKind::llama3, 8.0, 1.0, 4.0, 32}));
  EXPECT_EQ(read_hf_config(golden_folder() / "linear_rope").rope_scaling,
            (RopeScaling{RopeScalingKind::linear, 4.0}));
}

TEST(HfConfig, AbsentKeysAreWhatTransformersTakesThemFor) {
  const ModelConfig llama = read(changed(R"("max_position_embeddings": 128,)", ""));
  EXPECT_EQ(llama.context, 2048);
  const auto without_context = [](std::string text) {
    const std::string key = R"("max_position_embeddings": 128,)";
    return text.erase(text.find(key), key.size());
  };
  const ModelConfig mistral = read(
      without_context(of_type("mistral", R"("sliding_window": null, "num_key_value_heads": 2)")));
  EXPECT_EQ(mistral.context, 131072);
  EXPECT_FALSE(mistral.qkv_bias || mistral.qk_norm);
  EXPECT_EQ(read(without_context(of_type("qwen2", R"("num_key_value_heads": null)"))).context,
            32768);
  // 8 and 32 key and value heads do not divide 4 heads; null means as many as heads.
  expect_error([] { read(of_type("mistral", R"("sliding_window": null)")); },
               {"config.json", "kv_heads", "8"});
  expect_error([] { read(of_type("qwen2")); }, {"config.json", "kv_heads", "32"});
  EXPECT_EQ(read(of_type("qwen2", R"("num_key_value_heads": null)")).kv_heads, 0);
  EXPECT_EQ(read(of_type("qwen3", R"("num_key_value_heads": 2)")).head_dim, 128);
  EXPECT_EQ(read(of_type("qwen2", R"("num_key_value_heads": 2)")).head_dim, 0);
}

TEST(HfConfig, ReadsScaledRopeInBothSpellings) {
  const std::string llama3 = R"("factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                "original_max_position_embeddings": 64, "rope_type": "llama3")";
  const RopeScaling expected{RopeScalingKind::llama3, 8.0, 1.0, 4.0, 64};
  const std::string old_tree = R"("rope_scaling": {)" + llama3 + "}";
  const std::string new_tree = R"("rope_parameters": {"rope_theta": 50000.0, )" + llama3 + "}";
  const auto text = [](const std::string& trees) {
    return changed(R"("rope_scaling": null)", trees);
  };
  EXPECT_EQ(read(text(old_tree)).rope_scaling, expected);
  EXPECT_EQ(read(text(new_tree)).rope_scaling, expected);
  EXPECT_EQ(read(text(new_tree)).rope_theta, 50000.0);
  EXPECT_EQ(read(text(old_tree + "," + new_tree)).rope_scaling, expected);
  EXPECT_EQ(read(changed("null", R"({"type": "linear", "factor": 2})")).rope_scaling,
            (RopeScaling{RopeScalingKind::linear, 2.0}));
  EXPECT_EQ(read(changed("null", "{}")).rope_scaling, RopeScaling{});
}

TEST(HfConfig, TwoSpellingsMustAgree) {
  expect_error(
      [] { read(with(R"("rope_parameters": {"rope_theta": 7.5e5, "rope_type": "default"})")); },
      {"rope_parameters: rope_theta is 750000.0, expected 50000"});
  expect_error(
      [] {
        read(changed("null", R"({"rope_type": "linear", "factor": 2.0},
                                "rope_parameters": {"rope_type": "linear", "factor": 4.0})"));
      },
      {"rope_parameters is", "expected the same as in rope_scaling"});
  expect_error(
      [] {
        read(changed("null", R"({"rope_type": "linear", "factor": 2.0},
                                "rope_parameters": {"rope_type": "default"})"));
      },
      {"rope_parameters is", "expected the same as in rope_scaling"});
  expect_error(
      [] { read(changed("null", R"({"rope_type": "default", "type": "linear", "factor": 2})")); },
      {"rope_scaling: type is \"linear\"", "\"default\""});
}

struct Refusal {
  std::string text, found, expected;
};

// Every error names the file, the key and its value.
TEST(HfConfig, RefusesByNameWhatQuernHasNot) {
  const auto scaled = [](const std::string& tree) { return changed("null", tree); };
  const std::vector<Refusal> refusals = {
      {of_type("mixtral"), "model_type is \"mixtral\"", "\"llama\", \"mistral\", \"qwen2\""},
      {of_type("qwen3_moe"), "model_type is \"qwen3_moe\"", "one of"},
      {with(R"("num_experts": 8)"), "num_experts is 8", "no mixtures of experts"},
      {with(R"("num_local_experts": 8)"), "num_local_experts is 8", "no mixtures of experts"},
      {with(R"("n_routed_experts": 64)"), "n_routed_experts is 64", "no mixtures of experts"},
      {changed("\"silu\"", "\"gelu\""), "hidden_act is \"gelu\"", "\"silu\""},
      {changed("\"silu\"", "7"), "hidden_act is 7", "a string"},
      {with(R"("attention_bias": true)"), "attention_bias is true", "\"qwen2\""},
      {of_type("qwen3", R"("attention_bias": true)"), "attention_bias is true", "false"},
      {of_type("mistral", R"("attention_bias": true)"), "attention_bias is true", "false"},
      {with(R"("mlp_bias": true)"), "mlp_bias is true", "false"},
      {with(R"("rope_interleaved": true)"), "rope_interleaved is true", "false"},
      {with(R"("sliding_window": 4096)"), "sliding_window is 4096", "null"},
      {of_type("mistral", R"("sliding_window": 4096)"), "sliding_window is 4096", "null"},
      {of_type("mistral"), "has no sliding_window, which means 4096", "null"},
      {of_type("qwen2", R"("use_sliding_window": true)"), "use_sliding_window is true", "false"},
      {of_type("qwen3", R"("layer_types": ["full_attention", "sliding_attention"])"),
       "layer_types is", "\"full_attention\" for every layer"},
      {with(R"("layer_types": 3)"), "layer_types is 3", "\"full_attention\""},
      {with(R"("quantization_config": {"bits": 4})"), "quantization_config is", "none"},
      {with(R"("partial_rotary_factor": 0.5)"), "partial_rotary_factor is 0.5", "1"},
      {with(R"("rope_parameters": {"partial_rotary_factor": 0.5})"),
       "rope_parameters: partial_rotary_factor is 0.5", "1"},
      {with(R"("rope_parameters": {"rope_type": "yarn"})"),
       "rope_parameters: rope_type is \"yarn\"", "\"default\", \"linear\", \"llama3\""},
      {scaled(R"({"type": "dynamic", "factor": 2.0})"), "rope_scaling: type is \"dynamic\"",
       "one of"},
      {scaled(R"({"rope_type": "longrope"})"), "rope_scaling: rope_type is \"longrope\"", "one of"},
      {scaled(R"({"rope_type": 3})"), "rope_scaling: rope_type is 3", "a string"},
      {scaled(R"({"mrope_section": [1, 1]})"), "rope_scaling: mrope_section is [1,1]", "none"},
      {with(R"("rope_parameters": {"full_attention": {"rope_type": "default"}})"),
       "rope_parameters: full_attention is {", "one RoPE for all layers"}};
  for (const Refusal& refusal : refusals) {
    expect_error([&] { read(refusal.text); }, {"config.json: ", refusal.found, refusal.expected});
  }
}

TEST(HfConfig, RefusesMalformedScaling) {
  const auto llama3 = [](const std::string& from, const std::string& to) {
    std::string tree = R"({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                           "high_freq_factor": 4.0, "original_max_position_embeddings": 64})";
    tree.replace(tree.find(from), from.size(), to);
    return changed("null", tree);
  };
  const std::vector<Refusal> refusals = {
      {changed("null", R"({"type": "linear"})"), "rope_scaling: ", "has no factor"},
      {changed("null", R"({"type": "linear", "factor": 0.5})"), "factor is 0.5", "at least 1"},
      {changed("null", R"({"type": "linear", "factor": "2"})"), "factor is \"2\"", "a number"},
      {llama3("\"factor\": 8.0,", ""), "rope_scaling: ", "has no factor"},
      {llama3("\"low_freq_factor\": 1.0,", ""), "rope_scaling: ", "has no low_freq_factor"},
      {llama3("\"high_freq_factor\": 4.0,", ""), "rope_scaling: ", "has no high_freq_factor"},
      {llama3(", \"original_max_position_embeddings\": 64", " "),
       "rope_scaling: ", "has no original_max_position_embeddings"},
      {llama3("1.0", "0"), "low_freq_factor is 0", "above 0"},
      {llama3("4.0", "1.0"), "high_freq_factor is 1.0", "above low_freq_factor (1)"},
      {llama3("64}", "0}"), "original_max_position_embeddings is 0", "from 1"},
      {changed("50000.0", "-1"), "rope_theta is -1", "above 0"},
      {changed("null", "3"), "rope_scaling is 3", "an object"},
      {changed("50000.0", "\"big\""), "rope_theta is \"big\"", "a number"}};
  for (const Refusal& refusal : refusals) {
    expect_error([&] { read(refusal.text); }, {"config.json: ", refusal.found, refusal.expected});
  }
}

TEST(HfConfig, RefusesMissingAndWrongValues) {
  expect_error([] { read(changed(R"("model_type": "llama",)", "")); }, {"has no model_type"});
  expect_error([] { read(changed(R"("hidden_size": 64,)", "")); }, {"has no hidden_size"});
  expect_error([] { read(changed("32000", "\"many\"")); }, {"vocab_size is \"many\""});
  expect_error([] { read(changed("32000", "0")); }, {"vocab_size is 0", "from 1"});
  expect_error([] { read(changed("32000", "-1")); }, {"vocab_size is -1"});
  expect_error([] { read(changed("32000", "1e30")); }, {"vocab_size is 1e+30"});
  expect_error([] { read(changed("1e-05", "\"small\"")); }, {"rms_norm_eps is \"small\""});
  expect_error([] { read(changed("true", "1")); }, {"tie_word_embeddings is 1", "true or false"});
  expect_error([] { read(changed("\"llama\"", "1")); }, {"model_type is 1", "a string"});
  expect_error([] { read("[1]"); }, {"config.json", "expected an object"});
  expect_error([] { read(with(R"("num_key_value_heads": 3)")); }, {"config.json", "kv_heads"});
  expect_error([] { read("{"); }, {"config.json", "not valid JSON"});
  expect_error([] { read_hf_config("/nowhere"); }, {"/nowhere/config.json", "No such file"});
}

TEST(HfConfig, ReadsTheDtype) {
  const TemporaryFolder folder;
  const auto dtype_of_text = [&](const std::string& text) {
    write_file(folder / "config.json", text);
    return read_hf_dtype(folder.path());
  };
  EXPECT_EQ(dtype_of_text(R"({"torch_dtype": "bfloat16"})"), DType::bf16);
  EXPECT_EQ(dtype_of_text(R"({"dtype": "float16", "torch_dtype": "float16"})"), DType::f16);
  expect_error([&] { dtype_of_text(R"({"dtype": "float16", "torch_dtype": "float32"})"); },
               {"torch_dtype is \"float32\"", "\"float16\", as dtype says"});
  EXPECT_EQ(dtype_of_text("{}"), std::nullopt);
  expect_error([&] { dtype_of_text(R"({"dtype": "int8"})"); }, {"dtype is \"int8\"", "float32"});
}

}  // namespace
}  // namespace quern
