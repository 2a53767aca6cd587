// A file that grows line by line, such as a log.
#pragma once

#include <filesystem>
#include <string_view>

namespace quern {

class AppendFile {
 public:
  // Creates the file if absent. Throws naming the path when it cannot be opened.
  explicit AppendFile(std::filesystem::path path);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  void write(std::string_view text);  // all of it, or throws and leaves nothing of it in the file
  void sync();                        // to disk

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace quern
