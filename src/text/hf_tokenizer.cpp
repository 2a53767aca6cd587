#include "text/hf_tokenizer.h"

#include <string>

#include "base/error.h"
#include "io/checksum.h"
#include "io/json_place.h"
#include "io/mapped_file.h"
#include "text/byte_alphabet.h"
#include "text/tokenizer_settings.h"

namespace quern {

namespace fs = std::filesystem;
using Place = JsonPlace;

namespace {

void read_normalizer(const Place& normalizer, BpeDefinition& definition) {
  const std::string& type = normalizer.at("type").text();
  if (type == "NFC") {
    definition.nfc = true;
  } else if (type == "Sequence") {
    for (const Place& one : normalizer.at("normalizers").list()) read_normalizer(one, definition);
  } else {
    normalizer.at("type").refuse("NFC, a Sequence of it, or no normalizer");
  }
}

std::string escaped(const std::string& literal) {
  std::string pattern;
  for (const char c : literal) {
    const bool word =
        std::isalnum(static_cast<unsigned char>(c)) || static_cast<signed char>(c) < 0;
    if (!word) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

void read_pre_tokenizer(const Place& step, BpeDefinition& definition) {
  const std::string& type = step.at("type").text();
  if (type == "Sequence") {
    for (const Place& one : step.at("pretokenizers").list()) read_pre_tokenizer(one, definition);
  } else if (type == "ByteLevel") {
    definition.add_prefix_space = step.flag("add_prefix_space", true);
    if (step.flag("use_regex", true)) definition.patterns.push_back(kGpt2Pattern);
  } else if (type == "Digits") {
    definition.patterns.push_back(step.flag("individual_digits") ? "\\p{N}" : "\\p{N}+");
  } else if (type == "Split") {
    if (step.at("behavior").text() != "Isolated") step.at("behavior").refuse("\"Isolated\"");
    step.only_false("invert");
    const Place pattern = step.at("pattern");
    definition.patterns.push_back(pattern.has("String") ? escaped(pattern.at("String").text())
                                                        : pattern.at("Regex").text());
  } else {
    step.at("type").refuse("ByteLevel, Split, Digits or a Sequence of them");
  }
}

void read_vocabulary(const Place& model, BpeDefinition& definition,
                     std::unordered_map<std::string, int32_t>& ids) {
  const ByteAlphabet alphabet;
  const Place vocab = model.at("vocab");
  if (!vocab.json.is_object()) vocab.refuse("an object");
  // Numbers may have gaps where added tokens lie, and no larger ones.
  const size_t most = 2 * vocab.json.size() + 65536;
  for (const auto& [token, number] : vocab.json.items()) {
    const Place entry{number, cat(vocab.path, "[\"", token, "\"]")};
    const auto id = static_cast<size_t>(entry.id());
    if (id >= most) entry.refuse(cat("a number below ", most));
    if (id >= definition.vocabulary.size()) definition.vocabulary.resize(id + 1);
    std::string& slot = definition.vocabulary[id];
    QUERN_CHECK(slot.empty(), entry.path, " is ", id, ", which another token has too");
    ids.emplace(token, static_cast<int32_t>(id));
    slot = token;
  }
  for (std::string& token : definition.vocabulary) {
    const bool added = std::any_of(
        definition.added.begin(), definition.added.end(),
        [&](const AddedToken& a) { return a.content == token; });  // in words, not in the alphabet
    if (!added) token = alphabet.bytes(token, vocab.path);
  }
}

// "a b", or in newer files ["a", "b"].
void read_merges(const Place& model, const std::unordered_map<std::string, int32_t>& ids,
                 BpeDefinition& definition) {
  for (const Place& merge : model.at("merges").list()) {
    std::string left, right;
    if (merge.json.is_array() && merge.json.size() == 2) {
      left = merge.at(size_t{0}).text();
      right = merge.at(size_t{1}).text();
    } else {
      const std::string& both = merge.text();
      const size_t space = both.find(' ');
      if (space == std::string::npos || both.find(' ', space + 1) != std::string::npos) {
        merge.refuse("two tokens with a space between them");
      }
      left = both.substr(0, space);
      right = both.substr(space + 1);
    }
    const auto id = [&](const std::string& token) {
      const auto found = ids.find(token);
      QUERN_CHECK(found != ids.end(), merge.path, " needs the token '", token,
                  "', which the vocabulary does not have");
      return found->second;
    };
    definition.merges.push_back({id(left), id(right), id(left + right)});
  }
}

void read_added(const Place& added, BpeDefinition& definition) {
  for (const Place& token : added.list()) {
    for (const char* key : {"single_word", "lstrip", "rstrip"}) token.only_false(key);
    AddedToken one{token.at("id").id(), token.at("content").text(), token.flag("special"),
                   token.flag("normalized")};
    if (one.content.empty()) token.at("content").refuse("some text");
    definition.added.push_back(std::move(one));
  }
}

void check_model(const Place& model) {
  const std::string type = model.has("type") ? model.at("type").text() : "BPE";
  if (type != "BPE") {
    model.at("type").refuse("\"BPE\": Quern reads byte-level BPE, and SentencePiece's own files");
  }
  if (model.flag("byte_fallback")) {
    model.at("byte_fallback")
        .refuse("false: this is SentencePiece's BPE, whose tokenizer.model Quern reads");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (model.has(key) && !model.at(key).text().empty()) model.at(key).refuse("none");
  }
  if (model.has("dropout") && model.at("dropout").json != 0.0) model.at("dropout").refuse("none");
}

// The special token that a template puts before a text (Llama 3's <|begin_of_text|>).
std::optional<int32_t> read_begin_token(const Place& processor) {
  const std::string& type = processor.at("type").text();
  if (type == "Sequence") {
    for (const Place& one : processor.at("processors").list()) {
      if (const auto begin = read_begin_token(one)) return begin;
    }
  }
  if (type != "TemplateProcessing") return {};
  const std::vector<Place> single = processor.at("single").list();
  if (single.empty() || !single[0].has("SpecialToken")) return {};
  const std::string& name = single[0].at("SpecialToken").at("id").text();
  const std::vector<Place> ids = processor.at("special_tokens").at(name.c_str()).at("ids").list();
  if (ids.size() != 1) processor.at("special_tokens").refuse("one id for " + name);
  return ids[0].id();
}

std::optional<int32_t> find_end_token(const TokenizerSettings& settings,
                                      const BpeDefinition& definition,
                                      const std::unordered_map<std::string, int32_t>& ids) {
  const auto find = [&](const std::string& content) -> std::optional<int32_t> {
    for (const AddedToken& token : definition.added) {
      if (token.content == content) return token.id;
    }
    const auto found = ids.find(content);
    if (found == ids.end()) return {};
    return found->second;
  };
  if (settings.end) {
    const auto id = find(*settings.end);
    QUERN_CHECK(id, settings.file, ": eos_token is '", *settings.end,
                "', which the vocabulary does not have");
    return id;
  }
  if (settings.generation_end) return settings.generation_end;
  return find("<|endoftext|>");
}

}  // namespace

BpeTokenizer read_hf_tokenizer(const fs::path& file) {
  const JsonFile json(file);
  const Place root = json.root();
  QUERN_CHECK(root.has("model"), file.string(),
              ": has no model, expected a tokenizer.json of byte-level BPE, as Hugging Face's "
              "tokenizers writes it");
  BpeDefinition definition;
  const Place model = root.at("model");
  check_model(model);
  definition.ignore_merges = model.flag("ignore_merges");
  if (root.has("added_tokens")) read_added(root.at("added_tokens"), definition);
  if (root.has("normalizer")) read_normalizer(root.at("normalizer"), definition);
  read_pre_tokenizer(root.at("pre_tokenizer"), definition);
  const Place decoder = root.at("decoder").at("type");
  if (decoder.text() != "ByteLevel") decoder.refuse("\"ByteLevel\"");
  std::unordered_map<std::string, int32_t> ids;
  read_vocabulary(model, definition, ids);
  read_merges(model, ids, definition);
  if (root.has("post_processor")) {
    definition.begin_token = read_begin_token(root.at("post_processor"));
  }
  definition.end_token =
      find_end_token(read_tokenizer_settings(file.parent_path()), definition, ids);
  definition.hash = hex(digest_of(MappedFile::open(file).bytes()).xxh3);
  try {
    return BpeTokenizer(std::move(definition));
  } catch (const Error& error) {
    fail(cat(file.string(), ": ", error.what()));
  }
}

}  // namespace quern
