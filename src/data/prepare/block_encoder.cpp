#include "data/prepare/block_encoder.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "data/prepare/json_text.h"

namespace quern {

BlockEncoder::BlockEncoder(const Tokenizer& tokenizer, EncodeSettings settings)
    : settings_(std::move(settings)),
      vocabulary_(tokenizer.vocabulary()),
      encoder_(tokenizer.encoder()),
      cutter_(tokenizer, settings_.pieces) {}

EncodedBlock BlockEncoder::encode(SourceBlock source) {
  EncodedBlock out;
  out.bad = std::move(source.block.bad);
  out.end = source.block.end;
  out.source = source.source;
  out.digest = source.digest;
  out.bytes_read = source.bytes_read;
  // One doubling fits the tokens of bytes. A vector grown from empty may hold twice as much.
  out.elements.reserve(source.block.text.size() + 4 * source.block.parts.size());
  if (source.json_lines) {
    encode_lines(source.block, out);
    return out;
  }
  const std::string_view text = source.block.text;
  for (const DocumentPart& part : source.block.parts) {
    encode_part(text.substr(part.begin, part.size), part.begins, part.ends, out);
  }
  return out;
}

void BlockEncoder::encode_lines(const TextBlock& block, EncodedBlock& out) {
  std::string_view rest = block.text;
  for (int64_t number = block.begin.line; !rest.empty(); ++number) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    std::optional<BadInput> bad = read_json_text(line, settings_.field, text_);
    if (bad) {
      bad->line = number;
      out.bad.push_back(*std::move(bad));
    } else if (text_.empty()) {
      ++out.empty;
    } else {
      encode_document(text_, out);
    }
  }
}

// Cuts the document like a text file, so that the same document gives the same tokens.
void BlockEncoder::encode_document(std::string_view text, EncodedBlock& out) {
  for (bool begins = true;; begins = false) {
    const Piece piece = cutter_.next(text, true);
    encode_part(text.substr(0, piece.size), begins, piece.last, out);
    if (piece.last) return;
    text.remove_prefix(piece.size + piece.gap);
  }
}

void BlockEncoder::encode_part(std::string_view text, bool begins, bool ends, EncodedBlock& out) {
  tokens_.clear();
  encoder_->encode(text, tokens_);
  for (const int32_t token : tokens_) {
    QUERN_CHECK(token >= 0 && token < vocabulary_, "the tokenizer gave token ", token,
                ", expected 0 to ", vocabulary_ - 1);
  }
  if (settings_.end_token) {
    out.end_tokens_in_text += std::count(tokens_.begin(), tokens_.end(), *settings_.end_token);
    if (ends) tokens_.push_back(*settings_.end_token);
  }
  out.text_bytes += static_cast<int64_t>(text.size());
  out.parts.push_back({static_cast<int64_t>(tokens_.size()), begins, ends});
  if (bytes_per_token(settings_.encoding) == 4) {
    append_elements<uint32_t>(out);
  } else {
    append_elements<uint16_t>(out);
  }
}

template <class Element>
void BlockEncoder::append_elements(EncodedBlock& out) const {
  const size_t before = out.elements.size();
  out.elements.resize(before + tokens_.size() * sizeof(Element));
  auto* elements = reinterpret_cast<Element*>(out.elements.data() + before);
  std::transform(tokens_.begin(), tokens_.end(), elements,
                 [](int32_t token) { return static_cast<Element>(token); });
}

}  // namespace quern
