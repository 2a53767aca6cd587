#include "text/tokenizer_files.h"

#include <algorithm>

#include "base/error.h"
#include "io/atomic_file.h"
#include "io/checksum.h"
#include "io/folder.h"
#include "io/json_file.h"
#include "io/mapped_file.h"
#include "io/python_line.h"
#include "io/utf8.h"
#include "text/byte_tokenizer.h"
#include "text/hf_tokenizer.h"
#include "text/sentencepiece_tokenizer.h"
#include "text/tokenizer_config.h"
#include "text/tokenizer_settings.h"

namespace quern {

namespace fs = std::filesystem;

namespace {

// Files beside the defining file that transformers reads. A tokenizer.json beside a tokenizer.model
// that defines the tokenizer is the same tokenizer in another form.
constexpr const char* kCompanions[] = {"tokenizer.json",
                                       "tokenizer_config.json",
                                       "special_tokens_map.json",
                                       "added_tokens.json",
                                       "vocab.json",
                                       "merges.txt",
                                       "chat_template.jinja"};

// True for a SentencePiece BPE that was converted to a tokenizer.json, if all its added tokens are
// in the model or in tokenizer_config.json. transformers 5 writes new ones to tokenizer.json alone.
bool is_made_from_sentencepiece(const fs::path& json_file) {
  const JsonFile file(json_file);
  const JsonPlace root = file.root(), model = root.at("model");
  if (!model.flag("byte_fallback")) return false;
  if (!root.has("added_tokens")) return true;
  const auto known = read_tokenizer_settings(json_file.parent_path()).added;
  const JsonPlace vocabulary = model.at("vocab");
  if (!vocabulary.json.is_object()) return true;  // not a BPE
  return std::ranges::all_of(root.at("added_tokens").list(), [&](const JsonPlace& token) {
    const std::string& content = token.at("content").text();
    return vocabulary.has(content.c_str()) ||
           std::ranges::find(known, content, &AddedToken::content) != known.end();
  });
}

// The file that defines the tokenizer of a folder; empty: none.
fs::path defining_file(const fs::path& folder) {
  const fs::path model = folder / "tokenizer.model", json = folder / "tokenizer.json";
  if (fs::exists(json) && !(fs::exists(model) && is_made_from_sentencepiece(json))) return json;
  if (fs::exists(model)) return model;
  const fs::path vocabulary = folder / kVocabularyFile;
  if (fs::exists(vocabulary) && fs::exists(folder / kMergesFile)) return vocabulary;
  if (fs::is_directory(folder / "tokenizer")) return defining_file(folder / "tokenizer");
  return {};
}

// A link is copied as its target's content, so the target must be the model's: a file of the same
// folder or, as in the Hub's cache, of ../../blobs.
void check_companion(const fs::path& companion) {
  if (!fs::is_symlink(companion)) return;
  std::error_code error;
  const fs::path target = fs::canonical(companion, error);
  const fs::path folder = fs::weakly_canonical(companion.parent_path());
  const fs::path home = target.parent_path();
  QUERN_CHECK(!error && (home == folder || home == folder.parent_path().parent_path() / "blobs"),
              companion.string(), ": is a link to ", fs::read_symlink(companion).string(),
              ", expected a file of the same folder");
}

// A SentencePiece model may have any name.
bool is_json(const fs::path& path, std::string_view text) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  const size_t first = text.find_first_not_of(" \n\r\t");
  if (first == std::string_view::npos) return path.extension() == ".json";
  return text[first] == '{' || text[first] == '[';
}

std::string hash_of(std::string_view text) {
  if (text == byte_tokenizer_json()) return ByteTokenizer().hash();
  return checksum_of(text);
}

// The settings of a tokenizer.model. transformers 5 leaves add_bos_token out: the template of the
// tokenizer.json has the begin token.
TokenizerSettings sentencepiece_settings(const fs::path& folder) {
  TokenizerSettings settings = read_tokenizer_settings(folder);
  const fs::path json = folder / "tokenizer.json";
  if (settings.add_begin || !settings.found || !fs::exists(json)) return settings;
  const JsonFile file(json);
  const JsonPlace root = file.root();
  if (root.has("post_processor")) {
    settings.add_begin = read_begin_token(root.at("post_processor")).has_value();
  }
  return settings;
}

// An older folder's added_tokens.json has ids without matching rules.
void check_added_tokens(const fs::path& path, const SentencePieceTokenizer& tokenizer) {
  if (!fs::exists(path)) return;
  const JsonFile file(path);
  for (const auto& [content, id] : file.root().json.items()) {
    QUERN_CHECK(id == nlohmann::json(tokenizer.find(content)), path.string(), ": has '", content,
                "' with id ", id.dump(),
                ", expected it in tokenizer.model or in added_tokens_decoder of "
                "tokenizer_config.json, which newer versions of transformers write");
  }
}

std::shared_ptr<const SentencePieceTokenizer> open_sentencepiece(const fs::path& file) {
  const MappedFile mapped = MappedFile::open(file);
  const fs::path folder = file.parent_path();
  const TokenizerSettings settings = sentencepiece_settings(folder);
  std::shared_ptr<const SentencePieceTokenizer> tokenizer;
  try {
    tokenizer = std::make_shared<SentencePieceTokenizer>(std::string(mapped.text()), settings);
  } catch (const Error& error) {
    fail(cat(file.string(), ": ", error.what()));
  }
  if (settings.added.empty()) check_added_tokens(folder / "added_tokens.json", *tokenizer);
  return tokenizer;
}

}  // namespace

