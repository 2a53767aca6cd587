#include "run/check_data.h"

#include "base/error.h"
#include "data/token_sidecar.h"
#include "text/byte_tokenizer.h"

namespace quern {

namespace fs = std::filesystem;

namespace {

std::string text_of(const std::optional<int32_t>& token) {
  return token ? std::to_string(*token) : "none";
}

void check_same(const fs::path& path, const TokenSidecar& found, const TokenFacts& expected) {
  const std::string here = path.string(), there = expected.sidecar.string();
  QUERN_CHECK(found.tokenizer_hash == expected.tokenizer_hash, here,
              ": its tokens' tokenizer has hash ", found.tokenizer_hash, ", that of ", there,
              " has ", expected.tokenizer_hash);
  QUERN_CHECK(found.vocabulary == expected.vocabulary, here, ": vocabulary is ", found.vocabulary,
              ", that of ", there, " is ", expected.vocabulary);
  QUERN_CHECK(found.end_token == expected.end_token, here, ": end_token is ",
              text_of(found.end_token), ", that of ", there, " is ", text_of(expected.end_token));
}

}  // namespace

TokenFacts read_token_facts(const Dataset& data) {
  TokenFacts facts;
  fs::path with, without;  // token files with and without a sidecar
  for (const TokenSource* source : {&data.train, &data.validation}) {
    for (const TokenFile& file : source->files()) {
      const std::optional<TokenSidecar> sidecar = read_token_sidecar(file.path());
      (sidecar ? with : without) = file.path();
      QUERN_CHECK(with.empty() || without.empty(), without.string(), ": has no sidecar ",
                  sidecar_path(without).filename().string(), ", but ", with.string(), " has one");
      if (!sidecar) continue;
      check_token_sidecar(*sidecar, file);
      const fs::path path = sidecar_path(file.path());
      if (facts.sidecar.empty()) {
        facts = {path, sidecar->vocabulary, sidecar->end_token, sidecar->tokenizer_hash};
      }
      check_same(path, *sidecar, facts);
    }
  }
  return facts;
}

void check_tokenizer(const TokenFacts& facts, const RunTokenizer& tokenizer) {
  if (facts.sidecar.empty() || !tokenizer.tokenizer) return;
  const std::string hash = tokenizer.tokenizer->hash();
  QUERN_CHECK(facts.tokenizer_hash == hash, facts.sidecar.string(),
              ": its tokens' tokenizer has hash ", facts.tokenizer_hash,
              ", but the run's tokenizer ", tokenizer.path.string(), " has ", hash,
              "; encode the text with it again: quern data prepare");
}

int64_t needed_vocabulary(const Dataset& data, const TokenFacts& facts,
                          const RunTokenizer& tokenizer) {
  if (!facts.sidecar.empty()) return facts.vocabulary;
  if (tokenizer.tokenizer) return tokenizer.tokenizer->vocabulary();
  return data.vocabulary();
}

void check_vocabulary(const Dataset& data, const TokenFacts& facts, int64_t vocab_size,
                      const std::string& whose) {
  if (!facts.sidecar.empty()) {
    QUERN_CHECK(facts.vocabulary <= vocab_size, facts.sidecar.string(), ": vocabulary is ",
                facts.vocabulary, ", expected at most the ", vocab_size, " of ", whose);
    return;
  }
  if (data.is_text && vocab_size >= kByteVocabulary) return;
  data.train.check_vocabulary(vocab_size);
  data.validation.check_vocabulary(vocab_size);
}

BatchOptions batch_options(const DataSection& section, const Dataset& data, const TokenFacts& facts,
                           const RunTokenizer& tokenizer) {
  BatchOptions options{section.sampling, {}};
  if (!section.document_mask) return options;
  if (data.is_text) {
    options.document_end = kEndOfText;
  } else if (!facts.sidecar.empty()) {
    options.document_end = facts.end_token;
  } else if (tokenizer.tokenizer) {
    options.document_end = tokenizer.tokenizer->end_token();
  }
  QUERN_CHECK(options.document_end, "document_mask: ", data.train.name(),
              ": the token that ends a document is not known: there is none in ",
              facts.sidecar.empty() ? "the run's tokenizer, and the token files have no sidecar"
                                    : facts.sidecar.string());
  return options;
}

}  // namespace quern
