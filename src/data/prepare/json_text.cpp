#include "data/prepare/json_text.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/json_file.h"
#include "io/utf8.h"

namespace quern {

std::string text_extension(std::filesystem::path path) {
  path = path.filename();
  for (const char* compressed : {".gz", ".zst", ".zstd"}) {
    if (path.extension() == compressed) path = path.stem();
  }
  return path.extension().string();
}

bool is_named_json_lines(const std::filesystem::path& path) {
  const std::string extension = text_extension(path);
  return extension == ".jsonl" || extension == ".ndjson";
}

void check_field_has_use(bool any_json_lines, const std::filesystem::path& first) {
  if (any_json_lines) return;
  throw UsageError(cat("--field has no meaning with text alone: found ", first.string(),
                       ", expected a JSONL file among the inputs"));
}

namespace {

using Json = nlohmann::json;

std::string quoted(std::string_view text) {
  constexpr size_t kMost = 30;
  if (text.size() <= kMost) return fmt::format("'{}'", text);
  return fmt::format("'{}...'", text.substr(0, valid_utf8_prefix(text.substr(0, kMost))));
}

// Reads one member of the outermost object; stores nothing else.
class FieldReader : public nlohmann::json_sax<Json> {
 public:
  FieldReader(const std::string& field, std::string& text) : field_(field), text_(text) {}

  bool null() override { return value("null"); }
  bool boolean(bool x) override { return value(x ? "true" : "false"); }
  bool number_integer(number_integer_t x) override { return value(fmt::format("{}", x)); }
  bool number_unsigned(number_unsigned_t x) override { return value(fmt::format("{}", x)); }
  bool number_float(number_float_t, const string_t& digits) override { return value(digits); }
  bool binary(binary_t&) override { return value("binary"); }
  bool string(string_t& x) override {
    if (depth_ != 1 || !at_field_) return value("a string");
    text_ = std::move(x);
    found_ = true;
    other_.clear();
    return true;
  }
  bool key(string_t& x) override {
    if (depth_ == 1) at_field_ = x == field_;
    return true;
  }
  bool start_object(size_t) override { return open("an object", true); }
  bool start_array(size_t) override { return open("an array", false); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(size_t position, const std::string&, const Json::exception& error) override {
    std::string what = json_reason(error.what());  // "line 1, column 7: syntax error"
    const size_t place = what.find(": ");
    if (place != std::string::npos) what.erase(0, place + 2);
    refuse(BadInput::Kind::bad_json, position, "is no JSON: " + what);
    return false;
  }

  std::optional<BadInput> outcome() const {
    if (bad_) return bad_;
    if (!other_.empty()) {
      return BadInput{BadInput::Kind::not_a_string, 0, 1,
                      fmt::format("field '{}' is {}, expected a string", field_, other_)};
    }
    if (found_) return std::nullopt;
    return BadInput{BadInput::Kind::no_field, 0, 1,
                    fmt::format("the object has no field '{}'", field_)};
  }

 private:
  void refuse(BadInput::Kind kind, size_t column, const std::string& what) {
    bad_ = BadInput{kind, 0, static_cast<int64_t>(std::max<size_t>(1, column)), what};
  }
  bool value(const std::string& what) {
    if (depth_ == 0 && !bad_) {
      refuse(BadInput::Kind::bad_json, 1, fmt::format("is {}, expected an object", what));
    }
    if (depth_ == 1 && at_field_) {
      other_ = what;
      found_ = false;
    }
    return true;  // continues, to find bad JSON behind it
  }
  bool open(const char* what, bool object) {
    if (depth_ > 0 || !object) value(what);
    ++depth_;
    if (depth_ > 1) at_field_ = false;
    return true;
  }
  bool close() {
    --depth_;
    return true;
  }

  const std::string& field_;
  std::string& text_;
  int depth_ = 0;
  bool at_field_ = false, found_ = false;
  std::string other_;  // the field's value, if it is not a string
  std::optional<BadInput> bad_;
};

}  // namespace

std::optional<BadInput> read_json_text(std::string_view line, const std::string& field,
                                       std::string& text) {
  const size_t good = valid_utf8_prefix(line);
  if (good < line.size()) {
    return BadInput{BadInput::Kind::bad_utf8, 0, static_cast<int64_t>(good) + 1,
                    fmt::format("byte 0x{:02X} is no UTF-8",
                                static_cast<unsigned>(static_cast<unsigned char>(line[good])))};
  }
  const size_t zero = line.find('\0');  // nlohmann takes it as the end
  if (zero != std::string_view::npos) {
    return BadInput{BadInput::Kind::bad_json, 0, static_cast<int64_t>(zero) + 1,
                    "is no JSON: this byte is 0"};
  }
  FieldReader reader(field, text);
  Json::sax_parse(line.begin(), line.end(), &reader);
  std::optional<BadInput> bad = reader.outcome();
  if (bad && bad->kind == BadInput::Kind::bad_json && bad->what.starts_with("is no JSON")) {
    bad->what += fmt::format(" (the line begins {})", quoted(line));
  }
  return bad;
}

}  // namespace quern
