// Pages of docs/ that show code of the repository.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "support/files.h"

namespace quern::testing_support {

// The number of pieces of code on the page. Each follows the name of its source file; a piece that
// is not in that file is a failure.
inline int pieces_of_page(const std::string& name) {
  const std::string page = read_file(source_folder() / "docs" / name);
  const std::string open = "`:\n\n```cpp\n", close = "```\n";
  int pieces = 0;
  for (size_t at = page.find(open); at != std::string::npos; at = page.find(open, at + 1)) {
    const size_t begin = page.rfind('`', at - 1) + 1, code = at + open.size();
    const std::string path = page.substr(begin, at - begin);
    const std::string piece = page.substr(code, page.find(close, code) - code);
    EXPECT_NE(read_file(source_folder() / path).find(piece), std::string::npos)
        << "not in " << path << ":\n"
        << piece;
    ++pieces;
  }
  return pieces;
}

}  // namespace quern::testing_support
