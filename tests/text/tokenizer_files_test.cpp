#include "text/tokenizer_files.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <tuple>

#include "io/checksum.h"
#include "support/files.h"
#include "text/byte_tokenizer.h"
#include "text/tokenizer_config.h"

namespace quern {
namespace {

using namespace testing_support;
using Json = nlohmann::json;
namespace fs = std::filesystem;

const fs::path kFixtures = testing_support::source_folder() / "tests/fixtures/tokenizers";

class TokenizerFiles : public ::testing::Test {
 protected:
  fs::path put(const fs::path& fixture, const std::string& name) {
    return write_file(folder_ / name, read_file(kFixtures / fixture));
  }
  fs::path put_json(const std::string& name, const Json& json) {
    return write_file(folder_ / name, json.dump());
  }

  TemporaryFolder folder_;
};

std::string xxh3_of(const fs::path& file) {
  const std::string bytes = read_file(file);
  return hex(digest_of(std::as_bytes(std::span(bytes))).xxh3);
}

TEST_F(TokenizerFiles, AreToldApartByContent) {
  put("gpt2.json", "bpe/tokenizer.json");
  put("exact/tokenizer.model", "sp/tokenizer.model");
  put("exact/tokenizer.model", "odd.json");
  EXPECT_EQ(open_tokenizer("bytes")->kind(), "bytes");
  EXPECT_EQ(open_tokenizer(folder_ / "bpe")->kind(), "bpe");
  EXPECT_EQ(open_tokenizer(folder_ / "bpe/tokenizer.json")->kind(), "bpe");
  EXPECT_EQ(open_tokenizer(folder_ / "sp")->kind(), "sentencepiece");
  EXPECT_EQ(open_tokenizer(folder_ / "odd.json")->kind(), "sentencepiece");
  EXPECT_TRUE(has_tokenizer(folder_ / "sp"));
  EXPECT_FALSE(has_tokenizer(folder_.path()));
}

TEST_F(TokenizerFiles, ARunKeepsItsOwnInAFolder) {
  put("exact/tokenizer.model", "run/tokenizer/tokenizer.model");
  EXPECT_EQ(open_tokenizer(folder_ / "run")->kind(), "sentencepiece");
}

// Folders of Llama 2 have both; their tokenizer.json is the same tokenizer in another form.
TEST_F(TokenizerFiles, OfTwoTheModelsOwnFormIsRead) {
  put("exact/tokenizer.model", "tokenizer.model");
  put_json("tokenizer.json", {{"model", {{"type", "BPE"}, {"byte_fallback", true}}}});
  EXPECT_EQ(open_tokenizer(folder_.path())->kind(), "sentencepiece");
  put("gpt2.json", "tokenizer.json");
  EXPECT_EQ(open_tokenizer(folder_.path())->kind(), "bpe");
}

// transformers 5 writes no added_tokens_decoder: only the tokenizer.json has new tokens.
TEST_F(TokenizerFiles, TokensThatTheModelLacksAreReadFromTheTokenizerJson) {
  put("prefix/tokenizer.model", "tokenizer.model");
  Json json = Json::parse(read_file(kFixtures / "byte_fallback/llama2.json"));
  json["added_tokens"].push_back({{"id", 700}, {"content", "<|im_start|>"}, {"special", true}});
  put_json("tokenizer.json", json);
  put_json("tokenizer_config.json", {{"eos_token", "<|im_start|>"}});
  for (const char* path : {"", "copy"}) {
    const auto tokenizer = open_tokenizer(folder_ / path);
    EXPECT_EQ(tokenizer->kind(), "bpe");
    EXPECT_EQ(tokenizer->encode("<|im_start|>"), std::vector<int32_t>{700});
    EXPECT_EQ(tokenizer->end_token(), 700);
    EXPECT_EQ(tokenizer->begin_token(), 1);
    if (path == std::string()) copy_tokenizer(folder_.path(), folder_ / "copy");
  }
  const Json token = {{"content", "<|im_start|>"}, {"special", true}};
  put_json("tokenizer_config.json", {{"added_tokens_decoder", {{"700", token}}}});
  const auto with_decoder = open_tokenizer(folder_.path());
  EXPECT_EQ(with_decoder->kind(), "sentencepiece");
  EXPECT_EQ(with_decoder->encode("<|im_start|>"), std::vector<int32_t>{700});
}

TEST_F(TokenizerFiles, AFileNamedItselfIsCopiedWithoutAnotherTokenizer) {
  const fs::path model = put("prefix/tokenizer.model", "tokenizer.model");
  Json json = Json::parse(read_file(kFixtures / "byte_fallback/llama2.json"));
  json["added_tokens"].push_back({{"id", 700}, {"content", "<|im_start|>"}, {"special", true}});
  put_json("tokenizer.json", json);
  put_json("tokenizer_config.json", Json::object());
  copy_tokenizer(model, folder_ / "copy");
  EXPECT_EQ(tokenizer_hash(folder_ / "copy"), tokenizer_hash(model));
  const auto first = open_tokenizer(model), copy = open_tokenizer(folder_ / "copy");
  EXPECT_EQ(copy->kind(), "sentencepiece");
  EXPECT_EQ(copy->begin_token(), first->begin_token());
}

TEST_F(TokenizerFiles, TheHashIsOfTheDefiningFile) {
  const fs::path bpe = put("gpt2.json", "bpe/tokenizer.json");
  const fs::path sp = put("exact/tokenizer.model", "sp/tokenizer.model");
  for (const fs::path& file : {bpe, sp}) {
    const auto tokenizer = open_tokenizer(file.parent_path());
    EXPECT_EQ(tokenizer->hash(), xxh3_of(file));
    EXPECT_EQ(tokenizer_hash(file.parent_path()), xxh3_of(file));
    put_json(file.parent_path().filename().string() + "/tokenizer_config.json", Json::object());
    EXPECT_EQ(tokenizer_hash(file), xxh3_of(file));
  }
  EXPECT_EQ(tokenizer_hash("bytes"), "bytes");
}

TEST_F(TokenizerFiles, EndTokensComeFromWhatIsBeside) {
  put("llama3.json", "tokenizer.json");
  auto end = [&] { return open_tokenizer(folder_.path())->end_token(); };
  EXPECT_EQ(end(), 900);                                          // <|endoftext|>, by its name
  EXPECT_EQ(open_tokenizer(folder_.path())->begin_token(), 900);  // the template's
  put_json("generation_config.json", {{"eos_token_id", {901, 900}}});
  EXPECT_EQ(end(), 901);
  put_json("tokenizer_config.json", {{"eos_token", {{"content", "</tool>"}}}});
  EXPECT_EQ(end(), 903);
  put("gpt2.json", "tokenizer.json");
  EXPECT_EQ(open_tokenizer(folder_.path())->begin_token(), std::nullopt);
}

// transformers' split_special_tokens, which the export of a byte tokenizer sets.
TEST_F(TokenizerFiles, SplitSpecialTokensMakesTheirTextOrdinary) {
  put("gpt2.json", "bpe/tokenizer.json");
  put("exact/tokenizer.model", "sp/tokenizer.model");
  const std::pair<const char*, const char*> cases[] = {{"bpe", "<|endoftext|>"}, {"sp", "</s>"}};
  for (const auto& [folder, special] : cases) {
    EXPECT_EQ(open_tokenizer(folder_ / folder)->encode(special).size(), 1u) << folder;
    put_json(cat(folder, "/tokenizer_config.json"), {{"split_special_tokens", true}});
    const auto tokenizer = open_tokenizer(folder_ / folder);
    const auto ids = tokenizer->encode(special);
    EXPECT_GT(ids.size(), 1u) << folder;
    EXPECT_EQ(tokenizer->decode(ids), special);
  }
}

TEST_F(TokenizerFiles, SentencePieceAddsWhatTransformersWouldAdd) {
  put("prefix/tokenizer.model", "tokenizer.model");
  const auto begin = [&] { return open_tokenizer(folder_.path())->begin_token(); };
  EXPECT_EQ(begin(), std::nullopt);  // no setting
  put_json("tokenizer_config.json", {{"tokenizer_class", "LlamaTokenizer"}});
  EXPECT_EQ(begin(), 1);  // transformers' default
  put_json("tokenizer_config.json", {{"add_bos_token", false}});
  EXPECT_EQ(begin(), std::nullopt);
  // transformers 5 writes add_bos_token to the template alone.
  Json json = Json::parse(read_file(kFixtures / "byte_fallback/llama2.json"));
  put_json("tokenizer.json", json);
  EXPECT_EQ(begin(), std::nullopt);
  put_json("tokenizer_config.json", {{"tokenizer_class", "LlamaTokenizer"}});
  EXPECT_EQ(begin(), 1);
  json["post_processor"]["single"].erase(0);
  put_json("tokenizer.json", json);
  EXPECT_EQ(begin(), std::nullopt);
  EXPECT_EQ(open_tokenizer(folder_.path())->kind(), "sentencepiece");
}

TEST_F(TokenizerFiles, CopiesAreTheSameTokenizer) {
  for (const std::string name : {"exact/tokenizer.model", "gpt2.json"}) {
    const TemporaryFolder folder;
    const bool bpe = name == "gpt2.json";
    const std::string file = bpe ? "tokenizer.json" : "tokenizer.model";
    write_file(folder / ("from/" + file), read_file(kFixtures / name));
    write_file(folder / "from/generation_config.json", R"({"eos_token_id": 7})");
    write_file(folder / "from/chat_template.jinja", "{{ x }}");
    copy_tokenizer(folder / "from", folder / "to");
    const auto from = open_tokenizer(folder / "from"), to = open_tokenizer(folder / "to");
    EXPECT_EQ(read_file(folder / "from" / file), read_file(folder / "to" / file));
    EXPECT_EQ(read_file(folder / "to/chat_template.jinja"), "{{ x }}");
    EXPECT_FALSE(fs::exists(folder / "to/generation_config.json"));  // the model's file
    EXPECT_EQ(from->hash(), to->hash());
    EXPECT_EQ(from->end_token(), bpe ? 7 : 2);
    EXPECT_EQ(from->end_token(), to->end_token());
    EXPECT_EQ(from->begin_token(), to->begin_token());
    const Json config = Json::parse(read_file(folder / "to/tokenizer_config.json"));
    EXPECT_EQ(config["tokenizer_class"], bpe ? "PreTrainedTokenizerFast" : "LlamaTokenizer");
    EXPECT_TRUE(fs::exists(folder / "to/special_tokens_map.json"));
    expect_error([&] { copy_tokenizer(folder / "from", folder / "to"); }, {"to", "exists"});
  }
}

TEST_F(TokenizerFiles, ACopyKeepsTheConfigurationAndItsEndToken) {
  put("gpt2.json", "from/tokenizer.json");
  put_json("from/tokenizer_config.json", {{"model_max_length", 77}});
  put_json("from/generation_config.json", {{"eos_token_id", 901}});
  copy_tokenizer(folder_ / "from", folder_ / "to");
  const Json config = Json::parse(read_file(folder_ / "to/tokenizer_config.json"));
  EXPECT_EQ(config["model_max_length"], 77);
  EXPECT_EQ(config["eos_token"], "<|im_start|>");
  EXPECT_EQ(open_tokenizer(folder_ / "to")->end_token(), 901);
}

// generation_config.json may name any token: a line feed, here.
TEST_F(TokenizerFiles, ACopyNamesAnOrdinaryEndTokenAsItsFileDoes) {
  const std::tuple<const char*, int, const char*> cases[] = {
      {"gpt2.json", 198, "\u010A"}, {"byte_fallback/llama2.json", 13, "<0x0A>"}};
  for (const auto& [fixture, id, name] : cases) {
    put(fixture, cat(id, "/tokenizer.json"));
    put_json(cat(id, "/generation_config.json"), {{"eos_token_id", id}});
    const fs::path copy = folder_ / cat(id, "/copy");
    copy_tokenizer(folder_ / std::to_string(id), copy);
    EXPECT_EQ(Json::parse(read_file(copy / "special_tokens_map.json"))["eos_token"], name);
    EXPECT_EQ(open_tokenizer(copy)->end_token(), id);
  }
}

TEST_F(TokenizerFiles, AByteOrderMarkIsDropped) {
  const std::string json = read_file(kFixtures / "gpt2.json");
  write_file(folder_ / "tokenizer.json", "\xEF\xBB\xBF" + json);
  EXPECT_EQ(open_tokenizer(folder_.path())->encode("the mill"),
            open_tokenizer(kFixtures / "gpt2.json")->encode("the mill"));
}

// GPT-2's older form: the fixture's tokenizer.json split into two files.
TEST_F(TokenizerFiles, VocabularyAndMergesAreReadAsGpt2s) {
  Json json = Json::parse(read_file(kFixtures / "gpt2.json"));
  std::string merges = "#version: 0.2\n";
  for (const Json& merge : json["model"]["merges"]) {
    if (merge.is_string()) {
      merges += merge.get<std::string>() + "\n";
    } else {
      merges += merge[0].get<std::string>() + " " + merge[1].get<std::string>() + "\n";
    }
  }
  Json decoder = Json::object();
  for (const Json& token : json["added_tokens"]) {
    if (token["id"] == 900) json["model"]["vocab"]["<|endoftext|>"] = 900;
    if (token["id"] != 900) decoder[std::to_string(token["id"].get<int>())] = token;
  }
  const Json config = {{"tokenizer_class", "GPT2Tokenizer"}, {"added_tokens_decoder", decoder}};
  put_json("old/vocab.json", json["model"]["vocab"]);
  put_json("old/tokenizer_config.json", config);
  EXPECT_FALSE(has_tokenizer(folder_ / "old"));  // merges.txt is missing
  write_file(folder_ / "old/merges.txt", merges);
  const auto tokenizer = open_tokenizer(folder_ / "old");
  EXPECT_EQ(tokenizer->kind(), "bpe");
  EXPECT_EQ(tokenizer->vocabulary(), 904);
  EXPECT_EQ(tokenizer->end_token(), 900);
  for (const Json& vector : Json::parse(read_file(kFixtures / "gpt2.vectors.json"))) {
    const std::string text = vector["text"];
    EXPECT_EQ(tokenizer->encode(text), vector["ids"].get<std::vector<int32_t>>()) << text;
  }
  copy_tokenizer(folder_ / "old", folder_ / "new");
  EXPECT_EQ(tokenizer_hash(folder_ / "old"), tokenizer->hash());
  EXPECT_EQ(xxh3_of(folder_ / "new/tokenizer.json"), tokenizer->hash());
  EXPECT_EQ(open_tokenizer(folder_ / "new")->hash(), tokenizer->hash());

  write_file(folder_ / "old/merges.txt", "#version: 0.2\nt h\nc d e\n");
  expect_error([&] { open_tokenizer(folder_ / "old"); },
               {"merges.txt: line 3 is 'c d e'", "expected two tokens"});
  write_file(folder_ / "old/merges.txt", "zq qz\n");
  expect_error([&] { open_tokenizer(folder_ / "old"); },
               {"merges.txt: line 1 is 'zq qz'", "vocab.json, which has no 'zq'"});
  put_json("old/tokenizer_config.json", {{"tokenizer_class", "Qwen2Tokenizer"}});
  expect_error([&] { open_tokenizer(folder_ / "old"); },
               {"tokenizer_class is Qwen2Tokenizer", "expected GPT2Tokenizer"});
  put_json("old/tokenizer_config.json", Json::object());
  put_json("old/config.json", {{"model_type", "qwen2"}});
  expect_error([&] { open_tokenizer(folder_ / "old"); }, {"model_type is \"qwen2\"", "gpt2"});
}

// transformers' save_pretrained keeps only the tokenizer.json.
TEST_F(TokenizerFiles, ATokenizerJsonWithoutItsModelGivesTheSameIds) {
  const std::string model = read_file(kFixtures / "exact/tokenizer.model");
  const auto tokenizer = write_sentencepiece(folder_ / "new", model);
  fs::remove(folder_ / "new/tokenizer.model");
  const auto alone = open_tokenizer(folder_ / "new");
  EXPECT_EQ(alone->kind(), "bpe");
  EXPECT_EQ(alone->vocabulary(), tokenizer->vocabulary());
  EXPECT_EQ(alone->end_token(), tokenizer->end_token());
  EXPECT_EQ(alone->begin_token(), tokenizer->begin_token());
  for (const Json& vector : Json::parse(read_file(kFixtures / "exact/vectors.json"))) {
    const std::string text = vector["text"];
    const std::vector<int32_t> ids = alone->encode(text);
    EXPECT_EQ(ids, vector["ids"].get<std::vector<int32_t>>()) << text;
    EXPECT_EQ(alone->decode(ids), tokenizer->decode(ids)) << text;
  }
  copy_tokenizer(folder_ / "new", folder_ / "copy");
  EXPECT_EQ(open_tokenizer(folder_ / "copy")->hash(), alone->hash());
}

// Checks the content; tests/interop/check_tokenizers.py compares the ids with transformers.
TEST_F(TokenizerFiles, ANewModelIsWrittenInBothForms) {
  const std::string model = read_file(kFixtures / "exact/tokenizer.model");
  const auto tokenizer = write_sentencepiece(folder_ / "new", model);
  EXPECT_EQ(read_file(folder_ / "new/tokenizer.model"), model);
  EXPECT_EQ(open_tokenizer(folder_ / "new")->kind(), "sentencepiece");
  EXPECT_EQ(open_tokenizer(folder_ / "new")->hash(), tokenizer->hash());
  const Json json = Json::parse(read_file(folder_ / "new/tokenizer.json"));
  EXPECT_EQ(json["model"]["vocab"].size(), 700u);
  EXPECT_EQ(json["model"]["vocab"]["</s>"], 2);
  EXPECT_EQ(json["model"]["vocab"]["<0x00>"], 3);
  EXPECT_EQ(json["added_tokens"].size(), 3u);
  int joined = -1;  // merges are in the order of their results
  for (const Json& merge : json["model"]["merges"]) {
    const int result =
        json["model"]["vocab"][merge[0].get<std::string>() + merge[1].get<std::string>()];
    EXPECT_GE(result, joined);
    joined = result;
  }
  copy_tokenizer(folder_ / "new", folder_ / "copy");
  for (const char* name :
       {"tokenizer.model", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}) {
    EXPECT_EQ(read_file(folder_ / ("new/" + std::string(name))),
              read_file(folder_ / ("copy/" + std::string(name))))
        << name;
  }
}

TEST_F(TokenizerFiles, BytesNeedNoFiles) {
  copy_tokenizer("bytes", folder_ / "to");
  EXPECT_FALSE(fs::exists(folder_ / "to"));
}

TEST_F(TokenizerFiles, TheByteTokenizerIsKnownAgain) {
  write_byte_tokenizer(folder_.path());
  const auto known = open_tokenizer(folder_.path());
  EXPECT_EQ(known->kind(), "bytes");
  EXPECT_EQ(tokenizer_hash(folder_.path()), "bytes");
  // Other readers see a byte-level BPE with the same ids. A trailing space makes it another file.
  write_file(folder_ / "other/tokenizer.json", byte_tokenizer_json() + " ");
  const auto other = open_tokenizer(folder_ / "other");
  EXPECT_EQ(other->kind(), "bpe");
  EXPECT_EQ(other->vocabulary(), kByteVocabulary);
  EXPECT_EQ(other->end_token(), kEndOfText);
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes.push_back(static_cast<char>(i));
  EXPECT_EQ(other->encode(bytes), ByteTokenizer().encode(bytes));
}

TEST_F(TokenizerFiles, WhatIsMissingOrBrokenIsNamed) {
  expect_error([&] { open_tokenizer(folder_ / "none"); }, {"none", "no such tokenizer"});
  expect_error([&] { open_tokenizer(folder_.path()); },
               {folder_.path().string(), "neither tokenizer.model nor tokenizer.json"});
  write_file(folder_ / "cut/tokenizer.model",
             read_file(kFixtures / "exact/tokenizer.model").substr(0, 3000));
  expect_error([&] { open_tokenizer(folder_ / "cut"); },
               {"cut/tokenizer.model: has 3000 bytes, expected a whole SentencePiece model"});
  write_file(folder_ / "empty/tokenizer.model", "");
  expect_error([&] { open_tokenizer(folder_ / "empty"); }, {"empty/tokenizer.model: has 0 bytes"});
}

TEST_F(TokenizerFiles, AMissingHubNameShowsItsDownload) {
  expect_error([] { open_tokenizer("no-org/no-name"); },
               {"no-org/no-name: no such tokenizer", "snapshot_download(\"no-org/no-name\""});
}

TEST_F(TokenizerFiles, LinksOutOfTheFolderAreNotCopied) {
  put("llama3.json", "hub/snapshots/1/tokenizer.json");
  const fs::path snapshot = folder_ / "hub/snapshots/1";
  const fs::path secret = write_file(folder_ / "secret", "secret");
  fs::create_symlink(secret, snapshot / "chat_template.jinja");
  expect_error([&] { copy_tokenizer(snapshot, folder_ / "out"); },
               {"chat_template.jinja: is a link to " + secret.string(), "the same folder"});
  EXPECT_FALSE(fs::exists(folder_ / "out"));
  fs::remove(snapshot / "chat_template.jinja");
  write_file(folder_ / "hub/blobs/12ab", "template");  // as in the Hub's cache
  fs::create_symlink("../../blobs/12ab", snapshot / "chat_template.jinja");
  copy_tokenizer(snapshot, folder_ / "out");
  EXPECT_EQ(read_file(folder_ / "out/chat_template.jinja"), "template");
}

TEST_F(TokenizerFiles, NormalizedAddedTokensKeepTheirNames) {
  Json json = Json::parse(read_file(kFixtures / "byte_fallback/llama2.json"));
  for (Json& token : json["added_tokens"]) token["normalized"] = true;
  std::erase_if(json["decoder"]["decoders"].get_ref<Json::array_t&>(),
                [](const Json& step) { return step["type"] == "Strip"; });
  put_json("a/tokenizer.json", json);
  copy_tokenizer(folder_ / "a", folder_ / "b");
  const Json names = Json::parse(read_file(folder_ / "b/special_tokens_map.json"));
  EXPECT_EQ(names["eos_token"], "</s>") << names;
}

TEST_F(TokenizerFiles, AFileThatIsNoModelIsRefusedInPlainWords) {
  try {
    open_tokenizer(write_file(folder_ / "tokenizer.model", "no model"));
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("expected a whole SentencePiece model"), std::string::npos) << message;
    EXPECT_EQ(message.find(".cc("), std::string::npos) << message;
  }
}

// One error in tokenizer_config.json or generation_config.json.
TEST_F(TokenizerFiles, MalformedSettingsAreRefusedByPlace) {
  put("exact/tokenizer.model", "tokenizer.model");
  const auto refused = [&](const std::string& file, const Json& json, const std::string& place,
                           const std::string& expected) {
    fs::remove(folder_ / "tokenizer_config.json");
    put_json(file, json);
    expect_error([&] { open_tokenizer(folder_.path()); }, {file, place, expected});
  };
  const std::string config = "tokenizer_config.json";
  refused(config, {{"eos_token", 2}}, "eos_token is 2", "a string");
  refused(config, {{"eos_token", "<|none|>"}}, "eos_token is '<|none|>'", "vocabulary");
  refused(config, {{"add_bos_token", "yes"}}, "add_bos_token is \"yes\"", "true or false");
  refused(config, {{"legacy", 1}}, "legacy is 1", "true or false");
  refused(config, {{"added_tokens_decoder", Json::array()}}, "added_tokens_decoder is []",
          "object");
  refused(config, {{"added_tokens_decoder", {{"x", {{"content", "a"}}}}}}, "named \"x\"",
          "a token id");
  refused(config, {{"added_tokens_decoder", {{"700", {{"content", ""}}}}}},
          "added_tokens_decoder[\"700\"].content is \"\"", "some text");
  refused(config, Json::array(), "a JSON array", "an object");
  refused("generation_config.json", {{"eos_token_id", "x"}}, "eos_token_id is \"x\"", "a token id");
  refused("generation_config.json", {{"eos_token_id", Json::array()}}, "eos_token_id is []", "");
}

}  // namespace
}  // namespace quern
