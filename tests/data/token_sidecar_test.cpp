#include "data/token_sidecar.h"

#include <gtest/gtest.h>

#include <vector>

#include "support/files.h"
#include "support/token_files.h"

namespace quern {
namespace {

using namespace testing_support;

// A token file of three tokens, and its sidecar.
class TokenSidecarTest : public testing::Test {
 protected:
  void SetUp() override {
    write_token_file(path_, std::vector<int32_t>{5, 256, 7}, TokenEncoding::llmc_u16);
    sidecar_.encoding = TokenEncoding::llmc_u16;
    sidecar_.tokens = 3;
    sidecar_.documents = 2;
    sidecar_.vocabulary = 257;
    sidecar_.end_token = 256;
    sidecar_.tokenizer_kind = sidecar_.tokenizer_hash = "bytes";
    sidecar_.file = digest_of_file(path_);
    write_token_sidecar(path_, sidecar_);
  }
  // The sidecar with one passage replaced.
  void replace(const std::string& from, const std::string& to) {
    std::string text = read_file(json_);
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    write_file(json_, text.replace(at, from.size(), to));
  }
  void expect_refused(const std::string& from, const std::string& to,
                      std::initializer_list<std::string> parts) {
    write_token_sidecar(path_, sidecar_);
    replace(from, to);
    expect_error([&] { read_token_sidecar(path_); }, parts);
  }

  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "train_00000.bin", json_ = folder_ / "train_00000.json";
  TokenSidecar sidecar_;
};

TEST_F(TokenSidecarTest, ComesBackAsItWas) {
  EXPECT_EQ(read_token_sidecar(path_), sidecar_);
  sidecar_.end_token.reset();
  sidecar_.encoding = TokenEncoding::llmc_u32;
  write_token_sidecar(path_, sidecar_);
  EXPECT_EQ(read_token_sidecar(path_), sidecar_);
}

TEST_F(TokenSidecarTest, IsNotNeeded) {
  std::filesystem::remove(json_);
  EXPECT_EQ(read_token_sidecar(path_), std::nullopt);
  EXPECT_EQ(read_token_sidecar(json_), std::nullopt);  // a token file may have this name
}

TEST_F(TokenSidecarTest, RefusesWhatTheWriterDoesNotWrite) {
  expect_refused("{", "[", {"train_00000.json", "not valid JSON"});
  expect_refused("\"format\"", "\"kind\"", {"train_00000.json: has no format"});
  expect_refused("quern tokens", "other", {"format is \"other\"", "quern tokens"});
  expect_refused("\"version\": 1", "\"version\": 2", {"version is 2", "expected 1"});
  expect_refused("llmc_u16", "llmc_u8", {"encoding is \"llmc_u8\"", "llmc_u32"});
  expect_refused("\"tokens\": 3", "\"tokens\": -3", {"tokens is -3", "0 or more"});
  expect_refused("\"tokens\": 3", "\"tokens\": 3.5", {"tokens is 3.5"});
  expect_refused("\"documents\"", "\"d\"", {"has no documents"});
  expect_refused("\"vocabulary\": 257", "\"vocabulary\": 0", {"vocabulary is 0"});
  expect_refused("\"end_token\": 256", "\"end_token\": 257", {"end_token is 257", "257"});
  expect_refused("\"end_token\": 256", "\"end_token\": \"x\"", {"end_token is \"x\""});
  expect_refused("\"kind\": \"bytes\"", "\"kind\": 1", {"tokenizer: kind is 1"});
  expect_refused("\"hash\": \"bytes\"", "\"hash\": \"\"", {"tokenizer: hash is \"\""});
  expect_refused("\"xxh3\": \"", "\"xxh3\": \"g", {"file: xxh3", "16 hexadecimal digits"});
}

TEST_F(TokenSidecarTest, DiffersFromItsFile) {
  EXPECT_NO_THROW(check_token_sidecar(sidecar_, TokenFile::open(path_)));
  EXPECT_NO_THROW(verify_token_file(sidecar_, path_));

  write_token_file(path_, std::vector<int32_t>{5, 256, 8}, TokenEncoding::llmc_u16);
  EXPECT_NO_THROW(check_token_sidecar(sidecar_, TokenFile::open(path_)));
  expect_error([&] { verify_token_file(sidecar_, path_); },
               {"train_00000.bin", "train_00000.json", "changed"});

  write_token_file(path_, std::vector<int32_t>{5, 256}, TokenEncoding::llmc_u16);
  expect_error([&] { check_token_sidecar(sidecar_, TokenFile::open(path_)); },
               {"has 2 tokens", "train_00000.json says 3"});
  write_token_file(path_, std::vector<int32_t>{5, 256, 7}, TokenEncoding::raw_u16);
  expect_error([&] { check_token_sidecar(sidecar_, TokenFile::open(path_)); },
               {"is raw_u16", "says llmc_u16"});
}

}  // namespace
}  // namespace quern
