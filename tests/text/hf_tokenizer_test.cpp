// Hugging Face's tokenizer.json: the ids of the `tokenizers` library (fixtures in
// tests/fixtures/tokenizers, their scripts make_tokenizers.py and make_byte_fallback.py in
// tests/interop), and refused files.
#include "text/hf_tokenizer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "support/files.h"

namespace quern {
namespace {

using namespace testing_support;
using Json = nlohmann::json;
namespace fs = std::filesystem;

const fs::path kFolder = testing_support::source_folder() / "tests/fixtures/tokenizers";

Json read_json(const fs::path& path) {
  std::ifstream in(path);
  return Json::parse(in);
}

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

class HfTokenizer : public ::testing::TestWithParam<const char*> {
 protected:
  BpeTokenizer tokenizer_ = read_hf_tokenizer(kFolder / cat(GetParam(), ".json"));
  Json vectors_ = read_json(kFolder / cat(GetParam(), ".vectors.json"));
};

TEST_P(HfTokenizer, GivesTheLibrarysIds) {
  ASSERT_GT(vectors_.size(), 40u);
  for (const Json& vector : vectors_) {
    const std::string text = vector["text"];
    EXPECT_EQ(tokenizer_.encode(text), vector["ids"].get<std::vector<int32_t>>()) << text;
  }
}

// Decoding is exact except for changes by the normalizer.
TEST_P(HfTokenizer, DecodesToTheText) {
  const bool normalizes = GetParam() == std::string("qwen2");
  for (const Json& vector : vectors_) {
    const std::string text = vector["text"];
    const auto ids = vector["ids"].get<std::vector<int32_t>>();
    const std::string decoded = tokenizer_.decode(ids, false);
    if (!normalizes) {
      EXPECT_EQ(decoded, text);
    }
    EXPECT_EQ(tokenizer_.encode(decoded), ids) << text;
  }
}

TEST_P(HfTokenizer, BytesThatAreNoTextAreNotLost) {
  int broken = 0;
  for (const Json& vector : vectors_) {
    if (!vector.contains("bytes")) continue;
    ++broken;
    const std::string bytes = from_hex(vector["bytes"]);
    EXPECT_EQ(tokenizer_.decode(tokenizer_.encode(bytes)), bytes) << vector["bytes"];
  }
  EXPECT_EQ(broken, 7);
}

// A cache does not change the tokens, and texts encoded in turn share it.
TEST_P(HfTokenizer, TheCacheChangesNothing) {
  BpeCache cache;
  for (int round = 0; round < 2; ++round) {
    for (const Json& vector : vectors_) {
      std::vector<int32_t> tokens{-7};
      tokenizer_.encode(vector["text"].get<std::string>(), tokens, cache);
      ASSERT_EQ(tokens.front(), -7);
      tokens.erase(tokens.begin());
      EXPECT_EQ(tokens, vector["ids"].get<std::vector<int32_t>>());
    }
  }
}

TEST_P(HfTokenizer, SpecialTokensCanBeLeftOut) {
  const int32_t end = tokenizer_.find("<|endoftext|>"), tool = tokenizer_.find("<tool>");
  ASSERT_EQ(end, 900);
  ASSERT_EQ(tool, 902);
  const std::vector<int32_t> tokens = tokenizer_.encode("a<|endoftext|><tool>b");
  EXPECT_EQ(tokenizer_.decode(tokens, false), "a<|endoftext|><tool>b");
  EXPECT_EQ(tokenizer_.decode(tokens), "a<tool>b");
  EXPECT_EQ(tokenizer_.vocabulary(), 904);
  EXPECT_EQ(tokenizer_.find("no such token"), -1);
  expect_error(
      [&] {
        tokenizer_.decode(std::vector<int32_t>{5, 904});
      },
      {"token 1 is 904", "expected 0 to 903"});
}

INSTANTIATE_TEST_SUITE_P(Kinds, HfTokenizer,
                         ::testing::Values("gpt2", "llama3", "qwen2", "smollm2"));

// SentencePiece's BPE with byte fallback, in its common forms (make_byte_fallback.py).
class ByteFallback : public ::testing::TestWithParam<const char*> {
 protected:
  const fs::path folder_ = kFolder / "byte_fallback";
  BpeTokenizer tokenizer_ = read_hf_tokenizer(folder_ / cat(GetParam(), ".json"));
  std::vector<std::string> texts_ = read_json(folder_ / "texts.json");
};

TEST_P(ByteFallback, GivesTheLibrarysIds) {
  const Json ids = read_json(folder_ / cat(GetParam(), ".ids.json"));
  ASSERT_GT(texts_.size(), 200u);
  ASSERT_EQ(texts_.size(), ids.size());
  BpeCache cache;
  for (int round = 0; round < 2; ++round) {  // the second round uses the cache
    for (size_t i = 0; i < ids.size(); ++i) {
      std::vector<int32_t> tokens;
      tokenizer_.encode(texts_[i], tokens, cache);
      EXPECT_EQ(tokens, ids[i].get<std::vector<int32_t>>()) << texts_[i];
    }
  }
}

TEST_P(ByteFallback, DecodesToTheText) {
  const bool strips = GetParam() == std::string("phi3");  // spaces around special tokens
  for (const std::string& text : texts_) {
    if (text.find("\u2581") != std::string::npos || text.starts_with(' ')) continue;
    if (strips && (text.find("<") != std::string::npos || text.find("t t") != std::string::npos)) {
      continue;
    }
    if (text.find("</s>") != std::string::npos || text.find("<unk>") != std::string::npos) continue;
    EXPECT_EQ(tokenizer_.decode(tokenizer_.encode(text)), text);
  }
  for (const std::string text : {"\xFF", "ok \xC3\x28 no", "\xE4\xBB", "a\xED\xA0\x80 b"}) {
    EXPECT_EQ(tokenizer_.decode(tokenizer_.encode(text)), text);
  }
}

TEST_P(ByteFallback, KnowsTheTokensAroundAText) {
  const bool adds_begin = std::string("llama2 mistral").find(GetParam()) != std::string::npos;
  EXPECT_EQ(tokenizer_.begin_token(), adds_begin ? std::optional<int32_t>(1) : std::nullopt);
  EXPECT_EQ(tokenizer_.end_token(), 2);
  EXPECT_EQ(tokenizer_.find("</s>"), 2);
  EXPECT_EQ(tokenizer_.decode(std::vector{2}), "");
  EXPECT_EQ(tokenizer_.decode(std::vector{2}, false), "</s>");
}

INSTANTIATE_TEST_SUITE_P(Forms, ByteFallback,
                         ::testing::Values("llama2", "mistral", "gemma", "phi3", "metaspace_first",
                                           "metaspace_always", "metaspace_never"));

// One change to a valid file, and the expected error.
struct Malformed {
  const char* name;
  void (*change)(Json&);
  const char* found;
  const char* expected = "";
};

void PrintTo(const Malformed& malformed, std::ostream* out) {
  *out << malformed.name;
}

class MalformedTokenizer : public ::testing::TestWithParam<Malformed> {
 protected:
  static void expect_refused(const char* good) {
    const TemporaryFolder folder;
    Json json = read_json(kFolder / good);
    GetParam().change(json);
    const fs::path path = folder / "tokenizer.json";
    std::ofstream(path) << json.dump();
    expect_error([&] { read_hf_tokenizer(path); },
                 {"tokenizer.json: ", GetParam().found, GetParam().expected});
  }
};

using MalformedFallback = MalformedTokenizer;

TEST_P(MalformedTokenizer, IsRefusedByPlaceAndName) {
  expect_refused("llama3.json");
}

TEST_P(MalformedFallback, IsRefusedByPlaceAndName) {
  expect_refused("byte_fallback/metaspace_first.json");
}

INSTANTIATE_TEST_SUITE_P(
    Forms, MalformedFallback,
    ::testing::Values(
        Malformed{"NoByte", [](Json& j) { j["model"]["vocab"].erase("<0x41>"); },
                  "no token for byte 65 alone", "byte fallback"},
        Malformed{"Normalizer",
                  [](Json& j) {
                    j["normalizer"] = {{"type", "NFKC"}};
                  },
                  "normalizer.type is \"NFKC\"", "Prepend, Replace"},
        Malformed{"OtherMark", [](Json& j) { j["pre_tokenizer"]["replacement"] = "_"; },
                  "pre_tokenizer.replacement is \"_\"", "\u2581"},
        Malformed{"Scheme", [](Json& j) { j["pre_tokenizer"]["prepend_scheme"] = "last"; },
                  "pre_tokenizer.prepend_scheme is \"last\"", "always, first or never"},
        Malformed{"ByteLevel", [](Json& j) { j["pre_tokenizer"]["type"] = "ByteLevel"; },
                  "pre_tokenizer.type is \"ByteLevel\"", "Metaspace"},
        Malformed{"Decoder", [](Json& j) { j["decoder"]["type"] = "ByteLevel"; },
                  "decoder.type is \"ByteLevel\"", "Sequence"},
        Malformed{"Strip", [](Json& j) { j["decoder"]["decoders"][3]["start"] = 2; },
                  "decoder.decoders[3].start is 2"},
        Malformed{"Step", [](Json& j) { j["decoder"]["decoders"][2]["type"] = "CTC"; },
                  "decoder.decoders[2].type is \"CTC\""}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Files, MalformedTokenizer,
    ::testing::Values(
        Malformed{"NoModel", [](Json& j) { j.erase("model"); }, "has no model"},
        Malformed{"WordPiece", [](Json& j) { j["model"]["type"] = "WordPiece"; },
                  "model.type is \"WordPiece\"", "BPE"},
        Malformed{"ByteFallback", [](Json& j) { j["model"]["byte_fallback"] = true; },
                  "pre_tokenizer.pretokenizers[0].type is \"Split\"", "Metaspace"},
        Malformed{"Dropout", [](Json& j) { j["model"]["dropout"] = 0.1; }, "model.dropout is 0.1"},
        Malformed{"Suffix", [](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; },
                  "model.end_of_word_suffix is \"</w>\""},
        Malformed{"TextAsId", [](Json& j) { j["model"]["vocab"]["a"] = "7"; },
                  "model.vocab[\"a\"] is \"7\"", "a token id"},
        Malformed{"HugeId", [](Json& j) { j["model"]["vocab"]["a"] = 2000000000; },
                  "model.vocab[\"a\"] is 2000000000", "below"},
        Malformed{"IdTwice", [](Json& j) { j["model"]["vocab"]["a"] = j["model"]["vocab"]["b"]; },
                  "model.vocab[\"b\"] is 65", "that of 'a'"},
        Malformed{"NoByte", [](Json& j) { j["model"]["vocab"].erase("\u0100"); },
                  "no token for byte 0 alone"},
        Malformed{"NotTheAlphabet", [](Json& j) { j["model"]["vocab"]["\u4eca"] = 950; },
                  "model.vocab: the token '\u4eca'", "stands for no byte"},
        Malformed{"MergeOfNothing", [](Json& j) { j["model"]["merges"][3] = "zq qz"; },
                  "model.merges[3] is \"zq qz\"", "has no 'zq'"},
        Malformed{"MergeOfThree", [](Json& j) { j["model"]["merges"][3] = "a b c"; },
                  "model.merges[3] is \"a b c\"", "two tokens"},
        Malformed{"MergeOfNumbers",
                  [](Json& j) {
                    j["model"]["merges"][0] = {1, 2};
                  },
                  "model.merges[0][0] is 1", "a string"},
        Malformed{"Normalizer",
                  [](Json& j) {
                    j["normalizer"] = Json::object({{"type", "Lowercase"}});
                  },
                  "normalizer.type is \"Lowercase\"", "NFC"},
        Malformed{"Metaspace",
                  [](Json& j) {
                    j["pre_tokenizer"] = Json::object({{"type", "Metaspace"}});
                  },
                  "pre_tokenizer.type is \"Metaspace\"", "ByteLevel"},
        Malformed{"Behavior",
                  [](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"; },
                  "pre_tokenizer.pretokenizers[0].behavior is \"Removed\""},
        Malformed{
            "Pattern",
            [](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(a|b"; },
            "the pattern (a|b is no regular expression", "parenthesis"},
        Malformed{"Decoder", [](Json& j) { j["decoder"]["type"] = "WordPiece"; },
                  "decoder.type is \"WordPiece\""},
        Malformed{"SingleWord", [](Json& j) { j["added_tokens"][0]["single_word"] = true; },
                  "added_tokens[0].single_word is true"},
        Malformed{"EmptyAdded", [](Json& j) { j["added_tokens"][0]["content"] = ""; },
                  "added_tokens[0].content is \"\""},
        Malformed{"HugeAddedId", [](Json& j) { j["added_tokens"][0]["id"] = 2147483647; },
                  "with id 2147483647", "expected 0 to "},
        Malformed{"NoByteLevel",
                  [](Json& j) {
                    j["pre_tokenizer"] = {{"type", "Digits"}, {"individual_digits", true}};
                  },
                  "pre_tokenizer has no ByteLevel step"},
        Malformed{"TwoByteLevels",
                  [](Json& j) {
                    Json& steps = j["pre_tokenizer"]["pretokenizers"];
                    steps.push_back(steps[1]);
                  },
                  "pre_tokenizer.pretokenizers[2].type is \"ByteLevel\"",
                  "no step behind ByteLevel"},
        Malformed{"ByteLevelFirst",
                  [](Json& j) {
                    Json& steps = j["pre_tokenizer"]["pretokenizers"];
                    std::swap(steps[0], steps[1]);
                  },
                  "pre_tokenizer.pretokenizers[1].type is \"Split\"", "no step behind ByteLevel"},
        Malformed{"NegativeId", [](Json& j) { j["added_tokens"][0]["id"] = -1; },
                  "added_tokens[0].id is -1"}),
    [](const auto& info) { return info.param.name; });

TEST(HfTokenizerFile, MissingAndCutFilesAreNamed) {
  const TemporaryFolder folder;
  std::ofstream(folder / "bare.json") << "{}";
  expect_error([&] { read_hf_tokenizer(folder / "bare.json"); },
               {"bare.json: has no model, expected a tokenizer.json of BPE"});
  expect_error([&] { read_hf_tokenizer(folder / "none.json"); }, {"none.json"});
  std::ofstream(folder / "cut.json") << R"({"model": {"type": "BPE", "vo)";
  expect_error([&] { read_hf_tokenizer(folder / "cut.json"); }, {"cut.json", "not valid JSON"});
}

}  // namespace
}  // namespace quern
