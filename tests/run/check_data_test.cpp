// Checks of a run's tokens: sidecars, tokenizer, vocabulary, end token.
#include "run/check_data.h"

#include <gtest/gtest.h>

#include "data/token_sidecar.h"
#include "run/train_state.h"
#include "support/files.h"
#include "support/token_files.h"
#include "support/training.h"
#include "text/byte_tokenizer.h"

namespace quern {
namespace {

namespace fs = std::filesystem;
using namespace testing_support;

// A folder as `quern data prepare` writes it: bytes, documents of 19 bytes and the end.
class RunDataTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"train_00000", "train_00001", "validation_00000"}) add(name, 2000);
  }

  fs::path file(const std::string& name) const { return folder_ / (name + ".bin"); }

  void add(const std::string& name, int64_t count) {
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < count; ++i) {
      tokens.push_back(i % 20 == 19 ? 256 : static_cast<int32_t>('a' + i * i % 13));
    }
    write_token_file(file(name), tokens, TokenEncoding::llmc_u16);
    TokenSidecar sidecar;
    sidecar.tokens = count;
    sidecar.vocabulary = 257;
    sidecar.end_token = 256;
    sidecar.tokenizer_kind = sidecar.tokenizer_hash = "bytes";
    sidecar.file = digest_of_file(file(name));
    write_token_sidecar(file(name), sidecar);
  }
  template <class F>
  void change(const std::string& name, F&& edit) {
    TokenSidecar sidecar = *read_token_sidecar(file(name));
    edit(sidecar);
    write_token_sidecar(file(name), sidecar);
  }

  Dataset open() const {
    return open_dataset({folder_.path().string(), "", 0.1, DataFormat::automatic}, 16);
  }
  void expect_refused(std::initializer_list<std::string> parts) const {
    const Dataset data = open();
    expect_error([&] { read_token_facts(data); }, parts);
  }

  TemporaryFolder folder_;
  const RunTokenizer bytes_{"bytes", std::make_shared<ByteTokenizer>()};
};

TEST_F(RunDataTest, SidecarsAgree) {
  const TokenFacts facts = read_token_facts(open());
  EXPECT_EQ(facts.sidecar, folder_ / "train_00000.json");
  EXPECT_EQ(facts.vocabulary, 257);
  EXPECT_EQ(facts.end_token, 256);
  EXPECT_EQ(facts.tokenizer_hash, "bytes");
  EXPECT_NO_THROW(check_tokenizer(facts, bytes_));
}

TEST_F(RunDataTest, ADifferenceIsRefusedWithBothFiles) {
  change("train_00001", [](TokenSidecar& s) { s.tokenizer_hash = "0123456789abcdef"; });
  expect_refused({"train_00001.json", "hash 0123456789abcdef", "train_00000.json", "bytes"});
  add("train_00001", 2000);
  change("validation_00000", [](TokenSidecar& s) { s.vocabulary = 300; });
  expect_refused({"validation_00000.json: vocabulary is 300", "train_00000.json is 257"});
  add("validation_00000", 2000);
  change("validation_00000", [](TokenSidecar& s) { s.end_token.reset(); });
  expect_refused({"validation_00000.json: end_token is none", "train_00000.json is 256"});
  add("validation_00000", 2000);
  fs::remove(folder_ / "train_00001.json");
  expect_refused({"train_00001.bin: has no sidecar train_00001.json", "train_00000.bin has one"});
  add("train_00001", 2000);
  change("train_00001", [](TokenSidecar& s) { s.tokens = 1999; });
  expect_refused({"train_00001.bin: has 2000 tokens", "1999"});
}

TEST_F(RunDataTest, AnotherTokenizerIsRefusedWithBothHashes) {
  TokenFacts facts = read_token_facts(open());
  facts.tokenizer_hash = "0123456789abcdef";
  expect_error([&] { check_tokenizer(facts, bytes_); },
               {"train_00000.json", "0123456789abcdef", "bytes has bytes"});
  EXPECT_NO_THROW(check_tokenizer(facts, {}));   // bare tokens state nothing
  EXPECT_NO_THROW(check_tokenizer({}, bytes_));  // nor of files without a sidecar
}

TEST_F(RunDataTest, TheVocabularyIsTheSidecarsUnread) {
  const Dataset data = open();
  TokenFacts facts = read_token_facts(data);
  facts.vocabulary = 1000;  // more than the largest token requires
  EXPECT_EQ(needed_vocabulary(data, facts, bytes_), 1000);
  EXPECT_EQ(needed_vocabulary(data, {}, bytes_), 257);
  EXPECT_EQ(needed_vocabulary(data, {}, {}), 257);  // the largest token is 256
  EXPECT_NO_THROW(check_vocabulary(data, facts, 1000, "vocab"));
  expect_error([&] { check_vocabulary(data, facts, 999, "the model of DIR"); },
               {"train_00000.json: vocabulary is 1000", "at most the 999 of the model of DIR"});
  expect_error([&] { check_vocabulary(data, {}, 256, "vocab"); },
               {"train_00000.bin: token 19 is 256", "256"});
}

TEST_F(RunDataTest, TheEndTokenIsFoundOrAskedFor) {
  const Dataset data = open();
  TokenFacts facts = read_token_facts(data);
  DataSection off, on;
  on.sampling = Sampling::permutation;
  on.document_mask = true;
  EXPECT_EQ(batch_options(off, data, facts, bytes_).document_end, std::nullopt);
  const BatchOptions options = batch_options(on, data, facts, {});
  EXPECT_EQ(options.document_end, 256);
  EXPECT_EQ(options.sampling, Sampling::permutation);
  EXPECT_EQ(batch_options(on, data, {}, bytes_).document_end, 256);
  facts.end_token.reset();
  expect_error([&] { batch_options(on, data, facts, bytes_); },
               {"document_mask", "not known", "train_00000.json"});
  expect_error([&] { batch_options(on, data, {}, {}); }, {"document_mask", "no sidecar"});
}

TEST_F(RunDataTest, TrainsOnAPreparedFolder) {
  Config config = tiny_config(folder_.path(), folder_ / "run");
  config.train.steps = 5;
  config.train.eval_every = 5;
  config.data.sampling = Sampling::permutation;
  config.data.document_mask = true;
  Recorded masked;
  train(config, masked);
  ASSERT_EQ(masked.validations.size(), 1u);
  const TrainState state = state_of(open_checkpoint(folder_ / "run/checkpoints/step_00000005"));
  EXPECT_EQ(state.model.vocab_size, 257);
  EXPECT_EQ(state.tokenizer, "bytes");
  EXPECT_TRUE(state.is_text);  // prompts and samples are text
  // The mask is part of the loss.
  config.run.out = (folder_ / "all").string();
  config.data.document_mask = false;
  Recorded all;
  train(config, all);
  EXPECT_NE(masked.losses(), all.losses());
  EXPECT_NE(masked.validations, all.validations);
}

TEST_F(RunDataTest, AResumedRunKeepsItsTokenizer) {
  Config config = tiny_config(folder_.path(), folder_ / "run");
  config.train.steps = 2;
  Recorded recorded;
  train(config, recorded);
  for (const char* name : {"train_00000", "train_00001", "validation_00000"}) {
    change(name, [](TokenSidecar& s) { s.tokenizer_hash = "0123456789abcdef"; });
  }
  config.run.resume = config.run.out;
  config.train.steps = 4;
  expect_error([&] { train(config, recorded); }, {"bytes", "0123456789abcdef"});
}

}  // namespace
}  // namespace quern
