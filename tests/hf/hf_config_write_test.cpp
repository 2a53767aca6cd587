#include <gtest/gtest.h>

#include "hf/hf_config.h"
#include "support/files.h"

namespace quern {
namespace {

using namespace testing_support;

ModelConfig some_model() {
  return {.vocab_size = 257,
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
}

TEST(HfConfigWrite, IsReadBackInEveryFamily) {
  for (const bool bias : {false, true}) {
    for (const bool norm : {false, true}) {
      for (const RopeScaling& scaling :
           {RopeScaling{}, RopeScaling{RopeScalingKind::linear, 4.0},
            RopeScaling{RopeScalingKind::llama3, 32.0, 1.0, 4.0, 8192}}) {
        ModelConfig config = some_model();
        config.qkv_bias = bias;
        config.qk_norm = norm;
        config.rope_scaling = scaling;
        const TemporaryFolder folder;
        const auto write = [&] { write_hf_config(folder.path(), config, DType::bf16); };
        if (bias && norm) {
          expect_error(write, {"qkv_bias", "qk_norm", "no family of transformers has both"});
          continue;
        }
        write();
        EXPECT_EQ(read_hf_config(folder.path()), config);
        EXPECT_EQ(read_hf_dtype(folder.path()), DType::bf16);
        const std::string family = bias ? "Qwen2" : norm ? "Qwen3" : "Llama";
        EXPECT_NE(read_file(folder / "config.json").find("\"" + family + "ForCausalLM\""),
                  std::string::npos);
      }
    }
  }
}

TEST(HfConfigWrite, SaysItInBothSpellings) {
  const TemporaryFolder folder;
  ModelConfig config = some_model();
  config.rope_scaling = {RopeScalingKind::linear, 4.0};
  write_hf_config(folder.path(), config, DType::bf16, {.begin_token = 1, .end_token = 256});
  const std::string text = read_file(folder / "config.json");
  for (const char* part :
       {R"("dtype": "bfloat16")", R"("torch_dtype": "bfloat16")", R"("rope_theta": 12345.5,)",
        R"("rope_parameters": {)", R"("rope_scaling": {)", R"("rope_type": "linear")",
        R"("eos_token_id": 256)", R"("bos_token_id": 1)"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
  EXPECT_EQ(read_file(folder / "generation_config.json"),
            "{\n  \"_from_model_config\": true,\n  \"bos_token_id\": 1,\n  \"eos_token_id\": 256\n"
            "}\n");

  write_hf_config(folder.path(), config, DType::f32);
  EXPECT_EQ(read_file(folder / "generation_config.json"), "{\n  \"_from_model_config\": true\n}\n");
  expect_error([&] { write_hf_config(folder.path(), config, DType::i32); }, {"i32"});
}

TEST(HfConfigWrite, ASourceStaysAsItIs) {
  const TemporaryFolder folder;
  const auto source = golden_folder() / "llama3_rope";
  ModelConfig config = read_hf_config(source);
  config.context = 48;  // trained on less than the model supports
  write_hf_config(folder.path(), config, DType::f32, {.source = source});
  for (const char* file : {"config.json", "generation_config.json"}) {
    EXPECT_EQ(read_file(folder / file), read_file(source / file)) << file;
  }
}

TEST(HfConfigWrite, ASourceKeepsItsKeysInAnotherDtype) {
  const TemporaryFolder source, folder;
  const std::string text = R"({"my_key": [1, 2], "architectures": ["MistralForCausalLM"],
    "model_type": "mistral", "sliding_window": null, "vocab_size": 32000, "hidden_size": 64,
    "intermediate_size": 172, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "rope_theta": 50000.0, "torch_dtype": "float16"})";
  write_file(source / "config.json", text);
  const ModelConfig config = read_hf_config(source.path());
  write_hf_config(folder.path(), config, DType::f32, {.source = source.path()});
  EXPECT_EQ(read_hf_config(folder.path()), config);
  EXPECT_EQ(read_hf_dtype(folder.path()), DType::f32);
  const std::string written = read_file(folder / "config.json");
  for (const char* part : {"my_key", "MistralForCausalLM", "\"sliding_window\": null",
                           R"("dtype": "float32")", R"("torch_dtype": "float32")"}) {
    EXPECT_NE(written.find(part), std::string::npos) << part << "\n" << written;
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "generation_config.json"));  // it had none
}

TEST(HfConfigWrite, ASourceMustBeOfTheModel) {
  const TemporaryFolder folder;
  const auto source = golden_folder() / "llama3_rope";
  ModelConfig config = read_hf_config(source);
  const auto write = [&] {
    write_hf_config(folder.path(), config, DType::f32, {.source = source});
  };
  config.context = 129;
  expect_error(write, {"llama3_rope/config.json", "max_position_embeddings is 128", "129"});
  config.context = 128;
  config.head_dim = config.head_size();
  write();  // the same in other words
  config.rope_scaling.factor = 4.0;
  expect_error(write, {"llama3_rope/config.json", "is of another model"});
}

}  // namespace
}  // namespace quern
