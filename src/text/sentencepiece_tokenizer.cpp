#include "text/sentencepiece_tokenizer.h"

#include <sentencepiece_processor.h>

#include "base/error.h"
#include "io/checksum.h"
#include "io/python_line.h"
#include "io/utf8.h"
#include "text/space_mark.h"

namespace quern {

namespace {

void check(const sentencepiece::util::Status& status) {
  QUERN_CHECK(status.ok(), "SentencePiece: ", sentencepiece_reason(status.message()));
}

// normalizer_spec { add_dummy_prefix: false } in protobuf's encoding. Protobuf merges appended
// messages, so appending this to a model changes only that setting.
constexpr std::string_view kNoPrefix("\x1A\x02\x18\x00", 4);

}  // namespace

struct SentencePieceTokenizer::Processors {
  sentencepiece::SentencePieceProcessor begin;      // for the start of a text
  sentencepiece::SentencePieceProcessor continued;  // for the rest: adds no space before it
};

SentencePieceTokenizer::SentencePieceTokenizer(std::string model, TokenizerSettings settings)
    : settings_(std::move(settings)),
      hash_(checksum_of(model)),
      processors_(std::make_shared<Processors>()) {
  const auto loaded = processors_->begin.LoadFromSerializedProto(model);
  QUERN_CHECK(loaded.ok(), "has ", model.size(), " bytes, expected a whole SentencePiece model: ",
              sentencepiece_reason(loaded.message()), lfs_hint(std::as_bytes(std::span(model))));
  check(processors_->continued.LoadFromSerializedProto(model.append(kNoPrefix)));
  read_pieces();
  check_added_ids(settings_.added, bytes_.size(), settings_.file + ": added_tokens_decoder");
  for (const AddedToken& token : settings_.added) {
    if (!(token.special && settings_.split_special)) added_.add(token);
    const auto id = static_cast<size_t>(token.id);
    if (id >= bytes_.size()) {
      bytes_.resize(id + 1);
      special_.resize(id + 1);
    }
    bytes_[id] = token.special ? "" : token.content;
    special_[id] = token.special;
  }
  added_.finish();
  std::vector<std::string> with, without;
  check(processors_->begin.Encode("a", &with));
  check(processors_->continued.Encode("a", &without));
  adds_prefix_space_ = with != without;
  find_ends();
}

void SentencePieceTokenizer::find_ends() {
  const auto id_of = [&](const char* name, const std::optional<std::string>& content,
                         int own) -> std::optional<int32_t> {
    if (!content) return own < 0 ? std::optional<int32_t>() : own;
    const int32_t id = find(*content);
    QUERN_CHECK(id >= 0, settings_.file, ": ", name, " is '", *content,
                "', which the vocabulary does not have");
    return id;
  };
  end_ = id_of("eos_token", settings_.end, processors_->begin.eos_id());
  if (settings_.add_begin.value_or(settings_.found)) {
    begin_ = id_of("bos_token", settings_.begin, processors_->begin.bos_id());
  }
}

void SentencePieceTokenizer::read_pieces() {
  const auto& model = processors_->begin;
  int bytes = 0;
  bool spanning = false;
  for (int id = 0; id < model.GetPieceSize(); ++id) {
    const std::string& piece = model.IdToPiece(id);
    special_.push_back(model.IsControl(id) || model.IsUnknown(id));
    if (model.IsByte(id)) {  // <0x7F>
      const int byte = std::stoi(piece.substr(3, 2), nullptr, 16);
      byte_tokens_[byte] = id;
      ++bytes;
      bytes_.emplace_back(1, static_cast<char>(byte));
    } else if (special_.back()) {
      if (!settings_.split_special) added_.add({id, piece, true, false});
      bytes_.emplace_back();
    } else {
      spanning = spanning || spans_words(piece);
      bytes_.push_back(spaces_for_marks(piece));
    }
  }
  byte_fallback_ = bytes == 256;
  cuts_words_ = byte_fallback_ && !spanning && keeps_text();
}

// True when the library does not normalise text and keeps spaces at both ends and between words.
bool SentencePieceTokenizer::keeps_text() const {
  const std::string text = " \u00E9 e\u0301  \uFB01 \uFF21 ";  // Unicode's NFKC would change it
  std::vector<int> ids;
  check(processors_->continued.Encode(text, &ids));
  std::string decoded;
  for (const int id : ids) decoded += bytes_[static_cast<size_t>(id)];
  return decoded == text;
}

std::unique_ptr<TokenEncoder> SentencePieceTokenizer::encoder() const {
  return std::make_unique<CachedEncoder<SentencePieceTokenizer>>(*this);
}

void SentencePieceTokenizer::encode(std::string_view text, std::vector<int32_t>& tokens,
                                    BpeCache& cache) const {
  bool first = true;
  added_.split(
      text,
      [&](std::string_view part) {
        encode_part(part, first || settings_.legacy, tokens, cache);
        first = false;
      },
      [&](int32_t id) {
        tokens.push_back(id);
        first = false;
      });
}

void SentencePieceTokenizer::encode_part(std::string_view part, bool first,
                                         std::vector<int32_t>& tokens, BpeCache& cache) const {
  // Without byte fallback, the library replaces invalid UTF-8 by U+FFFD.
  if (!byte_fallback_) return encode_valid(part, first, tokens, cache);
  split_utf8(
      part,
      [&](std::string_view valid) {
        encode_valid(valid, first, tokens, cache);
        first = false;
      },
      [&](std::string_view invalid) {
        first = false;
        for (const char c : invalid) tokens.push_back(byte_tokens_[static_cast<unsigned char>(c)]);
      });
}

// If no token spans two words, the words are encoded separately: the tokens are the same, and most
// words are in the cache.
void SentencePieceTokenizer::encode_valid(std::string_view text, bool first,
                                          std::vector<int32_t>& tokens, BpeCache& cache) const {
  constexpr size_t kLongestCached = 64;  // bytes; longer words rarely repeat
  std::vector<int> ids;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, cuts_words_ ? word_size(text) : text.size());
    text.remove_prefix(word.size());
    const bool cached = !first && word.size() <= kLongestCached;
    if (const std::vector<int32_t>* known = cached ? cache.find(word) : nullptr) {
      tokens.insert(tokens.end(), known->begin(), known->end());
      continue;
    }
    check((first ? processors_->begin : processors_->continued).Encode(word, &ids));
    tokens.insert(tokens.end(), ids.begin(), ids.end());
    if (cached) cache.insert(word, ids);
    first = false;
  }
}

