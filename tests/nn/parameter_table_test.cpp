// The table of a model's parameters, which needs no memory, and the arena built from it.
#include "nn/parameter_table.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "model/model_cost.h"
#include "model/transformer_lm.h"
#include "nn/arena.h"
#include "nn/linear.h"
#include "support/files.h"

namespace quern {
namespace {

using namespace testing_support;

ModelConfig tiny(bool tied = false) {
  ModelConfig config;
  config.vocab_size = 31;
  config.context = 16;
  config.d_model = 56;
  config.d_ff = 40;
  config.layers = 3;
  config.heads = 7;
  config.kv_heads = 1;
  config.tied = tied;
  config.qkv_bias = true;
  return config;
}

TEST(ParameterTable, IsTheArenas) {
  TransformerLM model(tiny(), {});
  const ParameterTable table(model);
  const ParameterArena arena(model, {});
  EXPECT_EQ(table.size(), arena.size());
  EXPECT_EQ(table.trainable(), arena.trainable());
  ASSERT_EQ(table.entries().size(), arena.parameters().size());
  for (size_t i = 0; i < table.entries().size(); ++i) {
    const ParameterEntry& entry = table.entries()[i];
    const Parameter& parameter = *arena.parameters()[i];
    EXPECT_EQ(entry.name, parameter.name());
    EXPECT_EQ(entry.shape, parameter.shape());
    EXPECT_EQ(entry.begin, parameter.begin());
    EXPECT_EQ(entry.begin % 128, 0) << entry.name;  // 256 bytes of BF16
    EXPECT_EQ(table.find(entry.name), &entry);
  }
  EXPECT_EQ(table.find("lm_head.bias"), nullptr);
}

TEST(ParameterTable, BlocksAreRangesOfTheArena) {
  const ParameterTable table = parameter_table(tiny());
  ASSERT_EQ(table.block_count(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    const ParameterTable::Range block = table.block(i);
    EXPECT_EQ(block.begin % 512, 0) << i;  // 1 KiB of BF16
    EXPECT_EQ(block.end % 512, 0) << i;
    int64_t elements = 0;
    for (const ParameterEntry& entry : table.entries()) {
      const bool inside = entry.begin >= block.begin && entry.end() <= block.end;
      EXPECT_EQ(inside, entry.block == static_cast<int>(i)) << entry.name;
      if (inside) elements += entry.numel();
    }
    EXPECT_EQ(elements, (56 + 16) * 56 + 72 + 56 * 56 + 3 * 56 * 40 + 2 * 56) << i;
  }
  EXPECT_EQ(table.block(0).end, table.block(1).begin);
}

TEST(ParameterTable, FrozenParametersComeLast) {
  TransformerLM model(tiny(), {});
  const ParameterTable table(model, [](const std::string& name, ParameterGroup& group) {
    group.frozen = name.starts_with("model.layers.1.") || name.starts_with("model.embed_tokens");
  });
  EXPECT_EQ(table.block(1).begin, table.block(1).end);
  for (const ParameterEntry& entry : table.entries()) {
    EXPECT_EQ(entry.begin >= table.trainable(), entry.group.frozen) << entry.name;
  }
  EXPECT_EQ(table.entries().front().name, "model.layers.0.input_layernorm.weight");
  EXPECT_EQ(table.parameter_count(), parameter_count(tiny()));
}

TEST(ParameterTable, NamesThePartsOfAFusedWeight) {
  const ParameterTable table = parameter_table(tiny());
  const ParameterEntry* qkv = table.find("model.layers.1.self_attn.qkv_proj.weight");
  ASSERT_NE(qkv, nullptr);
  const std::vector<NamedSlice> slices = qkv->slices();
  ASSERT_EQ(slices.size(), 3u);
  EXPECT_EQ(slices[1].name, "model.layers.1.self_attn.k_proj.weight");
  EXPECT_EQ(slices[1].shape, (Shape{8, 56}));
  EXPECT_EQ(slices[1].begin, qkv->begin + 56 * 56);
}

TEST(ParameterTable, ATiedHeadIsASecondName) {
  for (const bool tied : {false, true}) {
    const ParameterTable table = parameter_table(tiny(tied));
    EXPECT_EQ(table.aliases().size(), tied ? 1u : 0u);
    EXPECT_EQ(table.find("lm_head.weight") == nullptr, tied);
    EXPECT_NE(table.is_lookup(*table.find("model.embed_tokens.weight")), tied);
    EXPECT_FALSE(table.is_lookup(*table.find("model.norm.weight")));
    if (!tied) continue;
    EXPECT_EQ(table.aliases()[0].name, "lm_head.weight");
    EXPECT_EQ(table.aliases()[0].of, "model.embed_tokens.weight");
  }
}

TEST(ParameterTable, RefusesAParameterDeclaredTwice) {
  Linear layer(2, 3, false);
  ParameterList list;
  list.add("first", layer);
  expect_error([&] { list.add("second", layer); },
               {"second.weight was already declared as first.weight"});
  Linear other(2, 3, false);
  expect_error([&] { list.add_alias("third", other.weight); }, {"third", "declared before"});
}

TEST(ParameterTable, AParameterHasTheMemoryOfOneArena) {
  Linear layer(2, 3, false);
  const ParameterArena arena(layer, {});
  expect_error([&] { ParameterArena(layer, {}); }, {"weight", "another arena"});
}

}  // namespace
}  // namespace quern
