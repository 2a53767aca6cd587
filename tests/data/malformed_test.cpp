// Malformed token files, sidecars and JSON lines.
#include "support/malformed.h"

#include <gtest/gtest.h>

#include <cstring>

#include "data/dataset.h"
#include "data/prepare/prepare.h"
#include "data/token_file.h"
#include "data/token_sidecar.h"

namespace quern {
namespace {

using namespace testing_support;
namespace fs = std::filesystem;

const std::string kTokens("\1\0\2\0\3\0\4\0", 8);

std::string llmc(int32_t magic, int32_t version, int32_t count, const std::string& tokens) {
  std::string file(1024, '\0');
  const int32_t header[] = {magic, version, count};
  std::memcpy(file.data(), header, sizeof(header));
  return file + tokens;
}

TEST(Malformed, TokenFile) {
  const TemporaryFolder folder;
  const std::string large("\1\0\2\0\3\0\xff\xff", 8);
  expect_malformed(
      folder / "tokens.bin",
      {{"empty", "", "", "is empty", "tokens"},
       {"an odd number of bytes", "abc", "", "has 3 bytes", "an even number"},
       {"cut in the header", llmc(20240520, 1, 4, "").substr(0, 500), "", "has 500 bytes",
        "an llm.c header of 1024"},
       {"another version", llmc(20240520, 2, 4, kTokens), "llm.c header", "version 2",
        "1 with magic 20240520"},
       {"another version of 4 bytes", llmc(20240801, 1, 2, kTokens), "llm.c header", "version 1",
        "7 with magic 20240801"},
       {"cut", llmc(20240520, 1, 5, kTokens), "header", "has 8 bytes", "5 tokens of 2 bytes"},
       {"a negative count", llmc(20240520, 1, -1, kTokens), "header", "8 bytes", "-1 tokens"},
       {"cut within a token", llmc(20240801, 7, 2, "1234567"), "header", "has 7 bytes",
        "2 tokens of 4 bytes"},
       {"a model", llmc(20240326, 3, 2, kTokens), "", "is a GPT-2 model of llm.c", "tokens"},
       {"a token beyond the vocabulary", llmc(20240520, 1, 4, large), "token 3", "is 65535",
        "less than the vocabulary size 100"}},
      [](const fs::path& path) { TokenSource(TokenFile::open(path)).check_vocabulary(100); });
}

TEST(Malformed, TokenSidecar) {
  const TemporaryFolder folder;
  const fs::path tokens = write_file(folder / "tokens.bin", llmc(20240520, 1, 4, kTokens));
  TokenSidecar sidecar;
  sidecar.encoding = TokenEncoding::llmc_u16;
  sidecar.tokens = 4;
  sidecar.documents = 1;
  sidecar.vocabulary = 5;
  sidecar.end_token = 4;
  sidecar.tokenizer_kind = "bpe";
  sidecar.tokenizer_hash = "0123456789abcdef";
  sidecar.file = digest_of_file(tokens);
  write_token_sidecar(tokens, sidecar);
  const std::string whole = read_file(folder / "tokens.json");
  const auto with = [&](const std::string& before, const std::string& after) {
    return replaced(whole, before, after);
  };
  expect_malformed(
      folder / "tokens.json",
      {{"empty", "", "line 1, column 1", "end of input", "'{'"},
       {"another format", with("quern tokens", "x"), "format", "\"x\"", "\"quern tokens\""},
       {"another version", with("\"version\": 1", "\"version\": 9"), "version", "is 9", "1"},
       {"an unknown encoding", with("llmc_u16", "u8"), "encoding", "\"u8\"", "raw_u16, llmc_u16"},
       {"a negative count", with("tokens\": 4", "tokens\": -4"), "tokens", "is -4", "0 or more"},
       {"another count", with("tokens\": 4", "tokens\": 5"), "tokens.bin", "has 4 tokens",
        "says 5"},
       {"no vocabulary", with("lary\": 5", "lary\": 0"), "vocabulary", "is 0", "1 to 2147483648"},
       {"an end beyond it", with("end_token\": 4", "end_token\": 5"), "end_token", "is 5",
        "less than vocabulary 5"},
       {"no end token", with("end_token", "end"), "", "has no", "end_token"},
       {"a tokenizer that is a number", with("\"tokenizer\": {", "\"tokenizer\": 3, \"x\": {"),
        "tokenizer", "is 3", "an object"},
       {"no kind", with("\"bpe\"", "\"\""), "tokenizer: kind", "is \"\"", "some text"},
       {"no hexadecimal number", with("xxh3\": \"", "xxh3\": \"z"), "file: xxh3", "\"z",
        "16 hexadecimal digits"},
       {"another size", with("1032", "1033"), "tokens.bin", "has 1032 bytes", "says 1033"}},
      [&](const fs::path&) {
        check_token_sidecar(*read_token_sidecar(tokens), TokenFile::open(tokens));
      });
}

TEST(Malformed, JsonLines) {
  const TemporaryFolder folder;
  PrepareOptions options;
  options.inputs = {(folder / "text.jsonl").string()};
  options.out = folder / "out";
  options.longest_line = 10'000;
  options.block = 64;
  const std::string good = "{\"text\": \"a\"}\n";
  expect_malformed(
      folder / "text.jsonl",
      {{"cut", good + "{\"text\": \"a", ":2:12:", "missing closing quote", "is no JSON"},
       {"a list", "[1]\n", ":1:1:", "is an array", "an object"},
       {"a number", "{\"text\": 1}\n", ":1:1: field 'text'", "is 1", "a string"},
       {"another field", good + "{\"body\": \"a\"}\n", ":2:1:", "has no", "'text'"},
       {"Latin-1", "{\"text\": \"\xe4\"}\n", ":1:11:", "byte 0xE4", "is no UTF-8"},
       {"a zero byte", good + std::string(4096, ' ') + std::string(2, '\0'), ":2:", "byte is 0",
        "is no JSON"},
       {"two objects", "{} {}\n", ":1:4:", "found '{'", "end of input"},
       {"Python's quotes", "{'text': 'a'}\n", ":1:2:", "found '{''", "string literal"},
       {"NaN", "{\"text\": NaN}\n", ":1:10:", "found '\"text\": N'", "is no JSON"},
       {"half a character", "{\"text\": \"\\ud800\"}\n", ":1:17:", "surrogate", "must be followed"},
       {"an unknown escape", "{\"text\": \"\\x\"}\n", ":1:12:", "forbidden character", "no JSON"},
       {"a long line", cat("{\"text\": \"", std::string(20'000, 'a'), "\"}\n"),
        ":1:", "longer than", "10000 bytes"},
       {"Parquet", "PAR1....", "", "is a Parquet file", "expected text"},
       {"UTF-16", "\xff\xfe{", "", "is UTF-16 text", "expected text"}},
      [&](const fs::path&) { prepare_data(options); });
}

}  // namespace
}  // namespace quern