std::string SentencePieceTokenizer::decode(std::span<const int32_t> tokens) const {
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int32_t token = tokens[i];
    QUERN_CHECK(token >= 0 && token < vocabulary(), "decode: token ", i, " is ", token,
                ", expected 0 to ", vocabulary() - 1);
    text += bytes_[static_cast<size_t>(token)];
  }
  if (adds_prefix_space_ && text.starts_with(' ')) text.erase(0, 1);
  return text;
}

std::string sentencepiece_reason(const std::string& message) {
  const size_t file = message.find(".cc(");
  if (file == std::string::npos) return message;
  const size_t condition = message.find("] ", file);
  const std::string reason = condition == std::string::npos ? "" : message.substr(condition + 2);
  return reason.empty() ? "it cannot be parsed" : reason;
}

SentencePieceTokenizer::SpecialPieces SentencePieceTokenizer::special_pieces() const {
  const auto& model = processors_->begin;
  return {model.unk_id(), model.bos_id(), model.eos_id()};
}

std::string SentencePieceTokenizer::piece(int32_t id) const {
  for (const AddedToken& token : settings_.added) {
    if (token.id == id) return token.content;
  }
  QUERN_CHECK(id >= 0 && id < processors_->begin.GetPieceSize(), "token ", id, " has no text");
  return processors_->begin.IdToPiece(id);
}

bool SentencePieceTokenizer::is_byte(int32_t id) const {
  return id >= 0 && id < processors_->begin.GetPieceSize() && processors_->begin.IsByte(id);
}

int32_t SentencePieceTokenizer::find(std::string_view content) const {
  for (const AddedToken& token : settings_.added) {
    if (token.content == content) return token.id;
  }
  const int id = processors_->begin.PieceToId(content);
  return processors_->begin.IdToPiece(id) == content ? id : -1;
}

}  // namespace quern
