#include "train/training_data.h"

#include "base/error.h"
#include "text/tokenizer_files.h"

namespace quern {

namespace {

Dataset open_tokens(const Config& config) {
  if (config.data.train.empty()) {
    throw UsageError(
        "train: no data; give --train FILE, a text file, a folder of text files, a token file, a "
        "pattern of token files or a folder of `quern data prepare`");
  }
  return open_dataset({config.data.train, config.data.validation, config.data.validation_fraction,
                       config.data.format},
                      config.model.context);
}

// Token files may hold bytes, which need no folder tokenizer/.
RunTokenizer open_run_tokenizer(const Config& config, const Dataset& data,
                                const TokenFacts& facts) {
  RunTokenizer found = find_run_tokenizer(config, data.is_text);
  if (!found.tokenizer && facts.of_bytes()) found = {"bytes", open_tokenizer("bytes")};
  check_tokenizer(facts, found);
  return found;
}

}  // namespace

TrainingData open_training_data(Config& config) {
  TrainingData data;
  data.tokens = open_tokens(config);
  data.facts = read_token_facts(data.tokens);
  data.tokenizer = open_run_tokenizer(config, data.tokens, data.facts);
  std::string whose = "vocab";
  if (!config.model.from.empty()) whose = cat("the model of ", config.model.from);
  if (config.model.vocab_size == 0) {
    config.model.vocab_size = needed_vocabulary(data.tokens, data.facts, data.tokenizer);
    whose = "the tokenizer";
  }
  check_vocabulary(data.tokens, data.facts, config.model.vocab_size, whose);
  data.train_fingerprint = data.tokens.train.fingerprint();
  data.validation_fingerprint = data.tokens.validation.fingerprint();
  return data;
}

}  // namespace quern
