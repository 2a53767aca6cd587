// Text from a model, token by token, for one prompt or a batch of them.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "config/config.h"
#include "model/transformer_lm.h"
#include "text/tokenizer.h"

namespace quern {

// Why a text ended: options.tokens are made; the stop token came; the caller said so; or the
// context is full and options.past_context is `stop`.
enum class FinishReason { length, stop_token, stopped, context };
std::string_view name_of(FinishReason reason);

struct Generation {
  std::vector<int32_t> tokens;  // the stop token is the last of them
  FinishReason finish = FinishReason::length;
};

// A model whose logits are no numbers: its weights are damaged, or too large for its precision.
class NonfiniteLogits : public Error {
 public:
  using Error::Error;
};

// Called with each new token; false ends the generation.
using TokenCallback = std::function<bool(int32_t token)>;
// The same of one prompt of several.
using BatchTokenCallback = std::function<bool(size_t prompt, int32_t token)>;

// Up to options.tokens tokens after each prompt (at least one token, longer ones than the context
// keep their end), `batch` prompts at a time: where one ends the next begins. Sampling is seeded:
// the same model, prompt, place in the list and options give the same tokens, whatever the other
// prompts are. When the context is full, `stop` ends and `slide` goes on with the later half of it.
// Throws when a prompt is empty or has a token past the vocabulary, and NonfiniteLogits, which is
// looked for at a prompt's first token and from time to time.
std::vector<Generation> generate_batch(const TransformerLM& model,
                                       const std::vector<std::vector<int32_t>>& prompts,
                                       const SampleSection& options, int64_t batch,
                                       const BatchTokenCallback& on_token = {});

// The tokens of a prompt, after the tokenizer's begin token when it has one.
std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, std::string_view text);
// The options with the stop token that -1 stands for. `tokenizer` may be null: then none.
SampleSection with_end_token(SampleSection options, const Tokenizer* tokenizer);

// Of one prompt.
Generation generate(const TransformerLM& model, const std::vector<int32_t>& prompt,
                    const SampleSection& options, const TokenCallback& on_token = {});

}  // namespace quern
