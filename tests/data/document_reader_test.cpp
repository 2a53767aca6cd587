#include "data/document_reader.h"

#include <gtest/gtest.h>

#include <random>

#include "support/compress.h"
#include "support/files.h"
#include "support/random_text.h"
#include "text/byte_tokenizer.h"

namespace quern {
namespace {

using namespace testing_support;

using Strings = std::vector<std::string>;

class DocumentReaderTest : public testing::Test {
 protected:
  std::unique_ptr<DocumentReader> open(const std::string& bytes, ReadPosition from = {}) {
    write_file(path_, bytes);
    auto stream = open_byte_stream(path_);
    return json_lines_ ? read_json_lines(std::move(stream), from, options_)
                       : read_text_documents(std::move(stream), *cutter_, from, options_);
  }
  // The documents, assembled from their parts.
  Strings documents(const std::string& bytes) {
    const auto reader = open(bytes);
    Strings documents;
    TextBlock block;
    bool inside = false;
    while (reader->next(block)) {
      EXPECT_TRUE(block.bad.empty()) << block.bad[0].what;
      for (const DocumentPart& part : block.parts) {
        EXPECT_EQ(part.begins, !inside);
        if (part.begins) documents.emplace_back();
        documents.back() += block.text.substr(part.begin, part.size);
        inside = !part.ends;
      }
    }
    EXPECT_FALSE(inside);
    return documents;
  }
  // The text of the blocks, for JSONL.
  Strings blocks(const std::string& bytes) {
    const auto reader = open(bytes);
    Strings texts;
    TextBlock block;
    while (reader->next(block)) texts.push_back(block.text);
    return texts;
  }
  void set_pieces(PieceSizes sizes) { cutter_ = std::make_unique<PieceCutter>(bytes_, sizes); }

  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "file";
  ByteTokenizer bytes_;
  DocumentReaderOptions options_;
  std::unique_ptr<PieceCutter> cutter_ = std::make_unique<PieceCutter>(bytes_);
  bool json_lines_ = false;
};

TEST_F(DocumentReaderTest, AFileIsADocumentAsItIs) {
  EXPECT_EQ(documents("one\r\ntwo\n\n"), (Strings{"one\r\ntwo\n\n"}));
  EXPECT_EQ(documents("\n"), (Strings{"\n"}));
  EXPECT_EQ(documents(""), Strings{});
  EXPECT_EQ(documents("\xFF\x80 no UTF-8"), (Strings{"\xFF\x80 no UTF-8"}));
}

TEST_F(DocumentReaderTest, ByteOrderMarkIsDropped) {
  EXPECT_EQ(documents("\xEF\xBB\xBFtext\xEF\xBB\xBF"), (Strings{"text\xEF\xBB\xBF"}));
  EXPECT_EQ(documents("\xEF\xBB\xBF"), Strings{});
}

TEST_F(DocumentReaderTest, SeparatingLines) {
  options_.split_on = "<|endoftext|>";
  EXPECT_EQ(documents("a\nb\n<|endoftext|>\nc"), (Strings{"a\nb\n", "c"}));
  EXPECT_EQ(documents("a\r\n<|endoftext|>\r\nc\r\n"), (Strings{"a\r\n", "c\r\n"}));
  EXPECT_EQ(documents("<|endoftext|>\n<|endoftext|>\na\n<|endoftext|>"), (Strings{"a\n"}));
  // Only a whole line separates.
  EXPECT_EQ(documents("a<|endoftext|>\n<|endoftext|> \nb"),
            (Strings{"a<|endoftext|>\n<|endoftext|> \nb"}));
}

TEST_F(DocumentReaderTest, BlankLines) {
  options_.split_on = "blank";
  EXPECT_EQ(documents("a\nb\n\n \t\r\n\nc\n"), (Strings{"a\nb\n", "c\n"}));
  EXPECT_EQ(documents("\n\n"), Strings{});
  EXPECT_EQ(documents(" a\n  "), (Strings{" a\n"}));
}

TEST_F(DocumentReaderTest, CutAtAByte) {
  options_.cut_at = 4;
  EXPECT_EQ(documents("one\ntwo\n"), (Strings{"one\n", "two\n"}));
  options_.cut_at = 8;
  EXPECT_EQ(documents("one\ntwo\n"), (Strings{"one\ntwo\n"}));
  options_.cut_at = 100;
  EXPECT_EQ(documents("one\ntwo\n"), (Strings{"one\ntwo\n"}));
}

TEST_F(DocumentReaderTest, WhatIsNoText) {
  for (const auto& [bytes, what] :
       std::vector<std::pair<std::string, std::string>>{{"PAR1abcd", "is a Parquet file; `python3"},
                                                        {"PK\x03\x04", "zip"},
                                                        {"\xFD"
                                                         "7zXZ",
                                                         "xz"},
                                                        {"BZh91AY", "bzip2"},
                                                        {std::string("\xFF\xFE"
                                                                     "a\0",
                                                                     4),
                                                         "UTF-16"},
                                                        {std::string("abc\0", 4), "byte 3 is 0"},
                                                        {gzip(gzip("text")), "compressed twice"}}) {
    for (const bool json_lines : {false, true}) {
      json_lines_ = json_lines;
      const auto reader = open(bytes);
      TextBlock block;
      ASSERT_TRUE(reader->next(block));
      ASSERT_EQ(block.bad.size(), 1u);
      EXPECT_EQ(block.bad[0].kind, BadInput::Kind::not_text);
      EXPECT_NE(block.bad[0].what.find(what), std::string::npos) << block.bad[0].what;
      EXPECT_TRUE(block.parts.empty() && block.text.empty());
      EXPECT_FALSE(reader->next(block));
    }
  }
}

// Documents do not depend on blocks and pieces, and a reader continues where another one stopped.
TEST_F(DocumentReaderTest, GoesOnAtEveryPosition) {
  std::mt19937 random(3);
  std::string text;
  for (int i = 0; i < 40; ++i) {
    text += random_text(random, random() % 300) + (i % 2 == 0 ? "\n\n" : "\n--\n");
  }
  for (const std::string split_on : {"", "--", "blank"}) {
    options_.split_on = split_on;
    set_pieces({});
    options_.block = 1 << 20;
    const Strings expected = documents(text);
    for (const size_t block_bytes : {1, 50, 1000}) {
      set_pieces({16, 40, 8});
      options_.block = block_bytes;
      EXPECT_EQ(documents(text), expected) << split_on << " " << block_bytes;
      // A reader from each position gives the rest of the parts.
      const auto reader = open(text);
      std::vector<TextBlock> blocks(1);
      while (reader->next(blocks.back())) blocks.emplace_back();
      blocks.pop_back();
      for (size_t i = 0; i < blocks.size(); i += 3) {
        const auto continued = open(text, blocks[i].begin);
        TextBlock block;
        ASSERT_TRUE(continued->next(block));
        ASSERT_EQ(block.text, blocks[i].text) << split_on << " block " << i;
        ASSERT_EQ(block.end, blocks[i].end);
        ASSERT_EQ(block.parts.size(), blocks[i].parts.size());
        for (size_t k = 0; k < block.parts.size(); ++k) {
          ASSERT_EQ(block.parts[k].begins, blocks[i].parts[k].begins);
          ASSERT_EQ(block.parts[k].ends, blocks[i].parts[k].ends);
        }
      }
    }
  }
}

// A long line is cut inside; its rest is not the start of a line.
TEST_F(DocumentReaderTest, TheMiddleOfALineIsNoSeparator) {
  options_.split_on = "xxxxxxxx";
  options_.block = 1;
  set_pieces({8, 8, 0});
  const std::string text = std::string(16, 'x') + "\nxxxxxxxx\ny";
  EXPECT_EQ(documents(text), (Strings{std::string(16, 'x') + "\n", "y"}));
  const auto reader = open(text);
  TextBlock block;
  ASSERT_TRUE(reader->next(block));
  EXPECT_TRUE(block.end.in_line);
  const auto continued = open(text, block.end);
  ASSERT_TRUE(continued->next(block));
  EXPECT_EQ(block.text, "xxxxxxxx");
  EXPECT_FALSE(block.parts[0].begins);
}

TEST_F(DocumentReaderTest, JsonLinesAreKeptWhole) {
  json_lines_ = true;
  options_.block = 8;
  EXPECT_EQ(blocks("aa\nbb\ncc\ndddddddddddddddd\ne"),
            (Strings{"aa\nbb\n", "cc\n", "dddddddddddddddd\n", "e"}));
  EXPECT_EQ(blocks("\xEF\xBB\xBF{}\n"), (Strings{"{}\n"}));
  EXPECT_EQ(blocks(""), Strings{});
}

TEST_F(DocumentReaderTest, JsonLinesAreCounted) {
  json_lines_ = true;
  options_.block = 4;
  const std::string text = "a\nb\nc\n\nd\n";
  const auto reader = open(text);
  TextBlock block, again;
  for (const int64_t line : {1, 3, 5}) {
    ASSERT_TRUE(reader->next(block));
    EXPECT_EQ(block.begin.line, line);
    ASSERT_TRUE(open(text, block.begin)->next(again));
    EXPECT_EQ(again.text, block.text);
  }
  EXPECT_EQ(block.end.line, 6);
  EXPECT_FALSE(reader->next(block));
}

TEST_F(DocumentReaderTest, JsonLinesThatAreTooLong) {
  json_lines_ = true;
  options_.block = 4;
  options_.longest_line = 10;
  const auto reader = open("a\n" + std::string(600'000, 'x') + "\nb\n" + std::string(50, 'y'));
  TextBlock block;
  ASSERT_TRUE(reader->next(block));
  EXPECT_EQ(block.text, "a\n");
  ASSERT_TRUE(reader->next(block));
  ASSERT_EQ(block.bad.size(), 1u);
  EXPECT_EQ(block.bad[0].kind, BadInput::Kind::too_long);
  EXPECT_EQ(block.bad[0].line, 2);
  ASSERT_TRUE(reader->next(block));
  EXPECT_EQ(block.text, "b\n");
  EXPECT_EQ(block.begin.line, 3);
  ASSERT_TRUE(reader->next(block));
  EXPECT_EQ(block.bad[0].line, 4);
  EXPECT_FALSE(reader->next(block));
}

TEST_F(DocumentReaderTest, LineAtAFraction) {
  const std::string text = "0123456\n89\nbc\n";
  for (const auto& bytes : {text, gzip(text), zstd(text)}) {
    write_file(path_, bytes);
    EXPECT_EQ(line_at_fraction(path_, 0.5), 8);  // byte 7 is the line feed
    EXPECT_EQ(line_at_fraction(path_, 0.6), 11);
  }
  write_file(path_, "no line feed \u4e2d\u6587");
  EXPECT_EQ(line_at_fraction(path_, 14.0 / 19.0), 16);  // the next character
  EXPECT_EQ(line_at_fraction(path_, 0.5), 9);
}

// The reader looks one window ahead; the line may end at the window's last byte.
TEST_F(DocumentReaderTest, TheMiddleLineMayEndWithTheWindow) {
  constexpr size_t kWindow = size_t{1} << 20, kHalf = kWindow + 10;
  std::string text(2 * kHalf, 'a');
  text[kHalf + kWindow - 1] = '\n';
  write_file(path_, text);
  EXPECT_EQ(line_at_fraction(path_, 0.5), static_cast<int64_t>(kHalf + kWindow));
}

}  // namespace
}  // namespace quern
