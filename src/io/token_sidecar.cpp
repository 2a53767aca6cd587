#include "io/token_sidecar.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "io/atomic_file.h"
#include "io/json_file.h"

namespace quern {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

constexpr const char* kFormat = "quern tokens";

constexpr std::array kEncodings = {TokenEncoding::raw_u16, TokenEncoding::llmc_u16,
                                   TokenEncoding::llmc_u32};

// The members of one object of the sidecar, for messages that name the file and the key.
class Members {
 public:
  Members(const Json& object, std::string place) : object_(object), place_(std::move(place)) {}

  const Json& at(const char* key) const {
    QUERN_CHECK(object_.contains(key), place_, ": has no ", key);
    return object_[key];
  }
  [[noreturn]] void refuse(const char* key, const std::string& expected) const {
    fail(cat(place_, ": ", key, " is ", at(key).dump(), ", expected ", expected));
  }
  Members object(const char* key) const {
    if (!at(key).is_object()) refuse(key, "an object");
    return {at(key), cat(place_, ": ", key)};
  }
  std::string text(const char* key) const {
    if (!at(key).is_string() || at(key).get_ref<const std::string&>().empty()) {
      refuse(key, "a text");
    }
    return at(key).get<std::string>();
  }
  int64_t count(const char* key) const {
    const Json& value = at(key);
    const bool fits = value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t{INT64_MAX};
    if (!fits) refuse(key, "a whole number of 0 or more");
    return value.get<int64_t>();
  }

 private:
  const Json& object_;
  std::string place_;
};

TokenEncoding read_encoding(const Members& members) {
  const std::string name = members.text("encoding");
  for (const TokenEncoding encoding : kEncodings) {
    if (name == name_of(encoding)) return encoding;
  }
  members.refuse("encoding", "raw_u16, llmc_u16 or llmc_u32");
}

uint64_t read_checksum(const Members& members) {
  const std::string digits = members.text("xxh3");
  const bool valid =
      digits.size() == 16 && digits.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!valid) members.refuse("xxh3", "16 hexadecimal digits");
  return std::stoull(digits, nullptr, 16);
}

std::optional<int32_t> read_end_token(const Members& members, int64_t vocabulary) {
  if (members.at("end_token").is_null()) return std::nullopt;
  const int64_t token = members.count("end_token");
  if (token >= vocabulary) members.refuse("end_token", cat("less than vocabulary ", vocabulary));
  return static_cast<int32_t>(token);
}

}  // namespace

const char* name_of(TokenEncoding encoding) {
  switch (encoding) {
    case TokenEncoding::raw_u16: return "raw_u16";
    case TokenEncoding::llmc_u16: return "llmc_u16";
    case TokenEncoding::llmc_u32: return "llmc_u32";
  }
  fail("unknown token encoding");
}

fs::path sidecar_path(const fs::path& token_file) {
  return fs::path(token_file).replace_extension(".json");
}

void write_token_sidecar(const fs::path& token_file, const TokenSidecar& sidecar) {
  Json json;
  json["format"] = kFormat;
  json["version"] = TokenSidecar::kVersion;
  json["encoding"] = name_of(sidecar.encoding);
  json["tokens"] = sidecar.tokens;
  json["documents"] = sidecar.documents;
  json["vocabulary"] = sidecar.vocabulary;
  json["end_token"] = sidecar.end_token ? Json(*sidecar.end_token) : Json(nullptr);
  json["tokenizer"] = {{"kind", sidecar.tokenizer_kind}, {"hash", sidecar.tokenizer_hash}};
  json["file"] = {{"bytes", sidecar.file.bytes}, {"xxh3", hex(sidecar.file.xxh3)}};
  write_file_atomically(sidecar_path(token_file), json.dump(2) + "\n");
}

std::optional<TokenSidecar> read_token_sidecar(const fs::path& token_file) {
  const fs::path path = sidecar_path(token_file);
  std::error_code ignored;  // reading reports it
  if (path == token_file || !fs::exists(path, ignored)) return std::nullopt;
  const Json json = read_json_object(path);
  const Members members(json, path.string());
  if (members.at("format") != kFormat) members.refuse("format", cat('"', kFormat, '"'));
  if (members.count("version") != TokenSidecar::kVersion) {
    members.refuse("version", std::to_string(TokenSidecar::kVersion));
  }
  TokenSidecar sidecar;
  sidecar.encoding = read_encoding(members);
  sidecar.tokens = members.count("tokens");
  sidecar.documents = members.count("documents");
  sidecar.vocabulary = members.count("vocabulary");
  const bool has_vocabulary = sidecar.vocabulary > 0 && sidecar.vocabulary <= int64_t{1} << 31;
  if (!has_vocabulary) members.refuse("vocabulary", "1 to 2147483648");
  sidecar.end_token = read_end_token(members, sidecar.vocabulary);
  const Members tokenizer = members.object("tokenizer");
  sidecar.tokenizer_kind = tokenizer.text("kind");
  sidecar.tokenizer_hash = tokenizer.text("hash");
  const Members file = members.object("file");
  sidecar.file = {file.count("bytes"), read_checksum(file)};
  return sidecar;
}

void check_token_sidecar(const TokenSidecar& sidecar, const TokenFile& file) {
  const std::string path = file.path().string(), beside = sidecar_path(file.path()).string();
  QUERN_CHECK(file.encoding() == sidecar.encoding, path, ": is ", name_of(file.encoding()), ", ",
              beside, " says ", name_of(sidecar.encoding));
  QUERN_CHECK(file.size() == sidecar.tokens, path, ": has ", file.size(), " tokens, ", beside,
              " says ", sidecar.tokens);
  const auto bytes = static_cast<int64_t>(fs::file_size(file.path()));
  QUERN_CHECK(bytes == sidecar.file.bytes, path, ": has ", bytes, " bytes, ", beside, " says ",
              sidecar.file.bytes);
}

void verify_token_file(const TokenSidecar& sidecar, const fs::path& token_file) {
  const FileDigest digest = digest_of_file(token_file);
  QUERN_CHECK(digest == sidecar.file, token_file.string(), ": has ", digest.bytes,
              " bytes with checksum ", hex(digest.xxh3), ", ", sidecar_path(token_file).string(),
              " says ", sidecar.file.bytes, " with ", hex(sidecar.file.xxh3),
              ": it was changed after it was written");
}

FileDigest digest_of_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  QUERN_CHECK(file, path.string(), ": cannot be opened: ", std::strerror(errno));
  DigestStream digest;
  std::vector<char> buffer(size_t{1} << 20);
  while (file) {
    file.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    digest.add(std::as_bytes(std::span(buffer).first(static_cast<size_t>(file.gcount()))));
  }
  QUERN_CHECK(!file.bad(), path.string(), ": cannot be read: ", std::strerror(errno));
  return digest.digest();
}

}  // namespace quern
