#include "run/run_tokenizer.h"

#include "base/error.h"
#include "run/run_folder.h"
#include "text/byte_tokenizer.h"
#include "text/tokenizer_files.h"

namespace quern {

namespace fs = std::filesystem;

namespace {

// Only a model's tokenizer is optional.
constexpr const char* kWithout = "; --tokenizer none continues without a tokenizer";

template <class F>
auto of_model(const fs::path& folder, const F& read) {
  try {
    return read(folder);
  } catch (const Error& error) {
    fail(cat(error.what(), kWithout));
  }
}

// The embedding may have more rows than the tokenizer has tokens, but not fewer.
void check_fits(const Tokenizer& tokenizer, const fs::path& folder, const ModelConfig& model) {
  const fs::path config = folder / "config.json";
  QUERN_CHECK(tokenizer.vocabulary() <= model.vocab_size, tokenizer_file(folder).string(), " has ",
              tokenizer.vocabulary(), " tokens, but ",
              (fs::exists(config) ? config : folder).string(), ": vocab_size is ", model.vocab_size,
              ", expected at least as many", kWithout);
}

// The tokenizer folder beside token files given as a folder, a file or a pattern.
fs::path beside_data(const fs::path& data) {
  return (fs::is_directory(data) ? data : data.parent_path()) / "tokenizer";
}

// The folder of model.from's tokenizer; empty if it has none.
fs::path model_folder(const Config& config) {
  if (config.model.from.empty()) return {};
  fs::path folder = run_of(config.model.from);
  return fs::is_directory(folder) && of_model(folder, has_tokenizer) ? folder : fs::path();
}

// A resumed run has a copy of its tokenizer, so the original may be gone.
std::vector<fs::path> find_paths(const Config& config, bool is_text, const fs::path& model) {
  std::vector<fs::path> paths;
  const auto add_if_there = [&](const fs::path& folder) {
    if (fs::is_directory(folder) && has_tokenizer(folder)) paths.push_back(folder);
  };
  if (!config.run.resume.empty()) add_if_there(run_of(config.run.resume) / "tokenizer");
  const fs::path given = config.data.tokenizer;
  std::error_code ignored;
  const bool replaced = !paths.empty() && given != "bytes" && !fs::exists(given, ignored);
  if (!given.empty() && !replaced) paths.push_back(given);
  if (!is_text) add_if_there(beside_data(config.data.train));
  if (!model.empty()) paths.push_back(model);
  if (paths.empty() && is_text) paths.emplace_back("bytes");
  return paths;
}

}  // namespace

RunTokenizer find_run_tokenizer(const Config& config, bool is_text) {
  if (config.data.tokenizer == "none") {
    QUERN_CHECK(!is_text, "tokenizer is none, but data.train, ", config.data.train,
                ", is text, expected token files");
    return {};
  }
  const fs::path model = model_folder(config);
  const std::vector<fs::path> paths = find_paths(config, is_text, model);
  if (paths.empty()) return {};
  const RunTokenizer found{
      paths[0], paths[0] == model ? of_model(model, open_tokenizer) : open_tokenizer(paths[0])};
  for (const fs::path& path : paths) {
    const std::string hash = tokenizer_hash(path);
    QUERN_CHECK(hash == found.tokenizer->hash(), "two tokenizers for one run: ", path.string(),
                " has hash ", hash, ", ", found.path.string(), " has ", found.tokenizer->hash());
  }
  if (!model.empty()) check_fits(*found.tokenizer, model, config.model);
  QUERN_CHECK(!is_text || found.tokenizer->kind() == "bytes", "data.train: ", config.data.train,
              " is text, and training reads text as bytes alone, but the tokenizer is ",
              found.path.string(), "; encode the text first: quern data prepare ",
              config.data.train, " --tokenizer ", found.path.string(), " --out FOLDER");
  return found;
}

std::shared_ptr<const Tokenizer> model_tokenizer(const fs::path& folder, const ModelConfig& model) {
  if (!of_model(folder, has_tokenizer)) return nullptr;
  auto tokenizer = of_model(folder, open_tokenizer);
  check_fits(*tokenizer, folder, model);
  return tokenizer;
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
