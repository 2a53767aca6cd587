#include "text/hf_tokenizer.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "io/checksum.h"
#include "io/json_file.h"
#include "io/mapped_file.h"
#include "text/byte_alphabet.h"
#include "text/space_mark.h"
#include "text/tokenizer_config.h"
#include "text/tokenizer_settings.h"

namespace quern {

namespace fs = std::filesystem;
using Place = JsonPlace;

namespace {

void expect(const Place& place, std::string_view text) {
  if (place.text() != text) place.refuse(cat('"', text, '"'));
}

void read_normalizer(const Place& normalizer, BpeDefinition& definition) {
  const std::string& type = normalizer.at("type").text();
  const bool marks = definition.byte_fallback;
  if (type == "NFC") {
    definition.nfc = true;
  } else if (type == "Sequence") {
    for (const Place& one : normalizer.at("normalizers").list()) read_normalizer(one, definition);
  } else if (type == "Prepend" && marks) {
    expect(normalizer.at("prepend"), kSpaceMark);
    definition.prepend_mark = true;
  } else if (type == "Replace" && marks) {
    expect(normalizer.at("pattern").at("String"), " ");
    expect(normalizer.at("content"), kSpaceMark);
    definition.normalize_marks = true;
  } else {
    normalizer.at("type").refuse(marks ? "Prepend, Replace, NFC, a Sequence of them, or none"
                                       : "NFC, a Sequence of it, or no normalizer");
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

// The pre-tokenizer of a tokenizer with byte fallback.
void read_metaspace(const Place& step, BpeDefinition& definition) {
  using Prefix = BpeDefinition::Prefix;
  const std::string& type = step.at("type").text();
  // Gemma splits at spaces, but its normalizer has replaced them all.
  if (type == "Split" && definition.normalize_marks)
    return expect(step.at("pattern").at("String"), " ");
  if (type != "Metaspace") step.at("type").refuse("Metaspace, or no pre_tokenizer");
  expect(step.at("replacement"), kSpaceMark);
  const std::string scheme = step.has("prepend_scheme") ? step.at("prepend_scheme").text()
                             : step.flag("add_prefix_space", true) ? "always"
                                                                   : "never";
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    step.at("prepend_scheme").refuse("always, first or never");
  }
  definition.prefix = scheme == "always"  ? Prefix::always
                      : scheme == "first" ? Prefix::first
                                          : Prefix::never;
  definition.split_marks = step.flag("split", true);
}

// `bytes`: a ByteLevel step was read, which must be the last one.
void read_pre_tokenizer(const Place& step, BpeDefinition& definition, bool& bytes) {
  const std::string& type = step.at("type").text();
  if (bytes) step.at("type").refuse("no step behind ByteLevel");
  if (type == "Sequence") {
    for (const Place& one : step.at("pretokenizers").list()) {
      read_pre_tokenizer(one, definition, bytes);
    }
  } else if (definition.byte_fallback) {
    read_metaspace(step, definition);
  } else if (type == "ByteLevel") {
    bytes = true;
    const bool prefix = step.flag("add_prefix_space", true);
    // The library would put the space before each piece of the earlier steps.
    QUERN_CHECK(!prefix || definition.patterns.empty(), step.path,
                ".add_prefix_space is true, expected false behind another step");
    definition.prefix = prefix ? BpeDefinition::Prefix::always : BpeDefinition::Prefix::never;
    if (step.flag("use_regex", true)) definition.patterns.push_back(kGpt2Pattern);
  } else if (type == "Digits") {
    definition.patterns.push_back(step.flag("individual_digits") ? "\\p{N}" : "\\p{N}+");
  } else if (type == "Split") {
    expect(step.at("behavior"), "Isolated");
    step.only_false("invert");
    const Place pattern = step.at("pattern");
    definition.patterns.push_back(pattern.has("String") ? escaped(pattern.at("String").text())
                                                        : pattern.at("Regex").text());
  } else {
    step.at("type").refuse("ByteLevel, Split, Digits or a Sequence of them");
  }
}

void read_decoder(const Place& decoder, BpeDefinition& definition) {
  if (!definition.byte_fallback) return expect(decoder.at("type"), "ByteLevel");
  expect(decoder.at("type"), "Sequence");
  for (const Place& step : decoder.at("decoders").list()) {
    const std::string& type = step.at("type").text();
    if (type == "Replace") {
      expect(step.at("pattern").at("String"), kSpaceMark);
      expect(step.at("content"), " ");
    } else if (type == "Strip") {
      expect(step.at("content"), " ");
      definition.strip_decoded = step.at("start").count(0, 1) == 1;
      step.at("stop").count(0, 0);
    } else if (type != "ByteFallback" && type != "Fuse") {
      step.at("type").refuse("Replace, ByteFallback, Fuse or Strip");
    }
  }
}

void read_vocabulary(const Place& model, BpeDefinition& definition,
                     std::unordered_map<std::string, int32_t>& ids) {
  const ByteAlphabet alphabet;
  const Place vocab = model.at("vocab");
  if (!vocab.json.is_object()) vocab.refuse("an object");
  // Ids may have gaps for added tokens, but no huge ones.
  const size_t most = 2 * vocab.json.size() + 65536;
  for (const auto& [token, number] : vocab.json.items()) {
    const Place entry{number, cat(vocab.path, "[\"", token, "\"]")};
    const auto id = static_cast<size_t>(entry.id());
    if (id >= most) entry.refuse(cat("a number below ", most));
    if (id >= definition.vocabulary.size()) definition.vocabulary.resize(id + 1);
    std::string& slot = definition.vocabulary[id];
    if (!slot.empty()) entry.refuse(cat("another number than that of '", slot, "'"));
    ids.emplace(token, static_cast<int32_t>(id));
    slot = token;
  }
  if (definition.byte_fallback) return;
  std::unordered_set<std::string_view> added;  // plain text, not in the alphabet
  for (const AddedToken& token : definition.added) added.insert(token.content);
  for (std::string& token : definition.vocabulary) {
    if (!added.contains(token)) token = alphabet.bytes(token, vocab.path);
  }
}

// Merges are "a b", or in newer files ["a", "b"].
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
      if (found == ids.end()) {
        merge.refuse(cat("tokens of the vocabulary, which has no '", token, "'"));
      }
      return found->second;
    };
    definition.merges.push_back({id(left), id(right), id(left + right)});
  }
}

