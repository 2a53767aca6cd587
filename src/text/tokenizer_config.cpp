#include "text/tokenizer_config.h"

#include <nlohmann/json.hpp>
#include <sstream>
#include <unordered_set>

#include "base/error.h"
#include "io/atomic_file.h"
#include "io/json_file.h"
#include "io/mapped_file.h"
#include "io/utf8.h"
#include "text/byte_alphabet.h"
#include "text/byte_tokenizer.h"
#include "text/space_mark.h"
#include "text/tokenizer_files.h"
#include "text/tokenizer_settings.h"

namespace quern {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

constexpr const char* kEndOfTextName = "<|endoftext|>";

Json added_token(const std::string& content) {
  return {{"content", content}, {"lstrip", false},      {"normalized", false},
          {"rstrip", false},    {"single_word", false}, {"special", true}};
}

void write(const fs::path& path, const Json& json) {
  write_file_atomically(path, json.dump(2) + "\n");
}

// `names` has the form {"bos_token": "<s>", ...}.
void write_both(const fs::path& folder, Json config, const Json& names) {
  const fs::path config_file = folder / "tokenizer_config.json";
  const fs::path map_file = folder / "special_tokens_map.json";
  if (!fs::exists(map_file)) write(map_file, names);
  if (!fs::exists(config_file)) {
    config.update(names);
    return write(config_file, config);
  }
  Json found = read_json_object(config_file);
  const Json before = found;
  if (names.contains("eos_token") && found.value("eos_token", Json()).is_null()) {
    found["eos_token"] = names["eos_token"];
  }
  // Without the flag, readers look into tokenizer.json.
  const bool flagless = !found.contains("add_bos_token") && config.contains("add_bos_token");
  if (flagless && !fs::exists(folder / "tokenizer.json")) {
    found["add_bos_token"] = config["add_bos_token"];
  }
  if (found != before) write(config_file, found);
}

// A tokenizer.json. `unknown`: the token of what byte fallback cannot spell; null: byte-level BPE.
std::string tokenizer_json(const Json& added, const Json& pre_tokenizer, const Json& decoder,
                           const Json& unknown, const Json& vocabulary, const Json& merges) {
  const bool fallback = !unknown.is_null();
  const Json json = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", added},
                     {"normalizer", nullptr},
                     {"pre_tokenizer", pre_tokenizer},
                     {"post_processor", nullptr},
                     {"decoder", decoder},
                     {"model",
                      {{"type", "BPE"},
                       {"dropout", nullptr},
                       {"unk_token", unknown},
                       {"continuing_subword_prefix", nullptr},
                       {"end_of_word_suffix", nullptr},
                       {"fuse_unk", fallback},
                       {"byte_fallback", fallback},
                       {"ignore_merges", false},
                       {"vocab", vocabulary},
                       {"merges", merges}}}};
  return json.dump(1) + "\n";
}

std::string byte_level_json(const Json& added, const Json& vocabulary, const Json& merges,
                            bool gpt2_pattern, bool prefix_space) {
  const Json bytes = {{"type", "ByteLevel"},
                      {"add_prefix_space", prefix_space},
                      {"trim_offsets", false},
                      {"use_regex", gpt2_pattern}};
  return tokenizer_json(added, bytes, bytes, nullptr, vocabulary, merges);
}

void check_is_gpt2(const fs::path& folder, const TokenizerSettings& settings) {
  const std::string& named = settings.tokenizer_class;
  QUERN_CHECK(named.empty() || named.starts_with("GPT2Tokenizer"), settings.file,
              ": tokenizer_class is ", named, ", expected GPT2Tokenizer beside ", kVocabularyFile,
              " and ", kMergesFile, "; transformers' save_pretrained writes a tokenizer.json");
  const fs::path config = folder / "config.json", more = folder / "added_tokens.json";
  QUERN_CHECK(!fs::exists(more) || !settings.added.empty(), more.string(),
              ": found without added_tokens_decoder in tokenizer_config.json, expected both");
  if (!named.empty() || !fs::exists(config)) return;
  const JsonFile file(config);
  const JsonPlace type = file.root().at("model_type");
  if (type.text() != "gpt2") {
    type.refuse(
        cat("gpt2 beside ", kVocabularyFile, " and ", kMergesFile, " without a tokenizer.json"));
  }
}

// merges.txt: two tokens of the vocabulary a line, after an optional version line.
Json read_merges(const fs::path& path, const nlohmann::json& vocabulary) {
  const MappedFile file = MappedFile::open(path);
  std::istringstream lines(std::string(file.text()));
  Json merges = Json::array();
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty() || (number == 1 && line.starts_with("#version"))) continue;
    QUERN_CHECK(valid_utf8_prefix(line) == line.size(), path.string(), ": line ", number,
                " has a byte that is no UTF-8, expected two tokens");
    const size_t space = line.find(' ');
    QUERN_CHECK(space != std::string::npos && line.find(' ', space + 1) == std::string::npos,
                path.string(), ": line ", number, " is '", line,
                "', expected two tokens with a space between them");
    const std::string left = line.substr(0, space), right = line.substr(space + 1);
    for (const std::string& token : {left, right, left + right}) {
      QUERN_CHECK(vocabulary.contains(token), path.string(), ": line ", number, " is '", line,
                  "', expected tokens of ", kVocabularyFile, ", which has no '", token, "'");
    }
    merges.push_back({left, right});
  }
  return merges;
}

