#include "run/run_tokenizer.h"
#include "run/make_context.h"

#include <gtest/gtest.h>

#include "data/token_file.h"
#include "run/saved_model.h"
#include "support/files.h"
#include "support/token_files.h"
#include "support/training.h"
#include "text/tokenizer_files.h"

namespace quern {
namespace {

using namespace testing_support;
namespace fs = std::filesystem;

const fs::path kFixtures = testing_support::source_folder() / "tests/fixtures/tokenizers";

// A folder as written by `quern data prepare`: token files, and the tokenizer beside them.
class RunTokenizerTest : public ::testing::Test {
 protected:
  RunTokenizerTest() {
    write_corpus(text_, 20'000);
    copy_tokenizer(kFixtures / "exact", data_ / "tokenizer");
    const auto tokenizer = open_tokenizer(kFixtures / "exact");
    write_token_file(data_ / "train_00000.bin", tokenizer->encode(read_file(text_)),
                     TokenEncoding::llmc_u16);
    config_ = tiny_config(data_ / "train_00000.bin", folder_ / "run");
    config_.model.vocab_size = 700;
    config_.train.steps = 3;
    config_.train.sample_every = 3;
    config_.train.checkpoint_every = 3;
    config_.sample.prompt = "the ";
    config_.sample.tokens = 5;
  }

  static void add_fixture(const std::string& name, const fs::path& folder) {
    fs::remove_all(folder);
    copy_tokenizer(kFixtures / name, folder);
  }

  TemporaryFolder folder_;
  fs::path text_ = folder_ / "text.txt", data_ = folder_ / "data";
  Config config_;
  std::string exact_ = tokenizer_hash(kFixtures / "exact");
};

TEST_F(RunTokenizerTest, IsFoundBesideTheTokensNamedOrFromTheModel) {
  EXPECT_EQ(find_run_tokenizer(config_, false).tokenizer->hash(), exact_);
  fs::rename(data_ / "tokenizer", folder_ / "elsewhere");
  EXPECT_EQ(find_run_tokenizer(config_, false).tokenizer, nullptr);
  config_.model.from = (folder_ / "elsewhere").string();
  EXPECT_EQ(find_run_tokenizer(config_, false).tokenizer->hash(), exact_);
  config_.model.from.clear();
  config_.data.tokenizer = (folder_ / "elsewhere").string();
  EXPECT_EQ(find_run_tokenizer(config_, false).tokenizer->hash(), exact_);
}

TEST_F(RunTokenizerTest, TextIsBytesAndNothingElse) {
  config_.data.train = text_.string();
  EXPECT_EQ(find_run_tokenizer(config_, true).tokenizer->kind(), "bytes");
  config_.data.tokenizer = "bytes";
  EXPECT_EQ(find_run_tokenizer(config_, true).tokenizer->kind(), "bytes");
  config_.data.tokenizer = (data_ / "tokenizer").string();
  expect_error([&] { find_run_tokenizer(config_, true); },
               {"text.txt is text", "quern data prepare", "--tokenizer " + config_.data.tokenizer});
}

TEST_F(RunTokenizerTest, TwoDifferentOnesAreRefused) {
  add_fixture("prefix", folder_ / "other");
  config_.data.tokenizer = (folder_ / "other").string();
  expect_error([&] { find_run_tokenizer(config_, false); },
               {"two tokenizers", (data_ / "tokenizer").string(), exact_,
                tokenizer_hash(folder_ / "other")});
}

TEST_F(RunTokenizerTest, NoneIsNone) {
  config_.data.tokenizer = "none";
  EXPECT_EQ(find_run_tokenizer(config_, false).tokenizer, nullptr);
  expect_error([&] { find_run_tokenizer(config_, true); },
               {"tokenizer is none, but data.train", "is text", "expected token files"});
  Recorded recorded;
  train(config_, recorded);
  EXPECT_TRUE(recorded.samples.empty());
  EXPECT_FALSE(fs::exists(folder_ / "run/tokenizer"));
  config_.run = {"", (folder_ / "run").string()};
  config_.train.steps = 4;
  train(config_, recorded);
}

TEST_F(RunTokenizerTest, TheModelsOwnMustBeWholeAndFitIt) {
  const fs::path model = folder_ / "model";
  fs::rename(data_ / "tokenizer", model);
  config_.model.from = model.string();
  config_.model.vocab_size = 699;
  expect_error([&] { find_run_tokenizer(config_, false); },
               {"model/tokenizer.", "has 700 tokens", "vocab_size is 699", "--tokenizer none"});
  config_.data.tokenizer = (kFixtures / "exact").string();  // the same
  expect_error([&] { find_run_tokenizer(config_, false); },
               {"has 700 tokens", "vocab_size is 699", "--tokenizer none"});
  config_.data.tokenizer.clear();
  write_file(model / "tokenizer.json", "{}");
  expect_error([&] { find_run_tokenizer(config_, false); },
               {"model/tokenizer.json: has no model", "--tokenizer none"});
}

TEST_F(RunTokenizerTest, ARunOnTokensSamplesTextAndKeepsTheTokenizer) {
  Recorded recorded;
  train(config_, recorded);
  ASSERT_EQ(recorded.samples.size(), 1u);
  EXPECT_TRUE(recorded.samples[0].starts_with("the ")) << recorded.samples[0];
  EXPECT_EQ(tokenizer_hash(folder_ / "run"), exact_);
  const auto context = make_context(config_.compute, 0);
  const ContextScope scope(*context);
  const SavedModel saved = load_saved_model(folder_ / "run", true, config_.compute);
  EXPECT_EQ(saved.state.tokenizer, exact_);
  EXPECT_FALSE(saved.state.is_text);
  ASSERT_TRUE(saved.tokenizer);
  EXPECT_EQ(saved.tokenizer->hash(), exact_);
}

TEST_F(RunTokenizerTest, ACheckpointKnowsItsTokenizer) {
  Recorded recorded;
  train(config_, recorded);
  add_fixture("prefix", folder_ / "run/tokenizer");
  const auto context = make_context(config_.compute, 0);
  const ContextScope scope(*context);
  expect_error([&] { load_saved_model(folder_ / "run", true, config_.compute); },
               {"run/tokenizer", "is not the tokenizer", exact_});
}

TEST_F(RunTokenizerTest, ResumeChecksIt) {
  Recorded recorded;
  train(config_, recorded);
  config_.run = {"", (folder_ / "run").string()};
  config_.train.steps = 6;
  add_fixture("prefix", data_ / "tokenizer");
  expect_error([&] { train(config_, recorded); }, {"two tokenizers"});
  add_fixture("prefix", folder_ / "run/tokenizer");
  expect_error([&] { train(config_, recorded); }, {"resume", "tokenizer", exact_});
  add_fixture("exact", data_ / "tokenizer");
  add_fixture("exact", folder_ / "run/tokenizer");
  train(config_, recorded);
  EXPECT_EQ(recorded.steps.back().step, 6);
}

TEST_F(RunTokenizerTest, AResumedRunNeedsNoOriginal) {
  Recorded recorded;
  config_.data.tokenizer = (folder_ / "named").string();
  add_fixture("exact", config_.data.tokenizer);
  train(config_, recorded);
  fs::remove_all(config_.data.tokenizer);
  fs::remove_all(data_ / "tokenizer");
  expect_error([&] { find_run_tokenizer(config_, false); }, {"named"});
  config_.run = {"", (folder_ / "run").string()};
  EXPECT_EQ(find_run_tokenizer(config_, false).path, folder_ / "run/tokenizer");
}

TEST_F(RunTokenizerTest, TokensOfAnUnknownOneHaveNoText) {
  fs::remove_all(data_ / "tokenizer");
  Recorded recorded;
  train(config_, recorded);
  EXPECT_TRUE(recorded.samples.empty());
  EXPECT_FALSE(fs::exists(folder_ / "run/tokenizer"));
  const auto context = make_context(config_.compute, 0);
  const ContextScope scope(*context);
  EXPECT_FALSE(load_saved_model(folder_ / "run", true, config_.compute).tokenizer);
}

TEST_F(RunTokenizerTest, FoldersWithoutOneCountAsNone) {
  fs::remove_all(data_ / "tokenizer");
  fs::create_directory(data_ / "tokenizer");
  config_.model.from = (golden_folder() / "mha").string();
  EXPECT_EQ(find_run_tokenizer(config_, false).tokenizer, nullptr);
  config_.model.from = (folder_ / "no").string();
  EXPECT_EQ(find_run_tokenizer(config_, false).tokenizer, nullptr);
}

TEST_F(RunTokenizerTest, AnOlderCheckpointNamesNone) {
  const fs::path checkpoint = folder_ / "run/checkpoints/step_00000001";
  write_file(checkpoint / "manifest.json", "{}");
  add_fixture("exact", folder_ / "run/tokenizer");
  TrainState state;
  EXPECT_EQ(saved_tokenizer(checkpoint, state)->hash(), exact_);
  state.tokenizer = exact_;
  EXPECT_EQ(saved_tokenizer(checkpoint, state)->hash(), exact_);
  state.tokenizer = "another";
  expect_error([&] { saved_tokenizer(checkpoint, state); }, {"expected another"});
}

TEST(SavedModel, TakesNoOtherModel) {
  SavedModel saved;
  saved.checkpoint = "here";
  saved.state.model = tiny_model();
  Config config;
  EXPECT_NO_THROW(saved.check_given(config, {"from"}));
  config.model.from = "there";
  expect_error([&] { saved.check_given(config, {"from"}); },
               {"found --from there", "leave --from out"});
}

}  // namespace
}  // namespace quern