fs::path tokenizer_file(const fs::path& path) {
  QUERN_CHECK(fs::exists(path), path.string(),
              ": no such tokenizer; expected \"bytes\", a tokenizer.model, a tokenizer.json or a "
              "folder with one",
              hub_hint(path.string(), HubKind::model));
  if (!fs::is_directory(path)) return path;
  const fs::path file = defining_file(path);
  QUERN_CHECK(!file.empty(), path.string(),
              ": has no tokenizer: neither tokenizer.model nor tokenizer.json, nor vocab.json with "
              "merges.txt");
  return file;
}

std::shared_ptr<const Tokenizer> open_tokenizer(const fs::path& path) {
  if (path == "bytes") return std::make_shared<ByteTokenizer>();
  const fs::path file = tokenizer_file(path);
  const MappedFile mapped = MappedFile::open(file);
  if (mapped.text() == byte_tokenizer_json()) return std::make_shared<ByteTokenizer>();
  if (is_json(file, mapped.text())) return std::make_shared<BpeTokenizer>(read_hf_tokenizer(file));
  return open_sentencepiece(file);
}

bool has_tokenizer(const fs::path& folder) {
  return !defining_file(folder).empty();
}

std::string tokenizer_hash(const fs::path& path) {
  if (path == "bytes") return path;
  const fs::path file = tokenizer_file(path);
  if (file.filename() == kVocabularyFile) return hash_of(gpt2_tokenizer_json(file.parent_path()));
  return hash_of(MappedFile::open(file).text());
}

namespace {

void add_files(const Tokenizer& tokenizer, const fs::path& from, const fs::path& folder) {
  const fs::path file = tokenizer_file(from);
  const bool bpe = tokenizer.kind() == "bpe";
  if (file.filename() == kVocabularyFile) {
    write_file_atomically(folder / "tokenizer.json", gpt2_tokenizer_json(file.parent_path()));
  } else {
    copy_file_atomically(file, folder / (bpe ? "tokenizer.json" : "tokenizer.model"));
  }
  const bool defines = defining_file(file.parent_path()) == file;
  for (const char* name : kCompanions) {
    const fs::path companion = file.parent_path() / name;
    // Beside a file that was named itself, this can be another tokenizer.
    if (!defines && companion.filename() == "tokenizer.json") continue;
    if (fs::exists(companion) && !fs::exists(folder / name)) {
      check_companion(companion);
      copy_file_atomically(companion, folder / name);
    }
  }
  if (bpe) {
    write_tokenizer_config(folder, dynamic_cast<const BpeTokenizer&>(tokenizer));
  } else {
    write_tokenizer_config(folder, dynamic_cast<const SentencePieceTokenizer&>(tokenizer));
  }
}

}  // namespace

void copy_tokenizer(const fs::path& from, const fs::path& to) {
  const auto tokenizer = open_tokenizer(from);
  if (tokenizer->kind() == "bytes") return;
  AtomicFolder staging(to, "tokenizer");
  add_files(*tokenizer, from, staging.temporary());
  staging.commit();
}

void add_tokenizer(const fs::path& from, const fs::path& folder) {
  const auto tokenizer = open_tokenizer(from);
  if (tokenizer->kind() != "bytes") add_files(*tokenizer, from, folder);
}

std::shared_ptr<const Tokenizer> write_sentencepiece(const fs::path& to, const std::string& model) {
  create_folder(to);
  write_file_atomically(to / "tokenizer.model", model);
  const auto tokenizer = open_sentencepiece(to / "tokenizer.model");
  write_file_atomically(to / "tokenizer.json", sentencepiece_tokenizer_json(*tokenizer));
  write_tokenizer_config(to, *tokenizer);
  return tokenizer;
}

}  // namespace quern