// SentencePiece merges the neighbours whose concatenation was learnt first. Here every split of a
// piece into two known pieces is a merge; the merges follow the order of the pieces.
Json merges_of(const std::vector<std::string>& pieces) {
  const std::unordered_set<std::string_view> known(pieces.begin(), pieces.end());
  Json merges = Json::array();
  for (const std::string_view piece : pieces) {
    for (size_t cut = piece.size(); cut-- > 1;) {  // the longest left part first
      if (continues_utf8(piece[cut])) continue;
      const std::string_view left = piece.substr(0, cut), right = piece.substr(cut);
      if (known.contains(left) && known.contains(right)) merges.push_back({left, right});
    }
  }
  return merges;
}

}  // namespace

void write_tokenizer_config(const fs::path& folder, const SentencePieceTokenizer& tokenizer) {
  const auto [unknown, begin, end] = tokenizer.special_pieces();
  Json names = Json::object(), decoder = Json::object();
  const auto add_name = [&](const char* key, int32_t id) {
    if (id >= 0) names[key] = tokenizer.piece(id);
  };
  add_name("bos_token", begin);
  add_name("eos_token", end);
  add_name("unk_token", unknown);
  for (int32_t id = 0; id < tokenizer.vocabulary(); ++id) {
    if (tokenizer.is_special(id)) decoder[std::to_string(id)] = added_token(tokenizer.piece(id));
  }
  // PreTrainedTokenizerFast reads tokenizer.json without the libraries that tokenizer.model needs.
  const bool has_json = fs::exists(folder / "tokenizer.json");
  const Json config = {{"tokenizer_class", has_json ? "PreTrainedTokenizerFast" : "LlamaTokenizer"},
                       {"legacy", false},
                       {"add_prefix_space", tokenizer.adds_prefix_space()},
                       {"add_bos_token", tokenizer.begin_token().has_value()},
                       {"add_eos_token", false},
                       {"clean_up_tokenization_spaces", false},
                       {"added_tokens_decoder", decoder}};
  write_both(folder, config, names);
}

void write_tokenizer_config(const fs::path& folder, const BpeTokenizer& tokenizer) {
  Json names = Json::object();
  const auto add_name = [&](const char* key, std::optional<int32_t> id) {
    if (id) names[key] = tokenizer.content(*id);
  };
  add_name("bos_token", tokenizer.begin_token());
  add_name("eos_token", tokenizer.end_token());
  const Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                       {"clean_up_tokenization_spaces", false}};
  write_both(folder, config, names);
}

std::string byte_tokenizer_json() {
  Json vocabulary = Json::object(), end = added_token(kEndOfTextName);
  const ByteAlphabet alphabet;
  for (int byte = 0; byte < kEndOfText; ++byte) vocabulary[alphabet.character(byte)] = byte;
  end["id"] = kEndOfText;
  return byte_level_json(Json::array({end}), vocabulary, Json::array(), false, false);
}

std::string sentencepiece_tokenizer_json(const SentencePieceTokenizer& tokenizer) {
  Json vocabulary = Json::object(), added = Json::array();
  std::vector<std::string> pieces;
  for (int32_t id = 0; id < tokenizer.vocabulary(); ++id) {
    const std::string piece = tokenizer.piece(id);
    vocabulary[piece] = id;
    if (tokenizer.is_special(id)) {
      added.push_back({{"id", id},
                       {"content", piece},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", true}});
    } else if (!tokenizer.is_byte(id)) {
      pieces.push_back(piece);
    }
  }
  const Json spaces = {
      {"type", "Replace"}, {"pattern", {{"String", kSpaceMark}}}, {"content", " "}};
  const Json decoders = {spaces, {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
  const Json metaspace = {{"type", "Metaspace"},
                          {"replacement", kSpaceMark},
                          {"prepend_scheme", "never"},
                          {"split", false}};
  return tokenizer_json(added, metaspace, {{"type", "Sequence"}, {"decoders", decoders}},
                        tokenizer.piece(tokenizer.special_pieces().unknown), vocabulary,
                        merges_of(pieces));
}

std::string gpt2_tokenizer_json(const fs::path& folder) {
  const TokenizerSettings settings = read_tokenizer_settings(folder);
  check_is_gpt2(folder, settings);
  const JsonFile file(folder / kVocabularyFile);
  const JsonPlace vocabulary = file.root();
  Json added = Json::array();
  bool has_end = false;
  for (const AddedToken& token : settings.added) {
    Json& json = added.emplace_back(added_token(token.content));
    json.update({{"id", token.id},
                 {"special", token.special},
                 {"normalized", token.normalized},
                 {"lstrip", token.lstrip},
                 {"rstrip", token.rstrip}});
    has_end = has_end || token.content == kEndOfTextName;
  }
  if (!has_end && vocabulary.has(kEndOfTextName)) {
    added.push_back(added_token(kEndOfTextName));
    added.back()["id"] = vocabulary.at(kEndOfTextName).id();
  }
  const Json merges = read_merges(folder / kMergesFile, vocabulary.json);
  return byte_level_json(added, vocabulary.json, merges, true, settings.add_prefix_space);
}

void write_byte_tokenizer(const fs::path& folder) {
  write_file_atomically(folder / "tokenizer.json", byte_tokenizer_json());
  const Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                       {"clean_up_tokenization_spaces", false},
                       {"split_special_tokens", true}};
  write_both(folder, config, {{"eos_token", kEndOfTextName}});
}

}  // namespace quern
