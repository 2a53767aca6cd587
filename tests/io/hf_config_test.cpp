#include "io/hf_config.h"

#include <gtest/gtest.h>

#include "support/files.h"

namespace quern {
namespace {

using namespace testing_support;

// The keys a Llama 2 era folder has; every test changes one thing.
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
  EXPECT_EQ(
      read(with(R"("rope_parameters": {"rope_theta": 7.5e5, "rope_type": "default"})")).rope_theta,
      7.5e5);
  EXPECT_EQ(read(changed("null", R"({"type": "default"})")).rope_theta, 50000.0);
  EXPECT_NO_THROW(read(with(R"("sliding_window": null, "attention_bias": false)")));
  EXPECT_NO_THROW(read(with(R"("sliding_window": 8, "use_sliding_window": false)")));
}

TEST(HfConfig, RefusesByNameWhatQuernHasNot) {
  const auto refused = [](const std::string& text, std::initializer_list<std::string> parts) {
    expect_error([&] { read(text); }, {"config.json"});
    expect_error([&] { read(text); }, parts);
  };
  refused(changed("\"llama\"", "\"qwen2\""), {"model_type is \"qwen2\"", "\"llama\""});
  refused(changed("\"silu\"", "\"gelu\""), {"hidden_act is \"gelu\"", "\"silu\""});
  refused(with(R"("attention_bias": true)"), {"attention_bias is true", "false"});
  refused(with(R"("mlp_bias": true)"), {"mlp_bias is true", "false"});
  refused(with(R"("sliding_window": 4096)"), {"sliding_window is 4096", "null"});
  refused(with(R"("quantization_config": {"bits": 4})"), {"quantization_config"});
  refused(changed("null", R"({"rope_type": "llama3", "factor": 8})"), {"rope_type is \"llama3\""});
  refused(changed("null", R"({"type": "linear", "factor": 2})"), {"type is \"linear\""});
  refused(with(R"("rope_parameters": {"rope_type": "yarn"})"),
          {"rope_parameters: rope_type is \"yarn\"", "\"default\""});
  refused(with(R"("rope_parameters": {"partial_rotary_factor": 0.5})"),
          {"partial_rotary_factor is 0.5"});
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
  expect_error([] { read(changed("null", "3")); }, {"rope_scaling is 3", "an object"});
  expect_error([] { read(with(R"("num_key_value_heads": 3)")); }, {"config.json", "kv_heads"});
  expect_error([] { read("{"); }, {"config.json", "not valid JSON"});
  expect_error([] { read_hf_config("/nowhere"); }, {"/nowhere/config.json", "No such file"});
}

TEST(HfConfig, WritesWhatItReads) {
  const TemporaryFolder folder;
  ModelConfig config{.vocab_size = 257,
                     .context = 64,
                     .d_model = 96,
                     .d_ff = 200,
                     .layers = 3,
                     .heads = 6,
                     .kv_heads = 2,
                     .head_dim = 32,
                     .tied = true,
                     .rope_theta = 12345.5,
                     .norm_eps = 3e-6};
  write_hf_config(folder.path(), config, DType::bf16, 256);
  EXPECT_EQ(read_hf_config(folder.path()), config);
  const std::string text = read_file(folder / "config.json");
  for (const char* part :
       {R"("dtype": "bfloat16")", R"("torch_dtype": "bfloat16")", R"("rope_theta": 12345.5)",
        R"("rope_type": "default")", R"("architectures": [)", R"("eos_token_id": 256)"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
  EXPECT_EQ(read_file(folder / "generation_config.json"),
            "{\n  \"_from_model_config\": true,\n  \"eos_token_id\": 256\n}\n");

  write_hf_config(folder.path(), config, DType::f32);
  EXPECT_EQ(read_file(folder / "generation_config.json"), "{\n  \"_from_model_config\": true\n}\n");
  expect_error([&] { write_hf_config(folder.path(), config, DType::i32); }, {"i32"});
}

}  // namespace
}  // namespace quern
