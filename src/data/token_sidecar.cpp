#include "data/token_sidecar.h"

#include <algorithm>
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

std::string filled_text(const JsonPlace& place) {
  if (place.text().empty()) place.refuse("some text");
  return place.text();
}

TokenEncoding read_encoding(const JsonPlace& members) {
  const auto& names = kNamesOf<TokenEncoding>;
  const auto found = std::ranges::find(names, members.at("encoding").text());
  if (found == names.end()) members.refuse("encoding", "raw_u16, llmc_u16 or llmc_u32");
  return static_cast<TokenEncoding>(found - names.begin());
}

uint64_t read_checksum(const JsonPlace& members) {
  const std::string digits = members.at("xxh3").text();
  const bool valid =
      digits.size() == 16 && digits.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!valid) members.refuse("xxh3", "16 hexadecimal digits");
  return std::stoull(digits, nullptr, 16);
}

std::optional<int32_t> read_end_token(const JsonPlace& members, int64_t vocabulary) {
  QUERN_CHECK(members.json.contains("end_token"), members.where(), ": has no end_token");
  if (!members.has("end_token")) return std::nullopt;
  const int64_t token = members.at("end_token").count();
  if (token >= vocabulary) members.refuse("end_token", cat("less than vocabulary ", vocabulary));
  return static_cast<int32_t>(token);
}

}  // namespace

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
  const JsonFile json(path);
  const JsonPlace members = json.root();
  if (members.at("format").json != kFormat) members.refuse("format", cat('"', kFormat, '"'));
  if (members.at("version").count() != TokenSidecar::kVersion) {
    members.refuse("version", std::to_string(TokenSidecar::kVersion));
  }
  TokenSidecar sidecar;
  sidecar.encoding = read_encoding(members);
  sidecar.tokens = members.at("tokens").count();
  sidecar.documents = members.at("documents").count();
  sidecar.vocabulary = members.at("vocabulary").count();
  const bool has_vocabulary = sidecar.vocabulary > 0 && sidecar.vocabulary <= int64_t{1} << 31;
  if (!has_vocabulary) members.refuse("vocabulary", "1 to 2147483648");
  sidecar.end_token = read_end_token(members, sidecar.vocabulary);
  const JsonPlace tokenizer = members.object("tokenizer");
  sidecar.tokenizer_kind = filled_text(tokenizer.at("kind"));
  sidecar.tokenizer_hash = filled_text(tokenizer.at("hash"));
  const JsonPlace file = members.object("file");
  sidecar.file = {file.at("bytes").count(), read_checksum(file)};
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

// Reads the file: the pages of a mapped one would count as this process's memory.
FileDigest digest_of_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail_with_errno(path, "cannot be opened");
  DigestStream digest;
  std::vector<char> buffer(size_t{1} << 20);
  while (file) {
    file.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    digest.add(std::as_bytes(std::span(buffer).first(static_cast<size_t>(file.gcount()))));
  }
  if (file.bad()) fail_with_errno(path, "cannot be read");
  return digest.digest();
}

}  // namespace quern
