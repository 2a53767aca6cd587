#include "bench/golden_case.h"

#include <algorithm>

#include "bench/golden_copy.h"

namespace quern {
namespace {

using namespace testing_support;

TensorView& find(std::vector<TensorView>& views, const std::string& name) {
  const auto found = std::find_if(views.begin(), views.end(),
                                  [&](const TensorView& view) { return view.name == name; });
  if (found == views.end()) throw std::runtime_error("no tensor " + name);
  return *found;
}

TEST(GoldenCase, ReadsTheCase) {
  const GoldenCase golden = GoldenCase::open(golden_folder() / "gqa_tied");
  EXPECT_TRUE(golden.config.tied);
  EXPECT_EQ(golden.config.kv_head_count(), 2);
  EXPECT_EQ(static_cast<int64_t>(golden.tokens.size()), golden.B * golden.T);
  EXPECT_EQ(golden.tokens.size(), golden.targets.size());
  EXPECT_EQ(golden.losses.size(), 10u);
  EXPECT_EQ(golden.grad_norms.size(), 10u);
}

TEST(GoldenCase, MissingFolder) {
  expect_error([] { GoldenCase::open("no/such/case"); }, {"no/such/case", "not a folder"});
}

TEST(GoldenCase, MissingExpectations) {
  const GoldenCopy copy("mha");
  std::filesystem::remove(copy.path() / "expected.safetensors");
  expect_error([&] { GoldenCase::open(copy.path()); },
               {copy.path().string(), "has no expected.safetensors"});
}

TEST(GoldenCase, MissingModel) {
  const GoldenCopy copy("mha");
  std::filesystem::remove(copy.path() / "model.safetensors");
  expect_error([&] { GoldenCase::open(copy.path()); }, {"model.safetensors"});
}

TEST(GoldenCase, AnotherModel) {
  GoldenCopy copy("mha");
  copy.replace("config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 2000000000");
  expect_error([&] { GoldenCase::open(copy.path()); },
               {"config.json: num_hidden_layers is 2000000000", "21 tensors"});
}

TEST(GoldenCase, EachTensorIsNeeded) {
  for (const char* name : {"input_ids", "targets", "logits", "loss", "losses", "grad_norms",
                           "grad.model.norm.weight", "final.lm_head.weight"}) {
    GoldenCopy copy("mha");
    copy.edit("expected.safetensors", [&](std::vector<TensorView>& views) {
      std::erase_if(views, [&](const TensorView& view) { return view.name == name; });
    });
    expect_error([&] { GoldenCase::open(copy.path()); }, {"expected.safetensors", name});
  }
}

TEST(GoldenCase, WrongShape) {
  GoldenCopy copy("mha");
  copy.edit("expected.safetensors", [](std::vector<TensorView>& views) {
    TensorView& view = find(views, "grad.model.layers.0.mlp.down_proj.weight");
    std::swap(view.shape[0], view.shape[1]);
  });
  expect_error([&] { GoldenCase::open(copy.path()); },
               {"grad.model.layers.0.mlp.down_proj.weight", "(160, 64)", "expected (64, 160)"});
}

TEST(GoldenCase, WrongType) {
  GoldenCopy copy("mha");
  copy.edit("expected.safetensors",
            [](std::vector<TensorView>& views) { find(views, "loss").dtype = DType::i32; });
  expect_error([&] { GoldenCase::open(copy.path()); }, {"'loss' is i32", "expected f32"});
}

TEST(GoldenCase, TokenPastTheVocabulary) {
  GoldenCopy copy("mha");
  std::vector<int64_t> tokens;
  copy.edit("expected.safetensors", [&](std::vector<TensorView>& views) {
    TensorView& view = find(views, "input_ids");
    tokens.assign(static_cast<size_t>(view.shape.numel()), 5);
    tokens[11] = 97;
    view.data = std::as_bytes(std::span<const int64_t>(tokens));
  });
  expect_error([&] { GoldenCase::open(copy.path()); }, {"token 97 at position 11", "97"});
}

TEST(GoldenCase, LongerThanTheContext) {
  GoldenCopy copy("mha");
  std::vector<int64_t> tokens(2 * 65, 1);
  copy.edit("expected.safetensors", [&](std::vector<TensorView>& views) {
    TensorView& view = find(views, "input_ids");
    view.shape = {2, 65};
    view.data = std::as_bytes(std::span<const int64_t>(tokens));
  });
  expect_error([&] { GoldenCase::open(copy.path()); }, {"(2, 65)", "context of 64"});
}

}  // namespace
}  // namespace quern
