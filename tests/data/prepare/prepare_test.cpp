#include "data/prepare/prepare.h"

#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "data/prepare/prepare_fixture.h"
#include "data/prepare/prepare_plan.h"
#include "data/token_sidecar.h"
#include "io/json_file.h"
#include "support/compress.h"
#include "text/tokenizer_files.h"

#include <nlohmann/json.hpp>

namespace quern {
namespace {

namespace fs = std::filesystem;
using namespace testing_support;

TEST_F(Prepare, TextFilesAreDocuments) {
  input("a.txt", "one\r\ntwo");
  input("b.txt", "");
  input("c.md", "\xEF\xBB\xBFthree");
  EXPECT_EQ(train(), bytes({"one\r\ntwo", "three"}));
  const auto sidecar = read_token_sidecar(out_ / "train_00000.bin");
  EXPECT_EQ(sidecar->documents, 2);
  EXPECT_EQ(sidecar->vocabulary, 257);
  EXPECT_EQ(sidecar->end_token, 256);
  EXPECT_EQ(sidecar->tokenizer_hash, "bytes");
  EXPECT_FALSE(fs::exists(out_ / "journal.jsonl"));
}

TEST_F(Prepare, AFileNameThatIsNoUtf8) {
  input("a\xFF.txt", "one");
  EXPECT_EQ(train(), bytes({"one"}));
}

TEST_F(Prepare, JsonLines) {
  input("a.jsonl", "{\"text\": \"one\"}\n\n  \r\n{\"text\": \"\"}\r\n{\"text\": \"two\\n\"}");
  input("b.txt", "{\"text\": 1}");
  EXPECT_EQ(train(), bytes({"one", "two\n", "{\"text\": 1}"}));
  options_.inputs.pop_back();
  options_.field = "body";
  options_.format = TextFormat::jsonl;
  options_.inputs = {input("c.txt", "{\"body\": \"x\"}\n")};
  EXPECT_EQ(train(), bytes({"x"}));
}

TEST_F(Prepare, FormatByName) {
  for (const char* name : {"a.jsonl", "a.ndjson"}) {
    options_.inputs.clear();
    input(name, "{\"text\": \"x\"}");
    EXPECT_EQ(train(), bytes({"x"})) << name;
  }
  options_.inputs.clear();
  input("a.jsonl.gz", gzip("{\"text\": \"x\"}"));
  EXPECT_EQ(train(), bytes({"x"}));
  options_.inputs.clear();
  fs::remove_all(out_);
  input("a.json.zst", zstd("{}"));
  expect_refused({"a.json.zst", "--format jsonl or --format text"});
}

TEST_F(Prepare, DocumentsBetweenSeparators) {
  input("a.txt", "one\n<|endoftext|>\ntwo\n");
  options_.split_on = "<|endoftext|>";
  EXPECT_EQ(train(), bytes({"one\n", "two\n"}));
}

TEST_F(Prepare, RefusesOptionsWithoutAUse) {
  input("a.jsonl", "{\"body\": \"one\"}\n");
  options_.split_on = "blank";
  expect_refused({"--split_on has no meaning with JSONL alone", "a.jsonl", "expected a text file"});
  options_.format = TextFormat::jsonl;
  input("a.txt", "{\"body\": \"one\"}\n");
  expect_refused({"--split_on has no meaning with JSONL alone", "a.txt"});
  options_.split_on = "";
  options_.format = TextFormat::automatic;
  for (const char* field : {"body", "text"}) {  // also the default
    options_.field = field;
    input("a.txt", "two\n\nthree\n");
    expect_refused({"--field has no meaning with text alone", "a.txt", "expected a JSONL file"});
  }
  options_.format = TextFormat::text;
  input("a.jsonl", "{\"body\": \"one\"}\n");
  expect_refused({"--field has no meaning with text alone", "a.jsonl"});
  // With both formats each option has a use.
  options_.format = TextFormat::automatic;
  options_.field = "body";
  options_.split_on = "blank";
  input("a.jsonl", "{\"body\": \"one\"}\n");
  input("a.txt", "two\n\nthree\n");
  EXPECT_EQ(train(), bytes({"one", "two\n", "three\n"}));
}

TEST_F(Prepare, EndTokens) {
  input("a.txt", "ab");
  input("b.txt", "c");
  options_.end_token = "none";
  EXPECT_EQ(train(), (Tokens{'a', 'b', 'c'}));
  EXPECT_EQ(read_token_sidecar(out_ / "train_00000.bin")->end_token, std::nullopt);
  options_.end_token = "10";
  EXPECT_EQ(train(), (Tokens{'a', 'b', 10, 'c', 10}));
  fs::remove_all(out_);
  for (const char* word : {"257", "-1", "x", "10x", ""}) {
    options_.end_token = word;
    expect_error([&] { prepare_data(options_); }, {"end_token", word, "256"});
  }
}

TEST_F(Prepare, EndTokenThatTheTextSpells) {
  options_.tokenizer = gpt2();
  const auto tokenizer = open_tokenizer(gpt2());
  input("a.txt", "text <|endoftext|> more");
  if (!tokenizer->end_token())
    options_.end_token = std::to_string(tokenizer->encode("<|endoftext|>")[0]);
  EXPECT_EQ(prepare_data(options_).end_tokens_in_text, 1);
}

TEST_F(Prepare, ATokenizerWithoutAnEndToken) {
  std::string json = read_file(gpt2());
  for (size_t at = 0; (at = json.find("<|endoftext|>", at)) != std::string::npos;) {
    json.replace(at, 13, "<|something|>");
  }
  options_.tokenizer = write_file(folder_ / "tokenizer.json", json);
  input("a.txt", "some text");
  ASSERT_FALSE(open_tokenizer(options_.tokenizer)->end_token());
  expect_refused({"tokenizer.json", "no end token", "--end_token none"});
  input("a.txt", "some text");
  options_.end_token = "none";
  EXPECT_EQ(train(), open_tokenizer(options_.tokenizer)->encode("some text"));
}

TEST_F(Prepare, ShardsOfOneSize) {
  input("a.txt", "0123456789");
  input("b.txt", "abcde");
  options_.shard_tokens = 6;
  EXPECT_EQ(train(), bytes({"0123456789", "abcde"}));
  Tokens sizes, documents;
  for (const char* name : {"train_00000.bin", "train_00001.bin", "train_00002.bin"}) {
    const auto sidecar = read_token_sidecar(out_ / name);
    sizes.push_back(static_cast<int32_t>(sidecar->tokens));
    documents.push_back(static_cast<int32_t>(sidecar->documents));
  }
  EXPECT_EQ(sizes, (Tokens{6, 6, 5}));
  EXPECT_EQ(documents, (Tokens{1, 1, 0}));  // those that begin in the shard
}

TEST_F(Prepare, OneTextGivesItsEndForValidation) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "line " + std::to_string(i) + "\n";
  for (const bool compressed : {false, true}) {
    fs::remove_all(out_);
    options_.inputs.clear();
    input("a.txt", compressed ? gzip(text) : text);
    options_.validation_fraction = 0.1;
    prepare_data(options_);
    const size_t at = text.find("line 91\n");
    EXPECT_EQ(tokens("train"), bytes({text.substr(0, at)}));
    EXPECT_EQ(tokens("validation"), bytes({text.substr(at)}));
  }
}

TEST_F(Prepare, BadInputNamesThePlace) {
  input("a.jsonl", "{\"text\": \"x\"}\n{\"text\": }\n");
  expect_refused({"a.jsonl:2:10: is no JSON", "--skip_bad"});
  input("a.jsonl", "{\"text\": \"x\"}\n\n{\"body\": 1}\n");
  expect_refused({"a.jsonl:3:1: the object has no field 'text'"});
  input("a.jsonl", "{\"text\": 7}\n");
  expect_refused({"a.jsonl:1:1: field 'text' is 7, expected a string"});
  input("a.jsonl", "{\"text\": \"\xFF\"}\n");
  expect_refused({"a.jsonl:1:11: byte 0xFF is no UTF-8"});
  options_.longest_line = 20;
  options_.block = 10;
  input("a.jsonl", "{}\n{\"text\": \"" + std::string(100, 'x') + "\"}\n");
  expect_refused({"a.jsonl:1:1: the object has no field"});  // the first bad line is reported
  input("a.jsonl", "{\"text\": \"" + std::string(100, 'x') + "\"}\n");
  expect_refused({"a.jsonl:1: is longer than 20 bytes"});
  input("a.txt", std::string("ab\0", 3));
  expect_refused({"a.txt: expected text, but it is not text (byte 2 is 0)"});
  input("a.gz", gzip("some text").substr(0, 20));
  expect_refused({"a.gz: gzip data is cut off at byte 20"});
}

TEST_F(Prepare, BadInputIsSkippedWhenAsked) {
  options_.skip_bad = true;
  options_.longest_line = 50;
  options_.block = 20;
  input("a.jsonl",
        "{\"text\": \"one\"}\nbroken\n{}\n{\"text\": 7}\n{\"text\": \"\xFF\"}\n{\"text\": \"" +
            std::string(100, 'x') + "\"}\n[]\n{\"text\": \"two\"}\n");
  input("b.txt", std::string("\0", 1));
  input("c.txt", "three");
  const PrepareResult result = prepare_data(options_);
  EXPECT_EQ(tokens("train"), bytes({"one", "two", "three"}));
  EXPECT_EQ(result.skipped, (std::map<std::string, int64_t>{{"bad_json", 2},
                                                            {"bad_utf8", 1},
                                                            {"no_field", 1},
                                                            {"not_a_string", 1},
                                                            {"not_text", 1},
                                                            {"too_long", 1}}));
  ASSERT_EQ(result.bad.size(), 7u);
  EXPECT_NE(result.bad[0].find("a.jsonl:2:1: is no JSON"), std::string::npos) << result.bad[0];
  EXPECT_NE(result.bad[5].find("a.jsonl:7:1: is an array"), std::string::npos) << result.bad[5];
  const auto sources = read_json_object(out_ / "sources.json");
  EXPECT_EQ(sources["skipped"]["bad_json"], 2);
  EXPECT_EQ(sources["sources"][0]["documents"], 2);
  // Truncated data is not a bad line: the missing part is unknown.
  input("d.gz", gzip("some text").substr(0, 20));
  fs::remove_all(out_);
  expect_error([&] { prepare_data(options_); }, {"d.gz: gzip data is cut off"});
}

TEST_F(Prepare, ChecksumsOfTheSources) {
  const std::string bytes = gzip("some text");
  input("a.gz", bytes);
  prepare_data(options_);
  const auto source = read_json_object(out_ / "sources.json")["sources"][0];
  EXPECT_EQ(source["bytes"], bytes.size());
  EXPECT_EQ(source["xxh3"], hex(digest_of(std::as_bytes(std::span(bytes))).xxh3));
}

TEST_F(Prepare, EmptyPartsAreRefused) {
  input("a.txt", "");
  expect_refused({"a.txt: is empty"});
  input("a.jsonl", "\n{\"text\": \"\"}\n");
  expect_refused({"no document with text"});
  options_.validation_fraction = 0.001;
  input("a.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n");
  expect_refused({"the validation part is empty", "0.001", "documents in all: 2"});
  options_.validation_fraction = 0.999;
  input("a.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n");
  expect_refused({"the train part is empty", "0.999", "documents in all: 2"});
}

// Whole documents would give 0, 41 or 59 % to the validation part.
TEST_F(Prepare, AFileFromItsFirstByteIsValidatedOn) {
  input("a.txt", std::string(5000, 'a'));
  input("b.txt", std::string(5000, 'b'));
  options_.validation_fraction = 0.5;
  for (const int64_t seed : {1, 2, 3, 4, 5, 6}) {
    options_.seed = seed;
    fs::remove_all(out_);
    prepare_data(options_);
    EXPECT_EQ(tokens("train").size(), tokens("validation").size()) << seed;
  }
}

TEST_F(Prepare, OfTwoTextFilesTheEndIsValidatedOn) {
  std::string first, second;
  for (int i = 0; i < 593; ++i) first += "verse\n";
  for (int i = 0; i < 410; ++i) second += "prose\n";
  const auto tail = [](const std::string& text, size_t lines) {
    return std::pair(text.substr(0, text.size() - 6 * lines), text.substr(text.size() - 6 * lines));
  };
  input("a.txt", first);
  input("b.txt", second);
  for (const int64_t seed : {0, 1, 2}) {
    options_.seed = seed;
    options_.validation_fraction = 0.01;
    fs::remove_all(out_);
    const PrepareResult result = prepare_data(options_);
    const auto [kept, held] = tail(second, 10);
    EXPECT_EQ(tokens("train"), bytes({first, kept}));
    EXPECT_EQ(tokens("validation"), bytes({held}));
    EXPECT_NE(result.validation_warning.find("last 1 % of the text, from"), std::string::npos);
    EXPECT_NE(result.validation_warning.find("b.txt, byte 2400 on"), std::string::npos)
        << result.validation_warning;
  }
  options_.validation_fraction = 0.8;
  fs::remove_all(out_);
  prepare_data(options_);
  const auto [kept, held] = tail(first, 392);
  EXPECT_EQ(tokens("train"), bytes({kept}));
  EXPECT_EQ(tokens("validation"), bytes({held, second}));
}

TEST_F(Prepare, ManyTextFilesAreSplitAsAWhole) {
  for (int i = 0; i < 200; ++i) input(cat(1000 + i, ".txt"), cat("document ", 1000 + i, "\n"));
  options_.validation_fraction = 0.1;
  const PrepareResult result = prepare_data(options_);
  EXPECT_EQ(result.validation_warning, "");
  EXPECT_EQ(result.train.documents + result.validation.documents, 200);
  EXPECT_NEAR(static_cast<double>(result.validation.documents), 20.0, 10.0);
}

TEST_F(Prepare, AValidationPartThatIsOffIsWarnedOf) {
  std::string lines = cat("{\"text\": \"", std::string(1000, 'x'), "\"}\n");
  for (int i = 0; i < 40; ++i) lines += "{\"text\": \"short\"}\n";
  input("a.jsonl", lines);
  options_.validation_fraction = 0.5;
  const PrepareResult result = prepare_data(options_);
  EXPECT_NE(result.validation_warning.find("expected 50 %"), std::string::npos)
      << result.validation_warning;
  EXPECT_NE(result.validation_warning.find("the 41 are few or unequal"), std::string::npos);
}

TEST_F(Prepare, OptionsAreChecked) {
  expect_refused({"no inputs"});
  const std::string path = input("a.txt", "x");
  options_.validation_fraction = 1.0;
  expect_error([&] { prepare_data(options_); }, {"validation_fraction is 1"});
  options_.validation_fraction = 0.0;
  options_.shard_tokens = 0;
  expect_error([&] { prepare_data(options_); }, {"shard_tokens is 0"});
  options_.shard_tokens = 100;
  options_.inputs = {folder_.path()};
  expect_error([&] { prepare_data(options_); }, {"out", "lies in the input folder"});
  options_.inputs = {folder_.path() / "*"};  // matches out.part once that has anything
  fs::create_directories(fs::path(options_.out) += ".part");
  write_file((fs::path(options_.out) += ".part") / "journal.jsonl", "");
  EXPECT_EQ(plan_prepare(options_).sources.size(), 1u);
  options_.inputs = {folder_.path() / "out*"};  // matches nothing else
  for (const bool resume : {false, true}) {
    options_.resume = resume;
    expect_error([&] { prepare_data(options_); },
                 {"out*: matches only the unfinished output ", "out.part", "expected files"});
  }
  options_.inputs = {path};
  options_.tokenizer = folder_ / "none.json";
  expect_error([&] { prepare_data(options_); }, {"none.json"});
}

TEST_F(Prepare, WideTokens) {
  options_.tokenizer = source_folder() / "tests/fixtures/tokenizers/llama3.json";
  const auto tokenizer = open_tokenizer(options_.tokenizer);
  options_.end_token = "none";
  input("a.txt", "some text");
  EXPECT_EQ(train(), tokenizer->encode("some text"));
  const auto sidecar = read_token_sidecar(out_ / "train_00000.bin");
  EXPECT_EQ(sidecar->encoding,
            tokenizer->vocabulary() > 65536 ? TokenEncoding::llmc_u32 : TokenEncoding::llmc_u16);
  EXPECT_EQ(sidecar->tokenizer_hash, tokenizer->hash());
  EXPECT_EQ(open_tokenizer(out_ / "tokenizer")->hash(), tokenizer->hash());
}

}  // namespace
}  // namespace quern
