// Malformed tokenizers.
#include "support/malformed.h"

#include <gtest/gtest.h>

#include "text/tokenizer_files.h"

namespace quern {
namespace {

using namespace testing_support;
namespace fs = std::filesystem;

std::string fixture(const std::string& name) {
  return read_file(source_folder() / "tests/fixtures/tokenizers" / name);
}

void open_folder_of(const fs::path& path) {
  open_tokenizer(path.parent_path());
}

TEST(Malformed, TokenizerJson) {
  const TemporaryFolder folder;
  const std::string whole = fixture("gpt2.json");
  const auto with = [&](const std::string& before, const std::string& after) {
    return replaced(whole, before, after);
  };
  const std::string step = R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,)"
                           R"("use_regex":true})";
  const std::string pattern = R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":)"
                              R"({"Regex":"(a"},"behavior":"Isolated"},)"
                              R"({"type":"ByteLevel","add_prefix_space":false}]})";
  const std::string id = "a token id from 0 to 2147483647";
  expect_malformed(
      folder / "tokenizer.json",
      {{"empty", "", "line 1, column 1", "end of input", "'{'"},
       {"cut", whole.substr(0, 500), "column 501", "end of input", "'}'"},
       {"a list", "[]", "", "a JSON array", "an object"},
       {"Python's None", with("null", "None"), "column 31", "\"truncation\":N", "valid JSON"},
       {"Latin-1", with("<tool>", "\xe4"), "column 330", "ill-formed UTF-8", "valid JSON"},
       {"no model", "{}", "", "has no model", "a tokenizer.json of BPE"},
       {"a model that is a list", R"({"model":[]})", "model", "is []", "an object"},
       {"another algorithm", with("BPE", "WordPiece"), "model.type", "\"WordPiece\"", "\"BPE\""},
       {"a vocabulary as a list", with("\"vocab\":{", "\"vocab\":[],\"x\":{"), "model.vocab",
        "is []", "an object"},
       {"an id as text", with(R"("a":64)", R"("a":"64")"), "model.vocab[\"a\"]", "\"64\"", id},
       {"a negative id", with(R"("a":64)", R"("a":-1)"), "model.vocab[\"a\"]", "is -1", id},
       {"a huge id", with(R"("a":64)", R"("a":2147483647)"), "model.vocab[\"a\"]", "is 2147483647",
        "a number below 67336"},
       {"an id twice", with(R"("b":65)", R"("b":64)"), "model.vocab[\"b\"]", "is 64",
        "another number than that of 'a'"},
       {"a token of other letters", with(R"("b":65)", R"("b b":65)"), "model.vocab", "'b b'",
        "the alphabet of byte-level BPE"},
       {"no merges", with("\"merges\":", "\"margins\":"), "model", "has no", "merges"},
       {"a merge as a number", with("\"merges\":[", "\"merges\":[7,"), "model.merges[0]", "is 7",
        "a string"},
       {"a merge of one", with("\"merges\":[", "\"merges\":[\"ab\","), "model.merges[0]", "\"ab\"",
        "two tokens"},
       {"a merge of a missing token", with("\"merges\":[", "\"merges\":[\"a zzz\","),
        "model.merges[0]", "\"a zzz\"", "which has no 'zzz'"},
       {"a missing letter", with(R"("b":65,)", ""), "model.merges[12]", "[\"Ġ\",\"b\"]", "no 'b'"},
       {"an added id of 3.5", with("\"id\":900", "\"id\":3.5"), "added_tokens[0].id", "is 3.5", id},
       {"a huge added id", with("\"id\":900", "\"id\":2147483647"), "added_tokens",
        "with id 2147483647", "0 to 66439"},
       {"an added id twice", with("\"id\":900", "\"id\":901"), "added_tokens", "with id 901",
        "another id than that of '<|endoftext|>'"},
       {"an empty added token", with("<|endoftext|>", ""), "added_tokens[0].content", "is \"\"",
        "some text"},
       {"a flag in words", with("\"special\":true", "\"special\":\"yes\""),
        "added_tokens[0].special", "\"yes\"", "true or false"},
       {"an unknown step", with(step, R"({"type":"Whitespace"})"), "pre_tokenizer.type",
        "\"Whitespace\"", "ByteLevel, Split, Digits"},
       {"an open pattern", with(step, pattern), "pattern (a", "missing closing parenthesis",
        "regular expression"},
       {"a space before each piece",
        with(step, R"({"type":"Sequence","pretokenizers":[{"type":"Digits"},)"
                   R"({"type":"ByteLevel","add_prefix_space":true}]})"),
        "pre_tokenizer.pretokenizers[1]", "add_prefix_space is true", "false behind another step"},
       {"no decoder", with("\"decoder\":", "\"recoder\":"), "", "has no", "decoder"},
       {"an unknown normalizer", with("izer\":null", R"(izer":{"type":"Lowercase"})"),
        "normalizer.type", "\"Lowercase\"", "NFC"},
       {"a normalizer without a type", with("izer\":null", R"(izer":{"x":"NFC"})"), "normalizer",
        "has no", "type"},
       {"a normalizer as text", with("izer\":null", R"(izer":"NFC")"), "normalizer", "\"NFC\"",
        "an object with type"}},
      open_folder_of);
}

TEST(Malformed, TokenizerModel) {
  const TemporaryFolder folder;
  const std::string whole = fixture("exact/tokenizer.model");
  const std::string model = "a whole SentencePiece model";
  expect_malformed(
      folder / "tokenizer.model",
      {{"empty", "", "", "has 0 bytes", model},
       {"text", "no model", "", "has 8 bytes", model},
       {"zeros", std::string(100, '\0'), "", "has 100 bytes", model},
       {"cut", whole.substr(0, whole.size() / 2), "", "has 4932 bytes", model},
       {"another first byte", cat("\xff", whole.substr(1)), "", "has 9864 bytes", model},
       {"two models", whole + whole, "<unk> is already defined", "has 19728 bytes", model},
       {"a pointer of Git LFS", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n", "",
        "is a pointer of Git LFS", model}},
      open_folder_of);
}

TEST(Malformed, TokenizerConfig) {
  const TemporaryFolder folder;
  write_file(folder / "tokenizer.model", fixture("exact/tokenizer.model"));
  const auto added = [](const std::string& entry) {
    return cat("{\"added_tokens_decoder\": ", entry, "}");
  };
  const std::string unknown = "which the vocabulary does not have";
  const std::string id = "a token id from 0 to 2147483647";
  expect_malformed(
      folder / "tokenizer_config.json",
      {{"empty", "", "line 1, column 1", "end of input", "'{'"},
       {"a list", "[]", "", "a JSON array", "an object"},
       {"a class as a number", R"({"tokenizer_class": 1})", "tokenizer_class", "is 1", "a string"},
       {"an end as a number", R"({"eos_token": 2})", "eos_token", "is 2", "a string"},
       {"an end without text", R"({"eos_token": {}})", "eos_token", "has no", "content"},
       {"an unknown end", R"({"eos_token": "<x>"})", "eos_token", "'<x>'", unknown},
       {"an unknown begin", R"({"add_bos_token": true, "bos_token": "<x>"})", "bos_token", "'<x>'",
        unknown},
       {"a flag in words", R"({"add_bos_token": "yes"})", "add_bos_token", "\"yes\"",
        "true or false"},
       {"added tokens as a list", added("[]"), "added_tokens_decoder", "is []", "an object"},
       {"a name as an id", added(R"({"x": {"content": "a"}})"), "added_tokens_decoder[\"x\"]",
        "named \"x\"", id},
       {"an id of many digits", added(R"({"99999999999": {"content": "a"}})"),
        "added_tokens_decoder", "named \"99999999999\"", id},
       {"a huge id", added(R"({"2000000000": {"content": "a"}})"), "added_tokens_decoder",
        "'a' with id 2000000000", "0 to 66236"},
       {"an added token as text", added(R"({"5": "a"})"), "added_tokens_decoder[\"5\"]", "\"a\"",
        "an object with content"},
       {"an empty added token", added(R"({"5": {"content": ""}})"),
        "added_tokens_decoder[\"5\"].content", "is \"\"", "some text"}},
      open_folder_of);
}

TEST(Malformed, GenerationConfig) {
  const TemporaryFolder folder;
  write_file(folder / "tokenizer.json", fixture("gpt2.json"));
  expect_malformed(
      folder / "generation_config.json",
      {{"empty", "", "line 1, column 1", "end of input", "'{'"},
       {"an end as text", R"({"eos_token_id": "2"})", "eos_token_id", "\"2\"", "a token id"},
       {"no end", R"({"eos_token_id": []})", "eos_token_id", "is []", "or a list of them"},
       {"an unknown end", R"({"eos_token_id": 5000})", "eos_token_id", "is 5000",
        "which the vocabulary does not have"}},
      open_folder_of);
}

TEST(Malformed, AddedTokens) {
  const TemporaryFolder folder;
  write_file(folder / "tokenizer.model", fixture("exact/tokenizer.model"));
  const std::string decoder = "added_tokens_decoder of tokenizer_config.json";
  expect_malformed(folder / "added_tokens.json",
                   {{"empty", "", "line 1, column 1", "end of input", "'{'"},
                    {"a list", "[]", "", "a JSON array", "an object"},
                    {"a token alone", R"({"<pad>": 700})", "", "'<pad>' with id 700", decoder},
                    {"another id", R"({"</s>": 3})", "", "'</s>' with id 3", decoder},
                    {"an id as text", R"({"</s>": "2"})", "", "'</s>' with id \"2\"", decoder}},
                   open_folder_of);
}

TEST(Malformed, VocabularyAndMerges) {
  const TemporaryFolder folder;
  write_file(folder / "vocab.json", R"({"a":0,"b":1,"ab":2})");
  expect_malformed(
      folder / "merges.txt",
      {{"one token", "a b\nab\n", "line 2", "'ab'", "two tokens with a space"},
       {"three tokens", "a b c\n", "line 1", "'a b c'", "two tokens with a space"},
       {"Latin-1", "#version\na \xff\n", "line 2", "a byte that is no UTF-8", "two tokens"},
       {"an unknown token", "a c\n", "line 1", "'a c'", "which has no 'c'"}},
      open_folder_of);
  write_file(folder / "merges.txt", "a b\n");
  const std::string id = "a token id from 0 to 2147483647";
  expect_malformed(folder / "vocab.json",
                   {{"empty", "", "line 1, column 1", "end of input", "'{'"},
                    {"a list", "[]", "", "a JSON array", "an object"},
                    {"an id as text", R"({"a":0,"b":1,"ab":"2"})", "[\"ab\"]", "\"2\"", id},
                    {"an end as text", R"({"a":0,"b":1,"ab":2,"<|endoftext|>":"x"})",
                     "<|endoftext|>", "\"x\"", id}},
                   open_folder_of);
}

}  // namespace
}  // namespace quern
