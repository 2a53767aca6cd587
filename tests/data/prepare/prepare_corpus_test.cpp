// prepare.h on a corpus of all kinds of input: options that do not affect the result, and
// interrupted runs.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "data/prepare/prepare.h"
#include "data/prepare/prepare_fixture.h"
#include "support/compress.h"
#include "support/file_size_limit.h"
#include "support/random_text.h"
#include "text/tokenizer_files.h"

namespace quern {
namespace {

namespace fs = std::filesystem;
using namespace testing_support;

// A corpus of all kinds of input: JSONL, text, compressed; documents of 0 to 3000 bytes.
class PrepareCorpus : public Prepare {
 protected:
  PrepareCorpus() {
    std::mt19937 random(11);
    for (int file = 0; file < 4; ++file) {
      std::string lines, text;
      for (int i = 0; i < 60; ++i) {
        const std::string document = random_text(random, random() % 3000);
        documents_.push_back(document);
        lines += nlohmann::json{{"id", i}, {"text", document}}.dump() + "\n";
        text += document;
      }
      input("a" + std::to_string(file) + ".jsonl" + (file % 2 == 0 ? ".gz" : ""),
            file % 2 == 0 ? gzip(lines) : lines);
      documents_.push_back(text);
      input("b" + std::to_string(file) + ".txt.zst", zstd(text));
    }
    options_.validation_fraction = 0.2;
    options_.shard_tokens = 50'000;
    options_.block = 5'000;
    options_.pieces = {500, 4000, 100};
  }
  std::vector<std::string> documents_;  // in order
};

TEST_F(PrepareCorpus, DocumentsAreSplitAsAWhole) {
  prepare_data(options_);
  std::string train, validation;
  for (const auto& [part, text] : {std::pair("train", &train), {"validation", &validation}}) {
    const Tokens all = tokens(part);
    for (const int32_t token : all) {
      text->push_back(token == 256 ? '\xFF' : static_cast<char>(token));
    }
  }
  // Together, both parts hold the documents in order: each one is the next of one part.
  size_t in_train = 0, in_validation = 0, validated = 0, filled = 0;
  for (const std::string& document : documents_) {
    if (document.empty()) continue;
    ++filled;
    const std::string ended = document + '\xFF';
    if (train.compare(in_train, ended.size(), ended) == 0) {
      in_train += ended.size();
    } else {
      ASSERT_EQ(validation.compare(in_validation, ended.size(), ended), 0);
      in_validation += ended.size();
      ++validated;
    }
  }
  EXPECT_EQ(in_train, train.size());
  EXPECT_EQ(in_validation, validation.size());
  // 244 documents at 0.2: 49 expected, standard deviation 6.2; the tolerance is five of them.
  EXPECT_NEAR(static_cast<double>(validated), 0.2 * static_cast<double>(filled), 31.0);
}

TEST_F(PrepareCorpus, NeitherThreadsNorBlocksChangeAByte) {
  for (const std::string& tokenizer : {std::string("bytes"), gpt2()}) {
    options_.tokenizer = tokenizer;
    if (tokenizer != "bytes") options_.end_token = "50";
    options_.threads = 1;
    options_.block = 1 << 20;
    fs::remove_all(out_);
    prepare_data(options_);
    const auto expected = contents();
    ASSERT_TRUE(expected.contains("validation_00001.bin") || tokenizer != "bytes");
    for (const auto& [threads, block] : {std::pair<int, size_t>{1, 1}, {3, 777}, {8, 40'000}}) {
      options_.threads = threads;
      options_.block = block;
      fs::remove_all(out_);
      prepare_data(options_);
      EXPECT_TRUE(contents() == expected) << threads << " threads, blocks of " << block;
    }
  }
}

TEST_F(PrepareCorpus, TheSeedChoosesOtherDocuments) {
  prepare_data(options_);
  const Tokens first = tokens("validation");
  options_.seed = 1;
  fs::remove_all(out_);
  prepare_data(options_);
  EXPECT_NE(tokens("validation"), first);
}

TEST_F(PrepareCorpus, SubwordsDecodeToTheText) {
  options_.tokenizer = gpt2();
  options_.end_token = "none";
  options_.validation_fraction = 0.0;
  prepare_data(options_);
  std::string expected;
  for (const std::string& document : documents_) expected += document;
  EXPECT_EQ(open_tokenizer(gpt2())->decode(tokens("train")), expected);
}

TEST_F(PrepareCorpus, GoesOnAfterAStopAnywhere) {
  prepare_data(options_);
  const auto expected = contents();
  std::atomic<bool> stop = false;
  options_.stop = &stop;
  options_.resume = true;
  options_.checkpoint_seconds = 0.0;
  for (const int stride : {7, 13}) {
    fs::remove_all(out_);
    int left = stride, runs = 0;
    options_.progress = [&](const PrepareProgress&) { stop = --left <= 0; };
    for (bool interrupted = true; interrupted; ++runs) {
      left = stride;
      stop = false;
      interrupted = prepare_data(options_).interrupted;
      EXPECT_EQ(fs::exists(out_), !interrupted);
      ASSERT_LT(runs, 2000);
    }
    EXPECT_GT(runs, 100 / stride);
    EXPECT_TRUE(contents() == expected) << "stopped after each " << stride << " blocks";
  }
}

TEST_F(PrepareCorpus, GoesOnAfterAFullDisk) {
  prepare_data(options_);
  const auto expected = contents();
  fs::remove_all(out_);
  options_.checkpoint_seconds = 0.0;
  {
    const FileSizeLimit limit(80'000);  // a shard is 101,024 bytes
    expect_error([&] { prepare_data(options_); },
                 {"train_00000.bin.part: cannot be written", "out.part", "--resume"});
  }
  expect_error([&] { prepare_data(options_); }, {"out.part", "--resume"});
  options_.resume = true;
  prepare_data(options_);
  EXPECT_TRUE(contents() == expected);
}

TEST_F(PrepareCorpus, ResumeRefusesAnotherTask) {
  std::atomic<bool> stop = true;
  options_.stop = &stop;
  ASSERT_TRUE(prepare_data(options_).interrupted);
  options_.resume = true;
  const PrepareOptions same = options_;
  const auto expect = [&](std::initializer_list<std::string> parts) {
    expect_error([&] { prepare_data(options_); }, parts);
    EXPECT_TRUE(fs::exists(part_ / "journal.jsonl"));
    options_ = same;
  };
  options_.seed = 5;
  expect({"journal.jsonl", "seed 0", "seed is 5"});
  options_.tokenizer = gpt2();
  options_.end_token = "none";
  expect({"tokenizer", "bytes"});
  options_.inputs.pop_back();
  expect({"8 sources", "there are 7"});
  std::swap(options_.inputs[0], options_.inputs[1]);
  expect({"source 1", "a0.jsonl.gz", "b0.txt.zst"});
  write_file(options_.inputs[2], read_file(options_.inputs[2]) + "{\"text\": \"x\"}\n");
  expect({"a1.jsonl", "has changed"});
}

TEST_F(PrepareCorpus, ResumeOfWhatIsThere) {
  options_.resume = true;  // without earlier work, a new run starts
  prepare_data(options_);
  EXPECT_TRUE(prepare_data(options_).was_complete);
  options_.seed = 5;
  expect_error([&] { prepare_data(options_); }, {"sources.json", "seed"});
  options_.resume = false;
  expect_error([&] { prepare_data(options_); }, {"out: exists already"});
  fs::remove(out_ / "sources.json");
  options_.resume = true;
  expect_error([&] { prepare_data(options_); }, {"was not prepared", "sources.json"});
}

TEST_F(PrepareCorpus, ADamagedJournal) {
  std::atomic<bool> stop = true;
  options_.stop = &stop;
  ASSERT_TRUE(prepare_data(options_).interrupted);
  stop = false;
  options_.resume = true;
  const fs::path journal = part_ / "journal.jsonl";
  const std::string whole = read_file(journal);
  write_file(journal, whole + "{\"finished\": [1, \"a");  // an incomplete line
  EXPECT_FALSE(prepare_data(options_).interrupted);
  fs::rename(out_, part_);
  write_file(journal, whole + "garbage\n");
  expect_error([&] { prepare_data(options_); },
               {"journal.jsonl: line 3 is damaged", "remove the folder and begin anew"});
}

// Single flipped bits in all that an interrupted run left: the resumed run notices, naming the
// file, or its result is that of the undisturbed run.
TEST_F(PrepareCorpus, ResumeTrustsNoDamagedFile) {
  prepare_data(options_);
  const auto expected = contents();
  fs::remove_all(out_);
  int left = 60;
  std::atomic<bool> stop = false;
  options_.stop = &stop;
  options_.progress = [&](const PrepareProgress&) { stop = --left <= 0; };
  options_.checkpoint_seconds = 0.0;
  ASSERT_TRUE(prepare_data(options_).interrupted);
  stop = false;
  options_.progress = nullptr;
  options_.resume = true;
  const fs::path saved = folder_ / "saved";
  fs::copy(part_, saved);
  constexpr int kFlips = 6;  // in each file
  std::map<std::string, int> refused;
  uint32_t random = 7;
  for (const fs::directory_entry& entry : fs::directory_iterator(saved)) {
    const std::string name = entry.path().filename().string(), whole = read_file(entry.path());
    for (int i = 0; i < kFlips; ++i) {
      random = random * 1664525u + 1013904223u;
      const size_t bit = (random >> 8) % (8 * whole.size());
      SCOPED_TRACE(cat(name, ", bit ", bit));
      std::string damaged = whole;
      damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
      fs::remove_all(part_);
      fs::remove_all(out_);
      fs::copy(saved, part_);
      write_file(part_ / name, damaged);
      try {
        prepare_data(options_);
        EXPECT_TRUE(contents() == expected);
      } catch (const Error& error) {
        ++refused[name];
        const std::string what = error.what();
        EXPECT_NE(what.find(name), std::string::npos) << what;
        EXPECT_NE(what.find("remove the folder and begin anew"), std::string::npos) << what;
      }
    }
  }
  EXPECT_GE(refused["journal.jsonl"], kFlips - 1);  // the last line feed may be the one
  EXPECT_EQ(refused["train_00000.bin"], kFlips);
  EXPECT_EQ(refused["train_00000.json"], 0);  // is written again
}

TEST_F(PrepareCorpus, AKillBeforeTheFirstLineOrAtTheFinalRename) {
  prepare_data(options_);
  const auto expected = contents();
  for (const bool resume : {false, true}) {
    for (const std::string begun : {"", "0123456789abcdef {\"format\""}) {
      fs::remove_all(out_);
      fs::create_directory(part_);
      write_file(part_ / "journal.jsonl", begun);
      options_.resume = resume;
      prepare_data(options_);
      EXPECT_TRUE(contents() == expected) << "resume " << resume << ", journal " << begun;
    }
  }
  fs::remove_all(out_);
  write_file(part_ / "mine.txt", "kept");
  expect_error([&] { prepare_data(options_); }, {"out.part", "is not the work"});
  EXPECT_EQ(read_file(part_ / "mine.txt"), "kept");
  fs::remove_all(part_);
  prepare_data(options_);
  fs::rename(out_, part_);  // the journal is gone already
  options_.resume = false;
  expect_error([&] { prepare_data(options_); }, {"out.part", "--resume"});
  options_.resume = true;
  options_.seed = 5;
  expect_error([&] { prepare_data(options_); }, {"sources.json", "seed"});
  options_.seed = 0;
  EXPECT_TRUE(prepare_data(options_).was_complete);
  EXPECT_TRUE(contents() == expected);
  EXPECT_FALSE(fs::exists(part_));
}

// For any documents, files, blocks, pieces and threads, the tokens are those of each document
// encoded in one call.
TEST_F(Prepare, RandomDocumentsGiveTheirOwnTokens) {
  std::mt19937 random(21);
  const auto between = [&](size_t low, size_t high) { return low + random() % (high - low + 1); };
  for (const std::string& name : {std::string("bytes"), gpt2()}) {
    const auto tokenizer = open_tokenizer(name);
    options_.tokenizer = name;
    options_.end_token = "3";
    for (int round = 0; round < 12; ++round) {
      Tokens expected;
      options_.inputs.clear();
      for (size_t file = 0; file < 3; ++file) {
        const bool lines = random() % 2 == 0;
        std::string bytes;
        for (size_t i = 0; i < between(1, lines ? 20 : 1); ++i) {
          const std::string text = random_text(random, between(0, lines ? 400 : 9000), lines);
          bytes += lines ? nlohmann::json{{"text", text}}.dump() + "\n" : text;
          if (text.empty()) continue;
          const Tokens tokens = tokenizer->encode(text);
          expected.insert(expected.end(), tokens.begin(), tokens.end());
          expected.push_back(3);
        }
        input(std::to_string(file) + (lines ? ".jsonl" : ".txt"), bytes);
      }
      options_.block = between(1, 3000);
      options_.pieces = {between(50, 2000), 100'000, 64};
      options_.threads = static_cast<int>(between(1, 5));
      options_.shard_tokens = static_cast<int64_t>(between(500, 5000));
      if (expected.empty()) continue;
      ASSERT_EQ(train(), expected) << name << ", round " << round;
    }
  }
}

}  // namespace
}  // namespace quern
