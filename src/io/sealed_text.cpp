#include "io/sealed_text.h"

#include <string_view>

#include "base/error.h"
#include "io/checksum.h"

namespace quern {

namespace {

constexpr std::string_view kSeal = "# xxh3 ";

}  // namespace

std::string sealed(std::string text) {
  text += cat(kSeal, checksum_of(text), '\n');
  return text;
}

std::string unsealed(std::string text, const std::filesystem::path& path) {
  const size_t end = text.ends_with('\n') ? text.size() - 1 : text.size();
  const size_t newline = end == 0 ? std::string::npos : text.rfind('\n', end - 1);
  const size_t begin = newline == std::string::npos ? 0 : newline + 1;
  const std::string last = text.substr(begin, end - begin);
  if (!last.starts_with(kSeal)) return text;
  text.resize(begin);
  const std::string found = checksum_of(text), expected = last.substr(kSeal.size());
  QUERN_CHECK(found == expected, path.string(), ": its lines have the checksum ", found,
              ", expected ", expected,
              " as its last line says: it is damaged; after an edit by hand, remove that line");
  return text;
}

}  // namespace quern
