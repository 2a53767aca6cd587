#include "io/hf_tokenizer.h"

#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "io/json_file.h"

namespace quern {

namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

// A value of the file and where it is: "tokenizer.json: model.merges[3]".
struct Place {
  const Json& json;
  std::string path;

  bool has(const char* key) const { return json.contains(key) && !json[key].is_null(); }

  Place at(const char* key) const {
    QUERN_CHECK(json.is_object() && has(key), path, ": has no ", key);
    return {json[key], cat(path, path.ends_with(": ") ? "" : ".", key)};
  }
  Place at(size_t i) const { return {json[i], cat(path, "[", i, "]")}; }

  [[noreturn]] void refuse(const std::string& expected) const {
    std::string found = json.dump();
    if (found.size() > 80) found = found.substr(0, 80) + "...";
    fail(cat(path, " is ", found, ", expected ", expected));
  }

  const std::string& text() const {
    if (!json.is_string()) refuse("a string");
    return json.get_ref<const std::string&>();
  }
  int32_t id() const {
    const bool fits = json.is_number_unsigned() && json.get<uint64_t>() < uint64_t{1} << 31;
    if (!fits) refuse("a token's number from 0 to 2147483647");
    return json.get<int32_t>();
  }
  bool flag(const char* key, bool absent = false) const {
    if (!has(key)) return absent;
    if (!json[key].is_boolean()) at(key).refuse("true or false");
    return json[key].get<bool>();
  }
  std::vector<Place> list() const {
    if (!json.is_array()) refuse("a list");
    std::vector<Place> entries;
    for (size_t i = 0; i < json.size(); ++i) entries.push_back(at(i));
    return entries;
  }
  void only_false(const char* key) const {
    if (flag(key)) at(key).refuse("false: Quern does not compute this");
  }
};

// GPT-2's alphabet: printable bytes are their own character, the others U+0100 and on, in order.
class ByteAlphabet {
 public:
  ByteAlphabet() {
    uint32_t next = 0x100;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
      byte_of_[printable ? byte : next++] = static_cast<int>(byte);
    }
  }

  // The bytes that the characters of a token stand for; all are of one or two bytes in UTF-8.
  std::string bytes(const std::string& token, const std::string& path) const {
    std::string out;
    for (size_t i = 0; i < token.size(); ++i) {
      uint32_t point = static_cast<unsigned char>(token[i]);
      if (point >= 0x80) {
        const bool two = (point & 0xE0) == 0xC0 && i + 1 < token.size();
        point =
            two ? (point & 0x1F) << 6 | (static_cast<unsigned char>(token[++i]) & 0x3F) : 0xFFFF;
      }
      const auto found = byte_of_.find(point);
      QUERN_CHECK(found != byte_of_.end(), path, ": the token '", token,
                  "' has a character that stands for no byte, expected the alphabet of byte-level "
                  "BPE");
      out.push_back(static_cast<char>(found->second));
    }
    return out;
  }

 private:
  std::unordered_map<uint32_t, int> byte_of_;
};

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

}  // namespace

BpeTokenizer read_hf_tokenizer(const fs::path& file) {
  const Json json = read_sorted_json_object(file);
  const Place root{json, file.string() + ": "};
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
  try {
    return BpeTokenizer(std::move(definition));
  } catch (const Error& error) {
    fail(cat(file.string(), ": ", error.what()));
  }
}

}  // namespace quern