void read_added(const Place& added, BpeDefinition& definition) {
  for (const Place& token : added.list()) {
    token.only_false("single_word");
    definition.added.push_back(read_added_token(token, token.at("id").id()));
  }
}

void check_model(const Place& model) {
  if (!model.json.is_object()) model.refuse("an object");
  const std::string type = model.has("type") ? model.at("type").text() : "BPE";
  if (type != "BPE") {
    model.at("type").refuse("\"BPE\": Quern reads BPE, and SentencePiece's own files");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (model.has(key) && !model.at(key).text().empty()) model.at(key).refuse("none");
  }
  if (model.has("dropout") && model.at("dropout").json != 0.0) model.at("dropout").refuse("none");
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
  if (const auto id = settings.generation_end) {
    const auto& tokens = definition.vocabulary;
    const bool known = *id < std::ssize(tokens) && !tokens[static_cast<size_t>(*id)].empty();
    const auto has_id = [&](const AddedToken& token) { return token.id == *id; };
    QUERN_CHECK(known || std::ranges::any_of(definition.added, has_id),
                fs::path(settings.file).replace_filename("generation_config.json").string(),
                ": eos_token_id is ", *id, ", which the vocabulary does not have");
    return id;
  }
  const auto end = find("<|endoftext|>");
  return end || !definition.byte_fallback ? end : find("</s>");
}

BpeTokenizer read_definition(const Place& root, const fs::path& folder, std::string hash) {
  QUERN_CHECK(root.has("model"), root.where(),
              ": has no model, expected a tokenizer.json of BPE, as Hugging Face's tokenizers "
              "writes it");
  BpeDefinition definition;
  definition.hash = std::move(hash);
  const Place model = root.at("model");
  check_model(model);
  definition.ignore_merges = model.flag("ignore_merges");
  definition.byte_fallback = model.flag("byte_fallback");
  if (root.has("added_tokens")) read_added(root.at("added_tokens"), definition);
  if (root.has("normalizer")) read_normalizer(root.at("normalizer"), definition);
  if (root.has("pre_tokenizer") || !definition.byte_fallback) {
    bool bytes = false;
    read_pre_tokenizer(root.at("pre_tokenizer"), definition, bytes);
    QUERN_CHECK(bytes || definition.byte_fallback, root.at("pre_tokenizer").path,
                " has no ByteLevel step, expected one at its end");
  }
  read_decoder(root.at("decoder"), definition);
  std::unordered_map<std::string, int32_t> ids;
  read_vocabulary(model, definition, ids);
  read_merges(model, ids, definition);
  if (root.has("post_processor")) {
    definition.begin_token = read_begin_token(root.at("post_processor"));
  }
  const TokenizerSettings settings = read_tokenizer_settings(folder);
  definition.split_special = settings.split_special;
  definition.end_token = find_end_token(settings, definition, ids);
  try {
    return BpeTokenizer(std::move(definition));
  } catch (const Error& error) {
    fail(cat(root.where(), ": ", error.what()));
  }
}

}  // namespace

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

BpeTokenizer read_hf_tokenizer(const fs::path& file) {
  const fs::path folder = file.parent_path();
  if (file.filename() == kVocabularyFile) {
    const std::string text = gpt2_tokenizer_json(folder);
    const auto json = nlohmann::json::parse(text);
    return read_definition({json, cat(file.string(), " and ", kMergesFile, ": ")}, folder,
                           checksum_of(text));
  }
  return read_definition(JsonFile(file).root(), folder, checksum_of(MappedFile::open(file).text()));
}

}  // namespace quern
