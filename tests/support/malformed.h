// A table of malformed files, each with the parts of the message that refuses it.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "support/files.h"

namespace quern::testing_support {

// The first words of a library in a message; empty: none. A message may quote those of `input`.
inline std::string raw_library_text(const std::string& message, const std::string& input = "") {
  for (const char* raw : {"json.exception", "parse error", "syntax error", "Error while", "std::",
                          "basic_string", "vector::", "map::at", "bad_alloc", "bad_variant",
                          "filesystem error", "stoi", "stod", "stol", "stoull", ".cc(", ".cpp"}) {
    if (message.find(raw) != std::string::npos && input.find(raw) == std::string::npos) return raw;
  }
  return "";
}

struct MalformedFile {
  std::string name;   // of the case
  std::string bytes;  // of the file
  // Parts of the message besides the file's name: the key, line or byte, if there is one; the value
  // or text that was found; what was expected instead.
  std::string place, found, expected;
};

// Expects read(path) to refuse each file of the table, written to `path`, in words of its own.
inline void expect_malformed(const std::filesystem::path& path,
                             const std::vector<MalformedFile>& table,
                             const std::function<void(const std::filesystem::path&)>& read) {
  std::set<std::string> messages;
  for (const MalformedFile& file : table) {
    SCOPED_TRACE(file.name);
    write_file(path, file.bytes);
    try {
      read(path);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      const std::string message = error.what();
      for (const std::string& part : {path.string(), file.place, file.found, file.expected}) {
        EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks: " << part;
      }
      EXPECT_FALSE(file.found.empty() || file.expected.empty());
      EXPECT_EQ(raw_library_text(message, file.bytes), "") << message;
      EXPECT_LT(message.size(), 500u) << message;
      EXPECT_TRUE(messages.insert(message).second) << "also of another file: " << message;
    }
  }
}

// `text` with its first `before`, which it must contain, replaced by `after`.
inline std::string replaced(std::string text, const std::string& before, const std::string& after) {
  const size_t at = text.find(before);
  if (at == std::string::npos) throw std::runtime_error(cat("the text lacks ", before));
  return text.replace(at, before.size(), after);
}

// `bytes` with one bit flipped.
inline std::string flipped(std::string bytes, size_t at) {
  bytes.at(at) = static_cast<char>(bytes[at] ^ 0x10);
  return bytes;
}

}  // namespace quern::testing_support
