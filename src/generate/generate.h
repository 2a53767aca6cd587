// Generates text with a model, token by token, for one prompt or a batch of prompts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/enum_names.h"
#include "config/config.h"
#include "model/transformer_lm.h"
#include "text/tokenizer.h"

namespace quern {

// The reason for a text's end: options.tokens were generated; the stop token was drawn; the caller
// ended it; or the context is full and options.past_context is `stop`.
enum class FinishReason { length, stop_token, stopped, context };
template <>
inline constexpr std::array kNamesOf<FinishReason>{"length", "stop_token", "stop", "context"};

struct Generation {
  std::vector<int32_t> tokens;  // the stop token is the last of them
  FinishReason finish = FinishReason::length;
};

// Called with each new token; false ends the generation.
using TokenCallback = std::function<bool(int32_t token)>;
// The same for one of several prompts.
using BatchTokenCallback = std::function<bool(size_t prompt, int32_t token)>;

// Generates up to options.tokens tokens after each prompt (at least one token; a prompt longer than
// the context keeps its end), `batch` prompts at a time: when one ends, the next one starts.
// Sampling is seeded: the same model, prompt, position in the list and options give the same tokens
// for any other prompts.
// When the context is full, `stop` ends the text and `slide` continues with its later half. Throws
// when a prompt is empty or has a token outside the vocabulary, and when logits are not finite,
// checked at a prompt's first token and at intervals.
std::vector<Generation> generate_batch(const TransformerLM& model,
                                       const std::vector<std::vector<int32_t>>& prompts,
                                       const SampleSection& options, int64_t batch,
                                       const BatchTokenCallback& on_token = {});

// "prompt 2 keeps its last 64 of 100 tokens: ctx is 64", for each prompt that is longer.
std::vector<std::string> long_prompt_warnings(const std::vector<std::vector<int32_t>>& prompts,
                                              int64_t context);

// The tokens of a prompt, after the tokenizer's begin token when it has one.
std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, std::string_view text);
// Replaces a stop token of -1 by the tokenizer's end token; by none if `tokenizer` is null.
SampleSection with_end_token(SampleSection options, const Tokenizer* tokenizer);
// Throws when the stop token is outside the vocabulary of that many tokens.
void check_stop_token(const SampleSection& options, int64_t vocabulary);

// For one prompt.
Generation generate(const TransformerLM& model, const std::vector<int32_t>& prompt,
                    const SampleSection& options, const TokenCallback& on_token = {});

}  // namespace quern
