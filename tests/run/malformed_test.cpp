// Malformed checkpoints and training states.
#include "support/malformed.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "io/checksum.h"
#include "run/checkpoint.h"
#include "run/train_state.h"

namespace quern {
namespace {

using namespace testing_support;
namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

fs::path fixture() {
  return source_folder() / "tests/fixtures/run_before_optimizers/checkpoints/step_00000003";
}

// The manifest with `value` at a place of it (null: without the place) and the checksum of that.
std::string manifest(const std::string& place, const Json& value) {
  Json json = Json::parse(read_file(fixture() / "manifest.json"));
  json.erase("xxh3");
  const Json::json_pointer pointer(place);
  if (value.is_null()) json[pointer.parent_pointer()].erase(pointer.back());
  if (!value.is_null()) json[pointer] = value;
  const std::string text = json.dump();
  json["xxh3"] = checksum_of(text);
  return json.dump(1);
}

TEST(Malformed, CheckpointManifest) {
  const TemporaryFolder folder;
  fs::copy(fixture(), folder / "step_00000003", fs::copy_options::recursive);
  const std::string whole = read_file(fixture() / "manifest.json");
  const std::string weights = "/files/model.safetensors", count = "a whole number of 0 or more";
  expect_malformed(
      folder / "step_00000003/manifest.json",
      {{"empty", "", "line 1, column 1", "end of input", "'{'"},
       {"cut", whole.substr(0, 300), "line 21, column 14", "\"tied\": tr", "valid JSON"},
       {"a list", "[]", "", "a JSON array", "an object"},
       {"an empty object", "{}", "", "has no", "format"},
       {"another version", replaced(whole, "format\": 1", "format\": 3"), "version", "is 3",
        "1 or 2"},
       {"a version as text", replaced(whole, "format\": 1", "format\": \"1\""), "format", "\"1\"",
        count},
       {"a changed number", replaced(whole, "\"step\": 3", "\"step\": 4"), "checksum",
        "ccea101c44ade36c", "8d9fa45032bd06ab"},
       {"no checksum", replaced(whole, "\"xxh3\": \"8d", "\"x\": \"8d"), "", "has no", "xxh3"},
       {"a step as text", manifest("/step", "3"), "step", "\"3\"", count},
       {"no files", manifest("/files", {}), "", "has no", "files"},
       {"files as a list", manifest("/files", Json::array()), "files", "is []", "an object"},
       {"no weights", manifest(weights, {}), "files", "has no", "model.safetensors"},
       {"a size as text", manifest(weights + "/bytes", "9"), "model.safetensors.bytes", "\"9\"",
        count},
       {"a checksum as a number", manifest(weights + "/xxh3", 7), "model.safetensors.xxh3", "is 7",
        "a string"},
       {"no state", manifest("/state", {}), "", "has no", "state"}},
      [](const fs::path& path) { open_checkpoint(path.parent_path()); });
}

TEST(Malformed, TrainState) {
  const TemporaryFolder folder;
  fs::copy(fixture(), folder / "step_00000003", fs::copy_options::recursive);
  const std::string count = "a whole number of 0 or more", seed = "from 0 to 2^64 - 1";
  const auto state = [](const std::string& place, const Json& value) {
    return manifest(cat("/state", place), value);
  };
  expect_malformed(
      folder / "step_00000003/manifest.json",
      {{"text", state("", "x"), "state", "\"x\"", "an object with iteration"},
       {"a step as text", state("/step", "x"), "state.step", "\"x\"", count},
       {"half a step", state("/step", 1.5), "state.step", "is 1.5", count},
       {"a negative step", state("/iteration", -1), "state.iteration", "is -1", count},
       {"no sampler", state("/sampler", {}), "state", "has no", "sampler"},
       {"a sampler as a number", state("/sampler", 1), "state.sampler", "is 1", "with seed"},
       {"a seed as text", state("/sampler/seed", "x"), "state.sampler.seed", "\"x\"", seed},
       {"half a seed", state("/sampler/seed", 1.5), "state.sampler.seed", "is 1.5", seed},
       {"a flag as a number", state("/is_text", 1), "state.is_text", "is 1", "true or false"},
       {"a tokenizer as a number", state("/tokenizer", 1), "state.tokenizer", "is 1", "a string"},
       {"a model as a number", state("/model", 1), "state.model", "is 1", "an object"},
       {"heads in words", state("/model/heads", "four"), "state.model.heads", "\"four\"",
        "an integer from 1 to 65536"},
       {"heads as a list", state("/model/heads", Json::array()), "state.model.heads", "is []",
        "an integer from 1 to 65536"},
       {"no width", state("/model/d_model", 0), "state.model.d_model", "is 0", "from 1 to 1048576"},
       {"tied to 3", state("/model/tied", 3), "state.model.tied", "is 3", "true or false"},
       {"an unknown RoPE", state("/model/rope_scaling/kind", "yarn"),
        "state.model.rope_scaling.kind", "\"yarn\"", "one of none, linear, llama3"},
       {"a best as a number", state("/best", 1), "state.best", "is 1", "an object with loss"},
       {"data as a number", state("/data", {{"train", 1}}), "state.data.train", "is 1",
        "a string"}},
      [](const fs::path& path) { state_of(open_checkpoint(path.parent_path())); });
}

TEST(Malformed, CheckpointFiles) {
  const TemporaryFolder folder;
  fs::copy(fixture(), folder / "step_00000003", fs::copy_options::recursive);
  const auto open = [](const fs::path& path) { open_checkpoint(path.parent_path()); };
  const std::string weights = read_file(fixture() / "model.safetensors");
  expect_malformed(
      folder / "step_00000003/model.safetensors",
      {{"empty", "", "", "has 0 bytes", "10568"},
       {"cut", weights.substr(0, 5000), "", "has 5000 bytes", "10568"},
       {"a flipped bit", flipped(weights, 5000), "checksum", "is ", "2523307cdc738d00"}},
      open);
  write_file(folder / "step_00000003/model.safetensors", weights);
  const std::string moments = read_file(fixture() / "optimizer.safetensors");
  expect_malformed(folder / "step_00000003/optimizer.safetensors",
                   {{"longer", moments + "x", "", "has 21449 bytes", "21448"},
                    {"a flipped bit", flipped(moments, 9), "checksum", "is ", "c0139d64797e36b9"}},
                   open);
}

TEST(Malformed, BestCheckpoint) {
  const TemporaryFolder folder;
  const std::string expected = "a name like step_00000000";
  expect_malformed(folder / "best",
                   {{"empty", "", "", "holds ''", expected},
                    {"a number", "3\n", "", "holds '3'", expected},
                    {"another folder", "../step_00000003\n", "", "'../step_00000003'", expected},
                    {"too few digits", "step_3\n", "", "holds 'step_3'", expected},
                    {"a lost checkpoint", "step_00000009\n", "step_00000009", "is not there",
                     "recorded as the best checkpoint"}},
                   [](const fs::path& path) { best_checkpoint(path.parent_path()); });
}

}  // namespace
}  // namespace quern
