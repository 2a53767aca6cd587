#include "text/sentencepiece_json.h"

#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_set>

#include "text/space_mark.h"

namespace quern {

namespace {

using Json = nlohmann::ordered_json;

bool begins_character(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
}

// SentencePiece merges the neighbours whose concatenation was learnt first. Here every split of a
// piece into two known pieces is a merge; the merges follow the order of the pieces.
Json merges_of(const std::vector<std::string>& pieces) {
  const std::unordered_set<std::string_view> known(pieces.begin(), pieces.end());
  Json merges = Json::array();
  for (const std::string_view piece : pieces) {
    for (size_t cut = piece.size(); cut-- > 1;) {  // the longest left part first
      if (!begins_character(piece[cut])) continue;
      const std::string_view left = piece.substr(0, cut), right = piece.substr(cut);
      if (known.contains(left) && known.contains(right)) merges.push_back({left, right});
    }
  }
  return merges;
}

Json replace_spaces() {
  return {{"type", "Replace"}, {"pattern", {{"String", kSpaceMark}}}, {"content", " "}};
}

}  // namespace

std::string sentencepiece_tokenizer_json(const SentencePieceTokenizer& tokenizer) {
  Json vocabulary = Json::object(), added = Json::array();
  std::vector<std::string> pieces;
  for (int32_t id = 0; id < tokenizer.vocabulary(); ++id) {
    const std::string piece = tokenizer.piece(id);
    vocabulary[piece] = id;
    if (tokenizer.is_special(id)) {
      added.push_back({{"id", id},
                       {"content", piece},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", true}});
    } else if (!tokenizer.is_byte(id)) {
      pieces.push_back(piece);
    }
  }
  const Json decoders = {replace_spaces(), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
  const Json json = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", added},
                     {"normalizer", nullptr},
                     {"pre_tokenizer",
                      {{"type", "Metaspace"},
                       {"replacement", kSpaceMark},
                       {"prepend_scheme", "never"},
                       {"split", false}}},
                     {"post_processor", nullptr},
                     {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}},
                     {"model",
                      {{"type", "BPE"},
                       {"dropout", nullptr},
                       {"unk_token", tokenizer.piece(tokenizer.special_pieces().unknown)},
                       {"continuing_subword_prefix", nullptr},
                       {"end_of_word_suffix", nullptr},
                       {"fuse_unk", true},
                       {"byte_fallback", true},
                       {"ignore_merges", false},
                       {"vocab", vocabulary},
                       {"merges", merges_of(pieces)}}}};
  return json.dump(1) + "\n";
}

}  // namespace quern
