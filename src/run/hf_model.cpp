#include "run/hf_model.h"

#include <cstring>

#include "base/error.h"
#include "config/config_print.h"
#include "config/config_table.h"
#include "hf/hf_export.h"
#include "hf/huggingface.h"
#include "io/atomic_file.h"
#include "io/json_file.h"
#include "io/mapped_file.h"
#include "io/python_line.h"
#include "run/load_model.h"
#include "run/run_folder.h"
#include "run/run_tokenizer.h"
#include "run/train_state.h"
#include "text/byte_tokenizer.h"
#include "text/tokenizer_files.h"

namespace quern {

namespace fs = std::filesystem;

namespace {

constexpr int32_t kLlmcModel = 20240326;  // the first number of llm.c's model files

// Rejects a file in place of a folder, with the kind of the file.
[[noreturn]] void refuse_file(const fs::path& path) {
  const MappedFile file = MappedFile::open(path);
  int32_t magic = 0;
  if (file.bytes().size() >= sizeof magic) std::memcpy(&magic, file.bytes().data(), sizeof magic);
  QUERN_CHECK(magic != kLlmcModel, "import: ", path.string(),
              " is a GPT-2 model of llm.c, expected a Hugging Face folder");
  QUERN_CHECK(std::memcmp(&magic, "GGUF", sizeof magic) != 0, "import: ", path.string(),
              " is a GGUF file, expected a Hugging Face folder");
  fail(cat("import: ", path.string(), " is a file, expected a Hugging Face folder"));
}

void check_is_hf_folder(const fs::path& folder) {
  QUERN_CHECK(fs::exists(folder), "import: ", folder.string(), ": there is no such folder",
              hub_hint(folder.string(), HubKind::model));
  if (!fs::is_directory(folder)) refuse_file(folder);
  const bool ours = fs::exists(folder / "config.toml") || fs::exists(folder / "manifest.json");
  QUERN_CHECK(!ours, "import: ", folder.string(),
              " is Quern's own already; generate, eval, export and --from take it as it is");
  QUERN_CHECK(fs::exists(folder / "config.json"), "import: ", folder.string(),
              " has no config.json, expected a Hugging Face folder");
}

void import_tokenizer(const fs::path& folder, const fs::path& run, ImportedModel& imported,
                      TrainState& state) {
  const auto tokenizer = model_tokenizer(folder, imported.model);
  if (!tokenizer) return;
  imported.tokenizer = tokenizer->kind();
  state.tokenizer = tokenizer->hash();
  state.is_text = tokenizer->kind() == "bytes";
  copy_tokenizer(folder, run / "tokenizer");
}

// The run's configuration. Throws when a value is beyond its key's limits: the file that
// save_config writes could not be read.
Config imported_config(const ModelConfig& model, const fs::path& folder, const fs::path& out) {
  Config config = config_of(model);
  for (const ConfigKey* key : model_keys()) {
    const ConfigValue value = key->get(config);
    Config unused;
    QUERN_CHECK(key->set(unused, value), "import: ", (folder / "config.json").string(), ": ",
                key->name, " would be ", to_toml(value), ", expected ", key->expected);
  }
  config.model.from = fs::absolute(folder).lexically_normal().string();
  config.run.out = out.string();
  return config;
}

HfExportOptions hf_options(const ExportOptions& options, const TrainState& state,
                           const fs::path& run) {
  HfExportOptions hf{options.dtype, options.shard_bytes, {}};
  const fs::path source = run / "source", tokenizer = run / "tokenizer";
  if (!run.empty() && fs::exists(source / "config.json")) hf.config.source = source;
  if (options.source_dtype) {
    QUERN_CHECK(!hf.config.source.empty(), "export: the model did not come from a Hugging Face ",
                "folder and has no source dtype; name one");
    hf.dtype = read_hf_dtype(source);
    QUERN_CHECK(hf.dtype, "export: ", (source / "config.json").string(), " has no dtype; name one");
  }
  if (state.is_text) {
    hf.config.end_token = kEndOfText;
  } else if (!run.empty() && fs::exists(tokenizer)) {
    const auto opened = open_tokenizer(tokenizer);
    hf.config.begin_token = opened->begin_token();
    hf.config.end_token = opened->end_token();
  }
  return hf;
}

}  // namespace

ImportedModel import_model(const fs::path& folder, const fs::path& out, bool with_tokenizer) {
  check_is_hf_folder(folder);
  ImportedModel imported;
  imported.model = read_hf_config(folder);
  const TensorSource source = TensorSource::open(folder);
  const std::vector<TensorView> weights = model_weights(source, imported.model);
  const Config config = imported_config(imported.model, folder, out);
  for (const TensorView& weight : weights) {
    imported.bytes += static_cast<int64_t>(weight.data.size());
  }

  AtomicFolder staging(out, "import");
  const fs::path& run = staging.temporary();
  TrainState state;
  state.model = imported.model;
  if (with_tokenizer) import_tokenizer(folder, run, imported, state);
  const fs::path generation = folder / "generation_config.json";
  if (fs::exists(generation)) read_json_object(generation);  // throws when it is damaged
  copy_source(folder, run / "source");
  save_config(config, (run / "config.toml").string());
  save_weights(run / "checkpoints", weights, state);
  staging.commit();
  return imported;
}

fs::path export_model(const fs::path& run, const fs::path& folder, const ExportOptions& options) {
  fs::path path = find_checkpoint(run, !options.latest);
  AtomicFolder staging(folder, "export");
  const Checkpoint checkpoint = open_checkpoint(path);
  const TrainState state = state_of(checkpoint);
  const fs::path home = run_of(path);
  const bool in_run = fs::exists(home / "config.toml");
  const HfExportOptions hf = hf_options(options, state, in_run ? home : fs::path());
  if (in_run && fs::exists(home / "tokenizer")) {
    add_tokenizer(home / "tokenizer", staging.temporary());
  } else if (state.is_text) {
    write_byte_tokenizer(staging.temporary());
  }
  std::vector<TensorView> weights;
  for (const std::string& name : checkpoint.weights.names()) {
    weights.push_back(checkpoint.weights.tensor(name));
  }
  export_hf(staging.temporary(), state.model, weights, hf);
  staging.commit();
  return path;
}

}  // namespace quern
