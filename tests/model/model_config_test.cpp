#include "model/model_config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <sstream>

#include "base/error.h"
#include "base/slow_path.h"
#include "model/model_cost.h"
#include "support/files.h"

namespace quern {
namespace {

ModelConfig sized(const std::string& size, int64_t vocab) {
  ModelConfig config;
  config.vocab_size = vocab;
  apply_size(config, size);
  return config;
}

// docs/using.md's table: size, d_model, layers, heads (kv_heads), d_ff, million parameters.
TEST(ModelConfig, TheDocumentedSizesAreThese) {
  std::istringstream page(
      testing_support::read_file(testing_support::source_folder() / "docs/using.md"));
  size_t rows = 0;
  for (std::string line; std::getline(page, line);) {
    const auto names = size_names();
    const size_t end = line.find('`', 3);
    if (!line.starts_with("| `") || !std::ranges::count(names, line.substr(3, end - 3))) continue;
    SCOPED_TRACE(line);
    ModelConfig config = sized(line.substr(3, end - 3), 1000);
    config.tied = true;
    std::string numbers = line.substr(line.find('|', end));
    std::ranges::replace_if(
        numbers, [](char c) { return c == '|' || c == '(' || c == ')'; }, ' ');
    std::istringstream columns(numbers);
    int64_t width = 0, layers = 0, heads = 0, kv_heads = 0, d_ff = 0;
    double millions = 0.0;
    columns >> width >> layers >> heads;
    if (line.find('(') != std::string::npos) columns >> kv_heads;
    columns >> d_ff >> millions;
    EXPECT_EQ(width, config.d_model);
    EXPECT_EQ(layers, config.layers);
    EXPECT_EQ(heads, config.heads);
    EXPECT_EQ(kv_heads, config.kv_heads);
    EXPECT_EQ(d_ff, config.d_ff);
    const int64_t vocabulary = config.vocab_size * config.d_model;
    const double exact = static_cast<double>(parameter_count(config) - vocabulary) / 1e6;
    EXPECT_NEAR(millions, exact, millions < 100.0 ? 0.05 : 0.5);
    ++rows;
  }
  EXPECT_EQ(rows, size_names().size() - 2) << "all but GPT-2's two";
}

std::string message_after(const std::function<void(ModelConfig&)>& change) {
  ModelConfig config;
  change(config);
  try {
    config.validate();
  } catch (const Error& error) {
    return error.what();
  }
  return "valid";
}

TEST(ModelConfig, SmallParameterCountByHand) {
  // A block: q, k, v and o 4 * 768^2 = 2359296; gate, up and down 3 * 768 * 3072 = 7077888; two
  // norms 1536: 9438720. Twelve of them 113264640, embedding and head 2 * 10000 * 768 = 15360000,
  // final norm 768.
  EXPECT_EQ(parameter_count(sized("small", 10000)), 128625408);
}

TEST(ModelConfig, ShakespeareParameterCountIsThePeers) {
  // A block: 4 * 128^2 + 3 * 128 * 344 + 256 = 65536 + 132096 + 256 = 197888; four 791552;
  // embedding and head 2 * 256 * 128 = 65536; final norm 128.
  EXPECT_EQ(parameter_count(sized("shakespeare-cpu", 256)), 857216);
}

TEST(ModelConfig, GroupedQueryTiedParameterCountIsPublished) {
  // The published 0.5B model counts 494,032,768 with biases on q, k and v: 24 * (896 + 2 * 128) =
  // 27648 of them, which the named size does not have.
  ModelConfig config = sized("0.5B", 10000);
  EXPECT_EQ(config.vocab_size, 151936);
  EXPECT_TRUE(config.tied);
  EXPECT_EQ(parameter_count(config), 494032768 - 27648);
  config.qkv_bias = true;
  EXPECT_EQ(parameter_count(config), 494032768);
  // 1.5B: 1,543,714,304 with 28 * (1536 + 2 * 256) = 57344 biases.
  EXPECT_EQ(parameter_count(sized("1.5B", 0)), 1543714304 - 57344);
}

TEST(ModelConfig, Gpt2ParameterCountIsPublished) {
  const ModelConfig config = sized("gpt2", 100);
  EXPECT_EQ(config.vocab_size, 50257);
  EXPECT_EQ(config.context, 1024);
  EXPECT_EQ(parameter_count(config), 124439808);
  EXPECT_EQ(parameter_count(sized("gpt2-medium", 100)), 354823168);
  ModelConfig other = config;
  apply_size(other, "small");  // gives every key that the size sets
  EXPECT_EQ(other.norm, NormKind::rms);
  EXPECT_FALSE(other.bias);
  other = config;
  other.mlp = MlpKind::swiglu;
  EXPECT_THROW(other.validate(), Error);
}

// Whole tiles of 128 rows, in equal parts. The algorithm table of the H200 has these rows.
TEST(ModelConfig, RowsOfLogitsAtATime) {
  EXPECT_EQ(head_chunk_rows(32768, 50304, 768, 2), 11008);   // in three: 1.25 GiB at most
  EXPECT_EQ(head_chunk_rows(16384, 50304, 1024, 2), 8192);   // in two
  EXPECT_EQ(head_chunk_rows(8192, 50304, 2560, 2), 8192);    // all
  EXPECT_EQ(head_chunk_rows(16384, 151936, 896, 2), 4096);   // in four: 6 x 896 rows at most
  EXPECT_EQ(head_chunk_rows(8192, 151936, 1536, 2), 8192);   // all: below 6 x 1536 rows
  EXPECT_EQ(head_chunk_rows(65536, 128256, 8192, 2), 9472);  // in seven: 2.5 GiB at most
  EXPECT_EQ(head_chunk_rows(8192, 151936, 1536, 4), 768);    // FP32: 512 MiB at most
  EXPECT_EQ(head_chunk_rows(8192, 50304, 2560, 4), 2048);
  EXPECT_EQ(head_chunk_rows(2048, 10000, 768, 2), 2048);
  EXPECT_EQ(head_chunk_rows(129, 1000, 64, 2), 256);
  for (const int64_t tokens : {0, 1, 128}) {
    EXPECT_EQ(head_chunk_rows(tokens, 1 << 30, 64, 4), 128) << tokens;
  }
}

TEST(ModelConfig, HeadDimensionOfItsOwn) {
  ModelConfig config;
  config.d_model = 100;
  config.heads = 3;
  config.kv_heads = 1;
  config.head_dim = 40;
  config.layers = 1;
  config.d_ff = 10;
  config.vocab_size = 7;
  config.validate();
  EXPECT_EQ(config.q_width(), 120);
  EXPECT_EQ(config.kv_width(), 40);
  // q 100 * 120, k and v 2 * 100 * 40, o 120 * 100, SwiGLU 3 * 100 * 10, norms 200; embedding and
  // head 2 * 7 * 100; final norm 100.
  EXPECT_EQ(parameter_count(config), 12000 + 8000 + 12000 + 3000 + 200 + 1400 + 100);
}

TEST(ModelConfig, FlopsOfSmallByHand) {
  // 128625408 parameters less the embedding's 7680000 are 120945408 in products; attention
  // 2 * 2 * 512 * 768 * 12 / 2 = 9437184. 3 * (2 * 120945408 + 9437184) = 753984000.
  EXPECT_DOUBLE_EQ(flops_per_token(sized("small", 10000), 512), 753984000.0);
}

TEST(ModelConfig, TiedHeadCountsOnceInFlops) {
  ModelConfig untied = sized("small", 10000), tied = untied;
  tied.tied = true;
  EXPECT_EQ(parameter_count(untied) - parameter_count(tied), 7680000);
  EXPECT_DOUBLE_EQ(flops_per_token(tied, 512), flops_per_token(untied, 512));
}

TEST(ModelConfig, SizesSetTheDimensions) {
  struct Row {
    const char* name;
    int64_t d_model, d_ff, layers, heads, kv_heads;
  };
  for (const Row& row :
       {Row{"toy", 256, 768, 4, 8, 8}, Row{"shakespeare-cpu", 128, 344, 4, 4, 4},
        Row{"shakespeare-gpu", 384, 1024, 6, 6, 6}, Row{"small", 768, 3072, 12, 12, 12},
        Row{"medium", 1024, 4096, 24, 16, 16}, Row{"large", 1280, 5120, 36, 20, 20},
        Row{"xl", 1600, 6400, 48, 25, 25}, Row{"2.7B", 2560, 10240, 32, 32, 32},
        Row{"10B", 4608, 12288, 50, 36, 36}, Row{"0.5B", 896, 4864, 24, 14, 2},
        Row{"1.5B", 1536, 8960, 28, 12, 2}, Row{"gpt2", 768, 3072, 12, 12, 12},
        Row{"gpt2-medium", 1024, 4096, 24, 16, 16}}) {
    const ModelConfig config = sized(row.name, 100);
    EXPECT_EQ(config.d_model, row.d_model) << row.name;
    EXPECT_EQ(config.d_ff, row.d_ff) << row.name;
    EXPECT_EQ(config.layers, row.layers) << row.name;
    EXPECT_EQ(config.heads, row.heads) << row.name;
    EXPECT_EQ(config.kv_head_count(), row.kv_heads) << row.name;
    EXPECT_NO_THROW(config.validate()) << row.name;
    EXPECT_NO_THROW(validate_options(config, ModelOptions{})) << row.name;
  }
  EXPECT_EQ(size_names().size(), 13u);
}

TEST(ModelConfig, SizeKeepsTheRest) {
  ModelConfig config;
  config.vocab_size = 5;
  config.context = 17;
  config.rope_theta = 1e6;
  config.head_dim = 64;
  apply_size(config, "small");
  EXPECT_EQ(config.vocab_size, 5);
  EXPECT_EQ(config.context, 17);
  EXPECT_EQ(config.rope_theta, 1e6);
  EXPECT_EQ(config.head_dim, 0);
  EXPECT_THROW(apply_size(config, "huge"), Error);
}

TEST(ModelConfig, ErrorsNameTheKey) {
  EXPECT_EQ(message_after([](ModelConfig&) {}), "valid");
  EXPECT_EQ(message_after([](ModelConfig& c) { c.d_model = 100; }),
            "d_model is 100, expected a multiple of heads (8), or head_dim given");
  EXPECT_EQ(message_after([](ModelConfig& c) { c.kv_heads = 3; }),
            "heads is 8, expected a multiple of kv_heads (3)");
  EXPECT_EQ(message_after([](ModelConfig& c) { c.kv_heads = -1; }),
            "kv_heads is -1, expected 0 (as many as heads) or more");
  EXPECT_EQ(message_after([](ModelConfig& c) { c.head_dim = 31; }),
            "head_dim is 31, expected an even number: rotary embedding turns pairs");
  EXPECT_EQ(message_after([](ModelConfig& c) { c.vocab_size = 0; }),
            "vocab is 0, expected at least 1");
  EXPECT_EQ(message_after([](ModelConfig& c) { c.layers = 0; }),
            "layers is 0, expected at least 1");
  EXPECT_EQ(message_after([](ModelConfig& c) { c.heads = 0; }), "heads is 0, expected at least 1");
  EXPECT_EQ(message_after([](ModelConfig& c) { c.context = 0; }), "ctx is 0, expected at least 1");
  EXPECT_EQ(message_after([](ModelConfig& c) { c.rope_theta = 0; }),
            "rope_theta is 0, expected above 0");
  const auto scaled = [](RopeScaling scaling) {
    return message_after([=](ModelConfig& c) { c.rope_scaling = scaling; });
  };
  const auto linear = RopeScalingKind::linear, llama3 = RopeScalingKind::llama3;
  EXPECT_EQ(scaled({linear, 4.0}), "valid");
  EXPECT_EQ(scaled({llama3, 8.0, 1.0, 4.0, 8192}), "valid");
  EXPECT_EQ(scaled({linear, 0.5}), "rope_factor is 0.5, expected at least 1");
  EXPECT_EQ(scaled({RopeScalingKind::none, 4.0}),
            "rope_factor is 4, expected rope_scaling = linear or llama3 beside it");
  EXPECT_EQ(scaled({llama3, 8.0, 0.0, 4.0, 8192}), "rope_low_freq_factor is 0, expected above 0");
  EXPECT_EQ(scaled({llama3, 8.0, 4.0, 4.0, 8192}),
            "rope_high_freq_factor is 4, expected above rope_low_freq_factor (4)");
  EXPECT_EQ(scaled({llama3, 8.0, 1.0, 4.0, 0}), "rope_original_ctx is 0, expected at least 1");
  EXPECT_EQ(message_after([](ModelConfig& c) { c.norm_eps = -1; }),
            "norm_eps is -1, expected at least 0");
}

TEST(ModelConfig, FlashHeadDimensions) {
  ModelConfig config;
  ModelOptions flash, naive;
  naive.attention = AttentionKind::naive;
  for (const int64_t D : {8, 80, 128, 256}) {
    config.head_dim = D;
    EXPECT_NO_THROW(validate_options(config, flash)) << D;
  }
  for (const int64_t D : {20, 264}) {
    config.head_dim = D;
    EXPECT_THROW(validate_options(config, flash), Error) << D;
    EXPECT_NO_THROW(validate_options(config, naive)) << D;
  }
}

TEST(ModelConfig, ATrainedModelGetsTheAttentionThatSupportsIt) {
  ModelConfig config;
  ModelOptions options;
  forget_slow_paths();
  config.head_dim = 16;
  use_supported_attention(config, options);
  EXPECT_EQ(options.attention, AttentionKind::flash);
  EXPECT_TRUE(slow_paths().empty());
  config.head_dim = 12;
  use_supported_attention(config, options);
  EXPECT_EQ(options.attention, AttentionKind::naive);
  EXPECT_EQ(slow_paths().back(),
            "a slower kernel runs for attention with head_dim 12: flash supports multiples of 8 up "
            "to 256");
}

TEST(ModelConfig, WhatCannotBeOffloaded) {
  ModelOptions options;
  options.offload = Offload::moments;
  EXPECT_NO_THROW(validate_options({}, options));
  options.offload = Offload::optimizer;
  testing_support::expect_error(
      [&] { validate_options({}, options); },
      {"offload is optimizer, which needs precision = bf16", "offload = moments"});
  options.precision = Precision::bf16;
  EXPECT_NO_THROW(validate_options({}, options));
  options.offload_activations = true;
  EXPECT_NO_THROW(validate_options({}, options));
  options.kernels = KernelKind::naive;
  testing_support::expect_error(
      [&] { validate_options({}, options); },
      {"offload_activations with kernels = naive needs recompute = blocks"});
  options.recompute = Recompute::blocks;
  EXPECT_NO_THROW(validate_options({}, options));
  options = {};
  options.offload_activations = true;
  options.precision = Precision::fp8;
  EXPECT_NO_THROW(validate_options({}, options));
  ModelConfig gpt2;
  apply_size(gpt2, "gpt2");
  testing_support::expect_error([&] { validate_options(gpt2, options); },
                                {"offload_activations with mlp = gelu and precision = fp8"});
  options.precision = Precision::bf16;
  EXPECT_NO_THROW(validate_options(gpt2, options));
}

}  // namespace
}  // namespace quern
