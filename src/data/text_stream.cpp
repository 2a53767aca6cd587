#include "data/text_stream.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "io/utf8.h"

namespace quern {

TextStream::TextStream(const Tokenizer& tokenizer, std::vector<int32_t> before,
                       std::vector<std::string> stops)
    : tokenizer_(tokenizer), window_(std::move(before)), stops_(std::move(stops)) {
  for (const std::string& stop : stops_) QUERN_CHECK(!stop.empty(), "stop: a string is empty");
  auto begin = window_.end();
  while (begin != window_.begin() && tokenizer_.decode({begin, window_.end()}).empty()) --begin;
  window_.erase(window_.begin(), begin);
}

std::string TextStream::push(int32_t token) {
  if (stopped_) return "";
  if (token < tokenizer_.vocabulary()) {
    const size_t known = tokenizer_.decode(window_).size();
    window_.push_back(token);
    const std::string text = tokenizer_.decode(window_).substr(known);
    if (!text.empty()) window_.erase(window_.begin(), window_.end() - 1);
    pending_ += text;
  } else {
    pending_ += "\uFFFD";
  }
  cut_at_stop();
  const size_t certain = pending_.size() - (stopped_ ? 0 : held_back());
  const std::string text = replace_invalid_utf8(std::string_view(pending_).substr(0, certain));
  pending_.erase(0, certain);
  return text;
}

std::string TextStream::finish() {
  const std::string text = replace_invalid_utf8(pending_);
  pending_.clear();
  return text;
}

// Cuts at the first start of any stop string.
void TextStream::cut_at_stop() {
  size_t first = std::string::npos;
  for (const std::string& stop : stops_) first = std::min(first, pending_.find(stop));
  if (first == std::string::npos) return;
  pending_.resize(first);
  stopped_ = true;
}

size_t TextStream::held_back() const {
  size_t held = unfinished_utf8_suffix(pending_);
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, pending_.size()); n > held; --n) {
      if (pending_.ends_with(std::string_view(stop).substr(0, n))) held = n;
    }
  }
  return held;
}

namespace {

// What \n, \t or a backslash before one of `plain` at text[i] stands for.
std::optional<char> escape_at(std::string_view text, size_t i, std::string_view plain) {
  if (text[i] != '\\' || i + 1 == text.size()) return {};
  const char next = text[i + 1];
  if (next == 'n') return '\n';
  if (next == 't') return '\t';
  return plain.find(next) != plain.npos ? std::optional(next) : std::nullopt;
}

}  // namespace

std::string unescape(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const std::optional<char> escape = escape_at(text, i, "\\");
    out += escape.value_or(text[i]);
    i += escape.has_value();
  }
  return out;
}

std::vector<std::string> split_stop_strings(std::string_view text) {
  std::vector<std::string> strings;
  if (text.empty()) return strings;
  strings.emplace_back();
  for (size_t i = 0; i < text.size(); ++i) {
    const std::optional<char> escape = escape_at(text, i, "\\|");
    if (!escape && text[i] == '|') {
      strings.emplace_back();
    } else {
      strings.back() += escape.value_or(text[i]);
    }
    i += escape.has_value();
  }
  for (const std::string& string : strings) {
    QUERN_CHECK(!string.empty(), "stop: '", text,
                "' has an empty string, expected strings separated by |");
  }
  return strings;
}

}  // namespace quern
