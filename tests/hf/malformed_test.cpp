// Malformed configurations and shard indices of Hugging Face folders.
#include "support/malformed.h"

#include <gtest/gtest.h>

#include "hf/hf_config.h"
#include "hf/huggingface.h"

namespace quern {
namespace {

using namespace testing_support;

TEST(Malformed, HfConfig) {
  const TemporaryFolder folder;
  const std::string whole = read_file(golden_folder() / "llama3_rope/config.json");
  const auto with = [&](const std::string& before, const std::string& after) {
    return replaced(whole, before, after);
  };
  const std::string count = "a whole number from 1 to 2147483647";
  expect_malformed(
      folder / "config.json",
      {{"empty", "", "line 1, column 1", "end of input", "'{'"},
       {"cut", whole.substr(0, whole.size() / 2), "line 19", "missing closing quote", "string"},
       {"a list", "[]", "", "a JSON array", "an object"},
       {"Latin-1", with("silu", "si\xff"), "line 11, column 20", "ill-formed UTF-8", "valid JSON"},
       {"a name twice", with("\"silu\"", "\"silu\", \"hidden_act\": \"x\""), "'hidden_act'",
        "names", "twice"},
       {"an unknown family", with("\"llama\"", "\"bert\""), "model_type", "\"bert\"",
        "one of \"llama\""},
       {"no family", "{}", "", "has no", "model_type"},
       {"no dimension", R"({"model_type":"llama"})", "", "has no", "vocab_size"},
       {"a dimension as text", with(": 64", ": \"64\""), "hidden_size", "\"64\"", count},
       {"a dimension of 0", with(": 64", ": 0"), "hidden_size", "is 0", count},
       {"a fraction", with(": 64", ": 64.5"), "hidden_size", "is 64.5", count},
       {"heads that do not divide", with("heads\": 2", "heads\": 3"), "heads", "is 4",
        "a multiple of kv_heads (3)"},
       {"an unknown RoPE", with("\"llama3\"", "\"yarn\""), "rope_parameters: rope_type", "\"yarn\"",
        "\"linear\""},
       {"a factor as text", with("8.0", "\"8\""), "rope_parameters: factor", "\"8\"", "a number"},
       {"an unknown activation", with("silu", "relu"), "hidden_act", "\"relu\"", "\"silu\""}},
      [](const auto& path) { read_hf_config(path.parent_path()); });
}

TEST(Malformed, ShardIndex) {
  const TemporaryFolder folder;
  expect_malformed(
      folder / "model.safetensors.index.json",
      {{"empty", "", "line 1, column 1", "end of input", "'{'"},
       {"a list", "[]", "", "a JSON array", "an object"},
       {"no map", "{}", "", "has no", "weight_map"},
       {"a map that is a list", R"({"weight_map":[]})", "weight_map", "is []", "an object"},
       {"a number as a shard", R"({"weight_map":{"a":1}})", "weight_map: a", "is 1", "a string"},
       {"another folder", R"({"weight_map":{"a":"../b"}})", "'a'", "'../b'", "the same folder"}},
      [](const auto& path) { TensorSource::open(path.parent_path()); });
}

}  // namespace
}  // namespace quern
