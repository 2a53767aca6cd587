// README, docs/ and benchmarks/ show code and name files that exist.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <regex>

#include "support/page.h"

namespace quern {
namespace {

namespace fs = std::filesystem;
using namespace testing_support;

std::vector<fs::path> all_pages() {
  std::vector<fs::path> pages;
  for (const char* folder : {"", "docs", "benchmarks", "benchmarks/results"}) {
    for (const auto& entry : fs::directory_iterator(source_folder() / folder)) {
      if (entry.path().extension() == ".md") pages.push_back(entry.path());
    }
  }
  return pages;
}

// Calls f with each match of `pattern` in the page.
template <class F>
void for_each_match(const fs::path& page, const std::string& pattern, F&& f) {
  const std::string text = read_file(page);
  const std::regex expression(pattern);
  for (std::sregex_iterator at(text.begin(), text.end(), expression), end; at != end; ++at) f(*at);
}

int64_t lines_of(const fs::path& path) {
  const std::string text = read_file(path);
  return std::count(text.begin(), text.end(), '\n');
}

TEST(Pages, ArchitectureShowsTheCode) {
  EXPECT_EQ(pieces_of_page("architecture.md"), 5);
}

TEST(Pages, ReadmeAndLibraryShowTheExamples) {
  EXPECT_EQ(pieces_of_page("../README.md"), 1);
  EXPECT_EQ(pieces_of_page("library.md"), 5);
}

// Paths in backticks, which may begin at the root, at src/ or beside the page: `nn/linear.h`,
// `text/{bpe,byte}_tokenizer.h` is left out.
TEST(Pages, NameFilesThatExist) {
  int found = 0;
  for (const fs::path& page : all_pages()) {
    for_each_match(page, "`((?:[a-z_0-9.-]+/)+[a-z_0-9-]+\\.(?:h|cpp|cu|cuh|py|sh|toml|md))`",
                   [&](const std::smatch& match) {
                     const std::string name = match[1];
                     const bool exists = fs::exists(source_folder() / name) ||
                                         fs::exists(source_folder() / "src" / name) ||
                                         fs::exists(source_folder() / "tests" / name) ||
                                         fs::exists(page.parent_path() / name);
                     EXPECT_TRUE(exists) << page.filename() << " names " << name;
                     ++found;
                   });
  }
  EXPECT_GT(found, 50);
}

// The numbered steps of the page: each "3. ..." with its indented lines.
std::vector<std::string> steps_of(const fs::path& page) {
  std::vector<std::string> steps;
  for_each_match(page, "\n[0-9]+\\. [^\n]*(?:\n   [^\n]*)*",
                 [&](const std::smatch& match) { steps.push_back(match[0]); });
  return steps;
}

// A step that names a source file names only things that this file, or another of its files, has:
// "3. A case in `make_optimizer` (`run/make_optimizer.cpp`)."
int check_names_of_step(const std::string& step) {
  const std::regex quoted("`([^`\n]+)`"), file("[a-z_0-9./]+\\.(?:h|cpp|cu|cuh)"),
      name("([A-Za-z_][A-Za-z_0-9]*)(?:\\(\\))?");
  std::vector<std::string> names;
  std::string sources;
  for (std::sregex_iterator at(step.begin(), step.end(), quoted), end; at != end; ++at) {
    const std::string word = (*at)[1];
    std::smatch match;
    if (std::regex_match(word, file)) {
      const fs::path path = source_folder() / word;
      sources += read_file(fs::exists(path) ? path : source_folder() / "src" / word);
    } else if (std::regex_match(word, match, name)) {
      names.push_back(match[1]);
    }
  }
  if (sources.empty()) return 0;
  for (const std::string& one : names) {
    EXPECT_TRUE(std::regex_search(sources, std::regex("\\b" + one + "\\b")))
        << one << " is not in the files of the step" << step;
  }
  return static_cast<int>(names.size());
}

TEST(Pages, StepsNameWhatTheirFilesHave) {
  const auto names_of = [](const char* name) {
    int names = 0;
    for (const std::string& step : steps_of(source_folder() / "docs" / name)) {
      names += check_names_of_step(step);
    }
    return names;
  };
  EXPECT_GE(names_of("adding_an_op.md"), 4);
  EXPECT_GE(names_of("adding_a_block.md"), 6);
  EXPECT_GE(names_of("adding_an_optimizer.md"), 5);
}

// The heading's anchor as GitHub makes it.
std::string anchor_of(const std::string& heading) {
  std::string anchor;
  for (const char c : heading) {
    if (c == ' ' || c == '-') anchor += '-';
    if (std::isalnum(static_cast<unsigned char>(c)) || c == '_') {
      anchor += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  return anchor;
}

TEST(Pages, LinkToFilesAndHeadingsThatExist) {
  int found = 0;
  for (const fs::path& page : all_pages()) {
    for_each_match(page, "\\]\\(([^)#: ]*)(?:#([^) ]+))?\\)", [&](const std::smatch& match) {
      const std::string name = match[1], anchor = match[2];
      const fs::path target = name.empty() ? page : page.parent_path() / name;
      EXPECT_TRUE(fs::exists(target)) << page.filename() << " links to " << name;
      ++found;
      if (anchor.empty() || !fs::exists(target)) return;
      bool has_heading = false;
      for_each_match(target, "(?:^|\n)#+ ([^\n]*)", [&](const std::smatch& heading) {
        has_heading = has_heading || anchor_of(heading[1]) == anchor;
      });
      EXPECT_TRUE(has_heading) << page.filename() << " links to " << name << "#" << anchor;
    });
  }
  EXPECT_GT(found, 80);
}

// The README stays short enough to read, and its reading path has the stated length.
TEST(Pages, ReadmeIsShort) {
  const fs::path readme = source_folder() / "README.md";
  EXPECT_LE(lines_of(readme), 180);
  int64_t total = 0;
  for_each_match(
      readme, "\n\\|[^|\n]*\\| (`src/[^|\n]*) \\| ([0-9]+) \\|", [&](const std::smatch& row) {
        const std::string files = row[1];
        const std::regex name("`([^`]+)`");
        int64_t lines = 0;
        for (std::sregex_iterator at(files.begin(), files.end(), name), end; at != end; ++at) {
          lines += lines_of(source_folder() / (*at)[1].str());
        }
        const double given = std::stod(row[2]);
        EXPECT_NEAR(static_cast<double>(lines), given, 0.25 * given) << files;
        total += lines;
      });
  EXPECT_GT(total, 800);
  EXPECT_LT(total, 1200);
}

}  // namespace
}  // namespace quern
