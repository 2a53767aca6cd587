#include "run/hf_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "bench/golden_copy.h"
#include "config/config_parse.h"
#include "hf/hf_export.h"
#include "hf/huggingface.h"
#include "model/model_cost.h"
#include "run/checkpoint.h"
#include "run/saved_model.h"
#include "run/weights.h"
#include "support/faults.h"
#include "support/training.h"
#include "text/tokenizer_files.h"

namespace quern {
namespace {

namespace fs = std::filesystem;
using namespace testing_support;

const fs::path kTokenizer = source_folder() / "tests/fixtures/tokenizers/gpt2.json";  // 904 tokens

void expect_same_tensors(const fs::path& a, const fs::path& b, const std::string& what) {
  const TensorSource first = TensorSource::open(a), second = TensorSource::open(b);
  ASSERT_EQ(first.names(), second.names()) << what;
  for (const std::string& name : first.names()) {
    const TensorView x = first.tensor(name), y = second.tensor(name);
    EXPECT_EQ(x.dtype, y.dtype) << what << ": " << name;
    EXPECT_EQ(x.shape, y.shape) << what << ": " << name;
    EXPECT_TRUE(std::ranges::equal(x.data, y.data)) << what << ": " << name;
  }
}

void expect_same_file(const fs::path& a, const fs::path& b) {
  EXPECT_EQ(read_file(a), read_file(b)) << a << " and " << b;
}

// A golden model as a Hugging Face folder in another dtype, perhaps sharded.
void make_source(const fs::path& folder, const std::string& name, DType dtype,
                 int64_t shard_bytes = 1 << 30) {
  const fs::path golden = golden_folder() / name;
  const ModelConfig config = read_hf_config(golden);
  const TensorSource source = TensorSource::open(golden);
  export_hf(folder, config, model_weights(source, config),
            {dtype, shard_bytes, {.source = golden}});
}

// An untrained model of that many tokens, as a Hugging Face folder.
void make_untrained(const fs::path& folder, int64_t vocab_size) {
  ModelConfig config = tiny_model();
  config.vocab_size = vocab_size;
  const ModelInstance instance(config, ModelOptions{}, InitScheme::truncated, false, 1);
  export_hf(folder, config, weights_of(instance.arena).views, {});
}

TEST(ImportThenExport, GivesEveryTensorByteForByte) {
  for (const char* name :
       {"mha", "gqa_tied", "qwen2_bias", "qwen3_norm", "llama3_rope", "linear_rope", "gpt2"}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const TemporaryFolder folder;
      make_source(folder / "hf", name, dtype);
      import_model(folder / "hf", folder / "run");
      export_model(folder / "run", folder / "out");
      expect_same_tensors(folder / "hf", folder / "out", name);
      expect_same_file(folder / "hf/config.json", folder / "out/config.json");
      expect_same_file(folder / "hf/generation_config.json", folder / "out/generation_config.json");
    }
  }
}

TEST(ImportThenExport, KeepsShardsAndMixedDtypes) {
  const TemporaryFolder folder;
  make_source(folder / "hf", "qwen3_norm", DType::bf16, 50'000);
  ASSERT_TRUE(fs::exists(folder / "hf/model.safetensors.index.json"));
  import_model(folder / "hf", folder / "run");
  export_model(folder / "run", folder / "out", {.shard_bytes = 60'000});
  ASSERT_TRUE(fs::exists(folder / "out/model.safetensors.index.json"));
  expect_same_tensors(folder / "hf", folder / "out", "sharded");

  GoldenCopy mixed("mha");
  static const std::vector<bfloat16> kNorm(64, bfloat16(1.25f));
  mixed.edit("model.safetensors", [](std::vector<TensorView>& views) {
    for (TensorView& view : views) {
      if (view.name != "model.norm.weight") continue;
      view.dtype = DType::bf16;
      view.data = std::as_bytes(std::span(kNorm));
    }
  });
  import_model(mixed.path(), folder / "mixed");
  export_model(folder / "mixed", folder / "mixed_out");
  expect_same_tensors(mixed.path(), folder / "mixed_out", "mixed");
}

TEST(ImportThenExport, ATiedHeadThatIsThereIsLeftOut) {
  const TemporaryFolder folder;
  GoldenCopy copy("gqa_tied");
  copy.edit("model.safetensors", [](std::vector<TensorView>& views) {
    TensorView head = *std::find_if(views.begin(), views.end(), [](const TensorView& view) {
      return view.name == "model.embed_tokens.weight";
    });
    head.name = "lm_head.weight";
    views.push_back(head);
  });
  import_model(copy.path(), folder / "run");
  export_model(folder / "run", folder / "out");
  expect_same_tensors(golden_folder() / "gqa_tied", folder / "out", "tied");
}

TEST(ExportModel, ConvertsWhenAsked) {
  const TemporaryFolder folder;
  make_source(folder / "hf", "mha", DType::bf16);
  import_model(folder / "hf", folder / "run");
  export_model(folder / "run", folder / "wide", {.dtype = DType::f32});
  EXPECT_EQ(read_hf_dtype(folder / "wide"), DType::f32);
  // Every bfloat16 is a float32, so the way back gives the same bytes.
  import_model(folder / "wide", folder / "run2");
  export_model(folder / "run2", folder / "narrow", {.dtype = DType::bf16});
  expect_same_tensors(folder / "hf", folder / "narrow", "back");
  export_model(folder / "run", folder / "source", {.source_dtype = true});
  expect_same_tensors(folder / "hf", folder / "source", "source");
}

// The run's configuration would be refused when it is read.
TEST(ImportModel, RefusesWhatNoConfigurationHolds) {
  const TemporaryFolder folder;
  make_source(folder / "hf", "gqa_tied", DType::bf16);
  const fs::path config = folder / "hf/config.json";
  nlohmann::json json = nlohmann::json::parse(read_file(config));
  for (const auto& [context, refused] : {std::pair{1 << 24, false}, {(1 << 24) + 1, true}}) {
    json["max_position_embeddings"] = context;
    write_file(config, json.dump());
    try {
      import_model(folder / "hf", folder / "run");
      EXPECT_FALSE(refused);
      EXPECT_EQ(load_config(folder / "run/config.toml").model.context, context);
      fs::remove_all(fs::path(folder / "run"));
    } catch (const Error& error) {
      EXPECT_TRUE(refused);
      EXPECT_EQ(error.what(), cat("import: ", config.string(), ": ctx would be 16777217, expected ",
                                  "an integer from 1 to 16777216"));
      EXPECT_FALSE(fs::exists(folder / "run"));
    }
  }
}

TEST(ImportModel, GivesAModelThatLoads) {
  const TemporaryFolder folder;
  make_source(folder / "hf", "gqa_tied", DType::bf16);
  const ImportedModel imported = import_model(folder / "hf", folder / "run");
  EXPECT_EQ(imported.model, read_hf_config(golden_folder() / "gqa_tied"));
  EXPECT_EQ(imported.bytes, 2 * parameter_count(imported.model));
  EXPECT_EQ(imported.tokenizer, "");
  const SavedModel saved = load_saved_model(folder / "run", false, {});
  EXPECT_EQ(saved.state.model, imported.model);
  EXPECT_EQ(saved.state.iteration, 0);
  EXPECT_FALSE(saved.state.is_text);
  const TensorSource source = TensorSource::open(folder / "hf");
  for (const TensorView& view : weights_of(saved.instance->arena).views) {
    const TensorView narrow = source.tensor(view.name);
    for (size_t i = 0; i < static_cast<size_t>(view.shape.numel()); ++i) {
      bfloat16 expected;
      float found = 0.0f;
      std::memcpy(&expected, narrow.data.data() + 2 * i, 2);
      std::memcpy(&found, view.data.data() + 4 * i, 4);
      ASSERT_EQ(found, static_cast<float>(expected)) << view.name << " " << i;
    }
  }
}

TEST(ImportModel, TakesTheTokenizerAlong) {
  const TemporaryFolder folder;
  make_untrained(folder / "hf", 904);
  fs::copy_file(kTokenizer, folder / "hf/tokenizer.json");
  EXPECT_EQ(import_model(folder / "hf", folder / "run").tokenizer, "bpe");
  expect_same_file(folder / "hf/tokenizer.json", folder / "run/tokenizer/tokenizer.json");
  EXPECT_EQ(state_of(open_checkpoint(checkpoint_path(folder / "run/checkpoints", 0))).tokenizer,
            tokenizer_hash(folder / "hf"));
  export_model(folder / "run", folder / "out");
  expect_same_file(folder / "hf/tokenizer.json", folder / "out/tokenizer.json");
}

// Each file and folder, under a temporary name, before the run gets its name.
TEST(ImportModel, EveryFileReachesTheDisk) {
  const TemporaryFolder folder;
  make_untrained(folder / "hf", 904);
  fs::copy_file(kTokenizer, folder / "hf/tokenizer.json");
  write_file(folder / "hf/generation_config.json", "{}");
  std::set<std::string> synced;
  {
    const FaultyCalls calls([&](const std::string& call, std::string path) {
      if (call != "fsync" || fs::exists(folder / "run")) return 0;
      for (const std::string part : {".quern", ".tmp"}) {
        for (size_t at = 0; (at = path.find(part)) != std::string::npos;)
          path.erase(at, part.size());
      }
      synced.insert(path);
      return 0;
    });
    import_model(folder / "hf", folder / "run");
  }
  int64_t files = 0;
  for (const fs::path& path : fs::recursive_directory_iterator(folder / "run")) {
    EXPECT_TRUE(synced.contains(path.string())) << path;
    files += fs::is_regular_file(path) ? 1 : 0;
  }
  EXPECT_GE(files, 7);
}

TEST(ImportModel, RefusesATokenizerThatItCannotRead) {
  const TemporaryFolder folder;
  make_source(folder / "hf", "mha", DType::f32);
  write_file(folder / "hf/tokenizer.json", R"({"model": {"type": "WordPiece"}})");
  expect_error([&] { import_model(folder / "hf", folder / "run"); },
               {"hf/tokenizer.json: model.type is \"WordPiece\"", "--tokenizer none"});
  write_file(folder / "hf/tokenizer.json", "{");
  write_file(folder / "hf/tokenizer.model", "a model");
  expect_error([&] { import_model(folder / "hf", folder / "run"); },
               {"hf/tokenizer.json: is not valid JSON", "--tokenizer none"});
  EXPECT_FALSE(fs::exists(folder / "run"));
}

TEST(ImportModel, RefusesATokenizerOfMoreTokensThanTheModelHas) {
  const TemporaryFolder folder;
  make_untrained(folder / "hf", 903);
  fs::copy_file(kTokenizer, folder / "hf/tokenizer.json");
  expect_error([&] { import_model(folder / "hf", folder / "run"); },
               {"hf/tokenizer.json has 904 tokens", "hf/config.json: vocab_size is 903",
                "--tokenizer none"});
  EXPECT_FALSE(fs::exists(folder / "run"));
}

TEST(ImportModel, RefusesWhatIsNoModelFolder) {
  const TemporaryFolder folder;
  const auto import = [&](const fs::path& from) {
    return [&folder, from] { import_model(from, folder / "run"); };
  };
  expect_error(import("/nowhere"), {"import: /nowhere", "no such folder"});
  const int32_t magic = 20240326;
  std::string header(1024, '\0');
  std::memcpy(header.data(), &magic, sizeof magic);
  expect_error(import(write_file(folder / "gpt2_124M.bin", header)),
               {"gpt2_124M.bin is a GPT-2 model of llm.c", "expected a Hugging Face folder"});
  expect_error(import(write_file(folder / "a.gguf", "GGUF and more")), {"a.gguf is a GGUF file"});
  expect_error(import(write_file(folder / "empty", "")), {"empty", "is a file, expected"});
  fs::create_directory(folder / "bare");
  expect_error(import(folder / "bare"), {"bare has no config.json"});
  make_source(folder / "hf", "mha", DType::f32);
  import_model(folder / "hf", folder / "ours");
  expect_error(import(folder / "ours"), {"ours is Quern's own already"});
  EXPECT_FALSE(fs::exists(folder / "run"));
  EXPECT_FALSE(fs::exists(folder / "run.quern.tmp"));
}

TEST(ImportModel, RefusesAConfigurationThatTheFilesCannotBe) {
  const TemporaryFolder folder;
  GoldenCopy deep("mha"), damaged("mha");
  deep.replace("config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 2000000000");
  expect_error([&] { import_model(deep.path(), folder / "run"); },
               {"num_hidden_layers is 2000000000", "21 tensors"});
  write_file(damaged.path() / "generation_config.json", "{");
  expect_error([&] { import_model(damaged.path(), folder / "run"); },
               {"generation_config.json", "not valid JSON"});
  EXPECT_FALSE(fs::exists(folder / "run"));
}

TEST(ImportModel, IsCompleteOrNotThere) {
  const TemporaryFolder folder;
  GoldenCopy copy("mha");
  copy.edit("model.safetensors", [](std::vector<TensorView>& views) { views.pop_back(); });
  expect_error([&] { import_model(copy.path(), folder / "run"); }, {"has no tensor"});
  EXPECT_TRUE(fs::is_empty(folder.path()));

  // A killed import's remains do not block a new one. An existing run is not overwritten.
  write_file(folder / "run.quern.tmp/checkpoints/step_00000000.tmp/model.safetensors", "half");
  import_model(golden_folder() / "mha", folder / "run/");
  EXPECT_FALSE(fs::exists(folder / "run.quern.tmp"));
  expect_error([&] { import_model(golden_folder() / "mha", folder / "run"); },
               {"run exists already"});
  expect_error([&] { export_model(folder / "run", folder / "run"); }, {"run exists already"});
}

TEST(ExportModel, LeavesNothingBehindWhenItFails) {
  const TemporaryFolder folder;
  GoldenCopy copy("mha");
  copy.add("model.safetensors", "model.layers.1.mlp.up_proj.weight", 5, 1e6f);
  import_model(copy.path(), folder / "run");
  expect_error([&] { export_model(folder / "run", folder / "out", {.dtype = DType::f16}); },
               {"'model.layers.1.mlp.up_proj.weight' holds 1e+06", "range of f16"});
  EXPECT_FALSE(fs::exists(folder / "out"));
  EXPECT_FALSE(fs::exists(folder / "out.quern.tmp"));
  fs::remove_all(folder / "run/source");
  expect_error([&] { export_model(folder / "run", folder / "out", {.source_dtype = true}); },
               {"did not come from a Hugging Face folder"});
}

TEST(ImportModel, ACheckpointIsQuernsOwn) {
  const TemporaryFolder folder;
  write_file(folder / "a/manifest.json", "{}");
  write_file(folder / "b/config.toml", "");
  for (const char* name : {"a", "b"}) {
    expect_error([&] { import_model(folder / name, folder / "run"); }, {"is Quern's own already"});
  }
}

// A copy of a checkpoint lies outside a run: it has no source and no tokenizer.
TEST(ExportModel, OfACheckpointAlone) {
  const TemporaryFolder folder;
  import_model(golden_folder() / "mha", folder / "run");
  fs::copy(folder / "run/checkpoints/step_00000000", folder / "alone", fs::copy_options::recursive);
  export_model(folder / "alone", folder / "out");
  expect_same_tensors(golden_folder() / "mha", folder / "out", "alone");
  expect_error([&] { export_model(folder / "alone", folder / "again", {.source_dtype = true}); },
               {"has no source dtype"});
}

TEST(ExportModel, OfASourceThatNamesNoDtype) {
  const TemporaryFolder folder;
  GoldenCopy copy("mha");
  fs::remove(copy.path() / "generation_config.json");
  nlohmann::json config = nlohmann::json::parse(read_file(copy.path() / "config.json"));
  config.erase("dtype");
  config.erase("torch_dtype");
  write_file(copy.path() / "config.json", config.dump());
  import_model(copy.path(), folder / "run");
  expect_error([&] { export_model(folder / "run", folder / "out", {.source_dtype = true}); },
               {"config.json has no dtype; name one"});
}

}  // namespace
}  // namespace quern
