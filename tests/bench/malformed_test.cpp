// Malformed golden cases.
#include "support/malformed.h"

#include <gtest/gtest.h>

#include "bench/golden_case.h"
#include "bench/golden_copy.h"

namespace quern {
namespace {

using namespace testing_support;

TEST(Malformed, GoldenCase) {
  using Views = std::vector<TensorView>;
  const std::string name = "expected.safetensors";
  const auto edited = [&](const std::function<void(Views&)>& edit) {
    GoldenCopy copy("gqa_tied");
    copy.edit(name, edit);
    return read_file(copy.path() / name);
  };
  const auto without = [&](const std::string& tensor) {
    return edited([&](Views& views) {
      std::erase_if(views, [&](const TensorView& view) { return view.name == tensor; });
    });
  };
  const auto with = [&](const std::string& tensor, const std::function<void(TensorView&)>& change) {
    return edited([&](Views& views) {
      for (TensorView& view : views) {
        if (view.name == tensor) change(view);
      }
    });
  };
  const std::vector<int64_t> tokens(1000, 97);
  const GoldenCopy copy("gqa_tied");
  expect_malformed(
      copy.path() / name,
      {{"empty", "", "", "has 0 bytes", "at least the 8"},
       {"no tokens", without("input_ids"), "tensor", "has no", "'input_ids'"},
       {"no gradient", without("grad.model.norm.weight"), "tensor", "has no",
        "'grad.model.norm.weight'"},
       {"whole numbers as loss", with("loss", [](TensorView& v) { v.dtype = DType::i32; }),
        "'loss'", "is i32", "f32"},
       {"flat logits", with("logits", [](TensorView& v) { v.shape = {v.shape.numel()}; }),
        "'logits'", "has shape (6402)", "3 dimensions"},
       {"a row beyond the context",
        with("input_ids",
             [](TensorView& v) {
               v.shape = {1, v.shape.numel()};
             }),
        "'input_ids'", "has shape (1, 66)", "at most the model's context of 64"},
       {"a token beyond the vocabulary",
        with(
            "input_ids",
            [&](TensorView& v) { v.data = std::as_bytes(std::span(tokens)).first(v.data.size()); }),
        "'input_ids' has token 97", "at position 0", "less than the vocabulary of 97"}},
      [](const auto& path) { GoldenCase::open(path.parent_path()); });
}

}  // namespace
}  // namespace quern
