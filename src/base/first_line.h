// The first line of a text without its newline: shortens a message for a log or a warning.
#pragma once

#include <string>

namespace quern {

inline std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

}  // namespace quern
