#include "train/run_tokenizer.h"

#include "base/error.h"
#include "data/byte_tokenizer.h"
#include "io/tokenizer_files.h"

namespace quern {

namespace fs = std::filesystem;

namespace {

// The run that a run folder or a checkpoint in one belongs to; other folders are their own.
fs::path run_of(const fs::path& path) {
  if (!fs::exists(path / "manifest.json")) return path;
  return fs::absolute(path).lexically_normal().parent_path().parent_path();
}

// Beside the token files, which may be given as a folder, a file or a pattern.
fs::path beside_data(const fs::path& data) {
  return (fs::is_directory(data) ? data : data.parent_path()) / "tokenizer";
}

std::vector<fs::path> find_paths(const Config& config, bool is_text) {
  std::vector<fs::path> paths;
  const auto add_if_there = [&](const fs::path& folder) {
    if (fs::is_directory(folder) && has_tokenizer(folder)) paths.push_back(folder);
  };
  if (!config.run.resume.empty()) add_if_there(run_of(config.run.resume) / "tokenizer");
  if (!config.data.tokenizer.empty()) paths.emplace_back(config.data.tokenizer);
  if (!is_text) add_if_there(beside_data(config.data.train));
  if (!config.model.from.empty()) add_if_there(run_of(config.model.from));
  if (paths.empty() && is_text) paths.emplace_back("bytes");
  return paths;
}

}  // namespace

RunTokenizer find_run_tokenizer(const Config& config, bool is_text) {
  const std::vector<fs::path> paths = find_paths(config, is_text);
  if (paths.empty()) return {};
  const RunTokenizer found{paths[0], open_tokenizer(paths[0])};
  for (const fs::path& path : paths) {
    const std::string hash = tokenizer_hash(path);
    QUERN_CHECK(hash == found.tokenizer->hash(), "two tokenizers for one run: ", path.string(),
                " has hash ", hash, ", ", found.path.string(), " has ", found.tokenizer->hash());
  }
  QUERN_CHECK(!is_text || found.tokenizer->kind() == "bytes", "data.train: ", config.data.train,
              " is text, and training reads text as bytes alone, but the tokenizer is ",
              found.path.string(), "; encode the text first: quern data prepare ",
              config.data.train, " --tokenizer ", found.path.string(), " --out FOLDER");
  return found;
}

std::shared_ptr<const Tokenizer> saved_tokenizer(const fs::path& checkpoint,
                                                 const TrainState& state) {
  if (state.is_text) return std::make_shared<ByteTokenizer>();
  const fs::path folder = run_of(checkpoint) / "tokenizer";
  if (!fs::is_directory(folder)) return nullptr;
  auto tokenizer = open_tokenizer(folder);
  QUERN_CHECK(state.tokenizer.empty() || tokenizer->hash() == state.tokenizer, folder.string(),
              ": is not the tokenizer that ", checkpoint.string(),
              " was trained with: its hash is ", tokenizer->hash(), ", expected ", state.tokenizer);
  return tokenizer;
}

}  // namespace quern
