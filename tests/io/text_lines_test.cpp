#include "io/text_lines.h"

#include <gtest/gtest.h>

#include "io/utf8.h"
#include "support/files.h"

namespace quern {
namespace {

using namespace testing_support;

std::vector<std::string> lines_of(const std::vector<std::string>& contents) {
  const TemporaryFolder folder;
  std::vector<std::filesystem::path> files;
  for (const std::string& content : contents) {
    files.push_back(write_file(folder / std::to_string(files.size()), content));
  }
  TextLines lines(files);
  std::vector<std::string> all;
  for (std::string line; lines.next(line);) all.push_back(line);
  EXPECT_EQ(lines.files_done(), 1.0);
  return all;
}

TEST(TextLines, EndAtControlCharactersAndFiles) {
  using Lines = std::vector<std::string>;
  EXPECT_EQ(lines_of({"one\ntwo\r\n\n\tthree\tfour", "five", "", "\n"}),
            (Lines{"one", "two", "three", "four", "five"}));
  EXPECT_EQ(lines_of({}), Lines{});
  EXPECT_EQ(lines_of({std::string("a\0b", 3)}), (Lines{"a", "b"}));
}

TEST(TextLines, KeepSpacesAndDropWhatIsNoUtf8) {
  EXPECT_EQ(lines_of({"  x  \n\xFF\xC3\xA9\xC3 y\n\xFF"}),
            (std::vector<std::string>{"  x  ", "\xC3\xA9 y"}));
}

// Long lines are cut before spaces, or else between characters, and no text is lost.
TEST(TextLines, LongLinesAreCut) {
  std::string words;
  std::string letters = "x";  // no piece of 4096 bytes would end with a whole character
  for (int i = 0; i < 60'000; ++i) words += i % 7 == 6 ? " " : "w";
  for (int i = 0; i < 100'000; ++i) letters += "\xC3\xA9";
  for (const std::string& text : {words, letters}) {
    std::string joined;
    for (const std::string& line : lines_of({text})) {
      EXPECT_LE(line.size(), TextLines::kLongest);
      EXPECT_GT(line.size(), 0u);
      EXPECT_EQ(valid_utf8_prefix(line), line.size());
      if (text == words && !joined.empty()) {
        EXPECT_EQ(line[0], ' ');
      }
      joined += line;
    }
    EXPECT_EQ(joined, text);
  }
}

// Each file has its own extractor, which gets the numbers of its non-blank lines.
TEST(TextLines, TheTextOfALineComesFromTheExtractorOfItsFile) {
  const TemporaryFolder folder;
  const auto first = write_file(folder / "first", "a\n\n \t\r\nb"),
             second = write_file(folder / "second", "c\n"),
             plain = write_file(folder / "plain", "d\n\n e"),
             last = write_file(folder / "last", "f");
  TextLines lines({first, second, plain, last}, [](const std::filesystem::path& file) -> LineText {
    if (file.filename() == "plain") return {};
    return [name = file.filename().string()](int64_t number, std::string_view line,
                                             std::string& text) {
      text = name + " " + std::to_string(number) + ": " + std::string(line);
    };
  });
  std::vector<std::string> all;
  std::vector<double> done;
  for (std::string line; lines.next(line); done.push_back(lines.files_done())) all.push_back(line);
  EXPECT_EQ(all, (std::vector<std::string>{"first 1: a", "first 4: b", "second 1: c", "d", " e",
                                           "last 1: f"}));
  EXPECT_EQ(done, (std::vector<double>{0.0, 0.25, 0.25, 0.5, 0.75, 1.0}));
}

TEST(TextLines, AMissingFileIsNamed) {
  TextLines lines({"/nowhere/text.txt"});
  std::string line;
  expect_error([&] { lines.next(line); }, {"/nowhere/text.txt"});
}

TEST(TextLines, ASpaceNearTheStartDoesNotCutALongLine) {
  const std::string text = "a " + std::string(5000, 'x');
  const std::vector<std::string> lines = lines_of({text});
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].size(), TextLines::kLongest);
}

TEST(TextLines, AnExtractorGetsTheLastLineWithAndWithoutItsEnd) {
  const TemporaryFolder folder;
  const auto upper = [](const std::filesystem::path&) {
    return [](int64_t number, std::string_view line, std::string& text) {
      text = cat(number, " ", line);
    };
  };
  for (const char* content : {"one\n \ntwo\n", "one\n \ntwo"}) {
    TextLines lines({write_file(folder / "a", content)}, upper);
    std::string first, second, none;
    EXPECT_TRUE(lines.next(first) && lines.next(second) && !lines.next(none));
    EXPECT_EQ(first, "1 one");
    EXPECT_EQ(second, "3 two");
  }
}

// 65 MiB of zeros without a line's end, which take no space on the disk.
TEST(TextLines, ALineForAnExtractorIsBounded) {
  const TemporaryFolder folder;
  const auto file = write_file(folder / "a", "");
  std::filesystem::resize_file(file, uintmax_t{65} << 20);
  const auto nothing = [](const std::filesystem::path&) {
    return [](int64_t, std::string_view, std::string&) {};
  };
  TextLines lines({file}, nothing);
  std::string line;
  expect_error([&] { lines.next(line); }, {"a: line 1 is longer than 67108864 bytes"});
}

}  // namespace
}  // namespace quern
