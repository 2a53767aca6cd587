// A file that grows line by line, such as a log.
#pragma once

#include <filesystem>
#include <string_view>

#include "io/descriptor.h"

namespace quern {

class AppendFile {
 public:
  // Creates the file if absent. Throws naming the path when it cannot be opened.
  explicit AppendFile(std::filesystem::path path);

  void write(std::string_view text);  // all of it, or throws and leaves nothing of it in the file
  void sync();                        // to disk

 private:
  std::filesystem::path path_;
  Descriptor file_;
};

}  // namespace quern
