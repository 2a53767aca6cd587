#include "support/token_files.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "base/error.h"
#include "io/atomic_file.h"

namespace quern::testing_support {

namespace {

template <class Element>
void write_elements(AtomicFile& file, std::span<const int32_t> tokens) {
  const std::vector<Element> elements(tokens.begin(), tokens.end());
  file.write(std::as_bytes(std::span(elements)));
}

void check_tokens(const std::filesystem::path& path, std::span<const int32_t> tokens,
                  TokenEncoding encoding) {
  QUERN_CHECK(encoding == TokenEncoding::raw_u16 ||
                  tokens.size() <= size_t{std::numeric_limits<int32_t>::max()},
              path.string(), ": ", tokens.size(), " tokens are more than llm.c's header can count");
  const int32_t largest = encoding == TokenEncoding::llmc_u32
                              ? std::numeric_limits<int32_t>::max()
                              : int32_t{std::numeric_limits<uint16_t>::max()};
  const auto bad = std::find_if(tokens.begin(), tokens.end(),
                                [=](int32_t token) { return token < 0 || token > largest; });
  QUERN_CHECK(bad == tokens.end(), path.string(), ": token ", bad - tokens.begin(), " is ", *bad,
              ", expected 0 to ", largest);
}

}  // namespace

void write_token_file(const std::filesystem::path& path, std::span<const int32_t> tokens,
                      TokenEncoding encoding) {
  check_tokens(path, tokens, encoding);
  AtomicFile file(path);
  if (encoding != TokenEncoding::raw_u16) {
    file.write(llmc_header(static_cast<int64_t>(tokens.size()), encoding));
  }
  if (bytes_per_token(encoding) == 4) {
    write_elements<uint32_t>(file, tokens);
  } else {
    write_elements<uint16_t>(file, tokens);
  }
  file.commit();
}

}  // namespace quern::testing_support
