#include "text/tokenizer_settings.h"

#include "base/error.h"
#include "base/parse_number.h"

namespace quern {

namespace fs = std::filesystem;

namespace {

// A token is "</s>", or an object with its text and matching rules.
std::optional<std::string> read_token(const JsonPlace& root, const char* key) {
  if (!root.has(key)) return {};
  const JsonPlace token = root.at(key);
  if (token.json.is_object()) return token.at("content").text();
  return token.text();
}

// {"0": {"content": "<unk>", "special": true, ...}, ...}
std::vector<AddedToken> read_added(const JsonPlace& decoder) {
  if (!decoder.json.is_object()) decoder.refuse("an object");
  std::vector<AddedToken> added;
  for (const auto& [key, json] : decoder.json.items()) {
    const JsonPlace token{json, cat(decoder.path, "[\"", key, "\"]")};
    const std::optional<int32_t> id = parse_number<int32_t>(key);
    if (!(id >= 0)) {
      fail(cat(token.path, " is named \"", key, "\", expected a token id from 0 to ", INT32_MAX));
    }
    added.push_back(read_added_token(token, *id));
  }
  return added;
}

}  // namespace

AddedToken read_added_token(const JsonPlace& token, int32_t id) {
  AddedToken one{id,
                 token.at("content").text(),
                 token.flag("special"),
                 token.flag("normalized"),
                 token.flag("lstrip"),
                 token.flag("rstrip")};
  if (one.content.empty()) token.at("content").refuse("some text");
  return one;
}

TokenizerSettings read_tokenizer_settings(const fs::path& folder) {
  TokenizerSettings settings;
  const fs::path config = folder / "tokenizer_config.json";
  const fs::path generation = folder / "generation_config.json";
  settings.file = config.string();
  if (fs::exists(config)) {
    settings.found = true;
    const JsonFile file(config);
    const JsonPlace root = file.root();
    if (root.has("tokenizer_class")) settings.tokenizer_class = root.at("tokenizer_class").text();
    settings.begin = read_token(root, "bos_token");
    settings.end = read_token(root, "eos_token");
    if (root.has("add_bos_token")) settings.add_begin = root.flag("add_bos_token");
    settings.legacy = root.flag("legacy");
    settings.add_prefix_space = root.flag("add_prefix_space");
    settings.split_special = root.flag("split_special_tokens");
    if (root.has("added_tokens_decoder")) {
      settings.added = read_added(root.at("added_tokens_decoder"));
    }
  }
  if (fs::exists(generation)) {
    const JsonFile file(generation);
    const JsonPlace root = file.root();
    if (root.has("eos_token_id")) {
      const JsonPlace end = root.at("eos_token_id");
      const bool several = end.json.is_array();
      if (several && end.json.empty()) end.refuse("a token id or a list of them");
      settings.generation_end = several ? end.at(size_t{0}).id() : end.id();
    }
  }
  return settings;
}

}  // namespace quern
