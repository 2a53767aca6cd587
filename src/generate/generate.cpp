#include "generate/generate.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <optional>

#include "generate/decoder.h"

namespace quern {

namespace {

// Each position in a list of prompts has a seed of its own; the first keeps the seed itself
// (Knuth's multiplier for 64 bits).
kernels::SampleOptions sample_options(const SampleSection& options, size_t prompt) {
  return {.temperature = static_cast<float>(options.temperature),
          .top_k = static_cast<int32_t>(options.top_k),
          .top_p = options.top_p,
          .min_p = options.min_p,
          .repetition_penalty = static_cast<float>(options.repetition_penalty),
          .seed = static_cast<uint64_t>(options.sample_seed) ^ (prompt * 0x9E3779B97F4A7C15u)};
}

std::vector<int32_t> last_of(const std::vector<int32_t>& tokens, int64_t count) {
  const auto size = static_cast<int64_t>(tokens.size());
  return {tokens.end() - std::min(count, size), tokens.end()};
}

// The cache capacity for the longest possible text.
int64_t capacity_for(const ModelConfig& model, const std::vector<std::vector<int32_t>>& prompts,
                     int64_t tokens) {
  int64_t longest = 1;
  for (const auto& prompt : prompts) {
    longest = std::max(longest, static_cast<int64_t>(prompt.size()));
  }
  return std::min(model.context, longest + std::max<int64_t>(tokens, 1));
}

// Runs a list of prompts on the rows of a decoder. Each step is launched before the previous one is
// read, so that the device does not wait; a token computed after a row's end is dropped.
class BatchRun {
 public:
  BatchRun(const TransformerLM& model, const std::vector<std::vector<int32_t>>& prompts,
           const SampleSection& options, int64_t rows, const BatchTokenCallback& on_token)
      : prompts_(prompts),
        options_(options),
        on_token_(on_token),
        decoder_(model, rows, capacity_for(model.config(), prompts, options.tokens)),
        rows_(static_cast<size_t>(rows)),
        results_(prompts.size()) {}

  std::vector<Generation> run() {
    for (size_t b = 0; b < rows_.size(); ++b) start_next(b);
    while (any_active() || decoder_.pending() > 0) {
      make_room();
      if (any_active()) launch();
      if (decoder_.pending() > (any_active() ? 1 : 0)) take_oldest();
    }
    return std::move(results_);
  }

 private:
  struct Row {
    std::optional<size_t> prompt;  // the row's prompt; none: the row is idle
    int64_t launched = 0;          // its tokens, including pending ones
  };
  using Owners = std::vector<std::optional<size_t>>;

  bool any_active() const {
    for (size_t b = 0; b < rows_.size(); ++b) {
      if (decoder_.active(static_cast<int64_t>(b))) return true;
    }
    return false;
  }

  void start_next(size_t b) {
    rows_[b] = {};
    if (next_ == prompts_.size()) return;
    rows_[b].prompt = next_;
    decoder_.start(static_cast<int64_t>(b), last_of(prompts_[next_], decoder_.capacity()),
                   sample_options(options_, next_));
    ++next_;
  }

  // A row whose cache is full slides or ends; all its tokens must be known for that.
  void make_room() {
    for (size_t b = 0; b < rows_.size(); ++b) {
      const auto row = static_cast<int64_t>(b);
      while (decoder_.active(row) && decoder_.length(row) == decoder_.capacity()) {
        if (decoder_.pending() > 0) {
          take_oldest();
        } else if (options_.past_context == PastContext::stop) {
          end(b, FinishReason::context);
        } else {
          slide(b);
        }
      }
    }
  }

  void slide(size_t b) {
    const size_t prompt = *rows_[b].prompt;
    std::vector<int32_t> all = prompts_[prompt];
    const std::vector<int32_t>& made = results_[prompt].tokens;
    all.insert(all.end(), made.begin(), made.end());
    decoder_.restart(static_cast<int64_t>(b),
                     last_of(all, std::max<int64_t>(1, decoder_.capacity() / 2)));
  }

  void launch() {
    Owners owners(rows_.size());
    for (size_t b = 0; b < rows_.size(); ++b) {
      if (decoder_.active(static_cast<int64_t>(b))) owners[b] = rows_[b].prompt;
    }
    decoder_.step();
    check_logits(owners);
    owners_.push_back(owners);
    for (size_t b = 0; b < rows_.size(); ++b) {
      if (!owners[b] || ++rows_[b].launched < options_.tokens) continue;
      decoder_.finish(static_cast<int64_t>(b));  // its last token is pending
    }
  }

  // Non-finite logits would always draw token 0. The check waits for the device, so it runs at the
  // start of a prompt and every kLogitsEvery steps. That finds every error, since one in the cache
  // persists.
  void check_logits(const Owners& owners) {
    bool look = steps_++ % kLogitsEvery == 0;
    for (size_t b = 0; b < rows_.size(); ++b) look |= owners[b] && rows_[b].launched == 0;
    for (size_t b = 0; look && b < rows_.size(); ++b) {
      if (!owners[b]) continue;
      const auto row = static_cast<int64_t>(b);
      const auto logits =
          decoder_.logits().slice(0, row, row + 1).to(DType::f32).to_vector<float>();
      const auto bad = std::ranges::find_if(logits, [](float x) { return !std::isfinite(x); });
      if (bad == logits.end()) continue;
      fail(cat("generate: the logits of token ", rows_[b].launched + 1, " after prompt ",
               *owners[b] + 1, " hold ", *bad, " for token ", bad - logits.begin(),
               ", expected finite numbers: the model's weights are damaged, or too large for its "
               "precision"));
    }
  }

  void take_oldest() {
    const std::vector<int32_t> tokens = decoder_.fetch();
    const Owners owners = std::move(owners_.front());
    owners_.pop_front();
    for (size_t b = 0; b < rows_.size(); ++b) {
      if (owners[b] && owners[b] == rows_[b].prompt) take(b, tokens[b]);
    }
  }

  void take(size_t b, int32_t token) {
    const size_t prompt = *rows_[b].prompt;
    std::vector<int32_t>& made = results_[prompt].tokens;
    made.push_back(token);
    if (on_token_ && !on_token_(prompt, token)) return end(b, FinishReason::stopped);
    if (token == options_.stop_token) return end(b, FinishReason::stop_token);
    if (static_cast<int64_t>(made.size()) == options_.tokens) end(b, FinishReason::length);
  }

  void end(size_t b, FinishReason reason) {
    results_[*rows_[b].prompt].finish = reason;
    decoder_.finish(static_cast<int64_t>(b));
    start_next(b);
  }

  static constexpr int64_t kLogitsEvery = 64;

  const std::vector<std::vector<int32_t>>& prompts_;
  const SampleSection& options_;
  const BatchTokenCallback& on_token_;
  Decoder decoder_;
  std::vector<Row> rows_;
  std::deque<Owners> owners_;  // for each pending step: the prompt of each row
  std::vector<Generation> results_;
  size_t next_ = 0;  // the next prompt to start
  int64_t steps_ = 0;
};

void check_prompts(const std::vector<std::vector<int32_t>>& prompts, int64_t vocab_size) {
  for (size_t p = 0; p < prompts.size(); ++p) {
    QUERN_CHECK(!prompts[p].empty(), "generate: prompt ", p + 1,
                " is empty, expected at least one token");
    for (size_t i = 0; i < prompts[p].size(); ++i) {
      const int32_t token = prompts[p][i];
      QUERN_CHECK(token >= 0 && token < vocab_size, "generate: token ", token, " at position ", i,
                  " of prompt ", p + 1, " lies outside the vocabulary of ", vocab_size);
    }
  }
}

}  // namespace

std::vector<Generation> generate_batch(const TransformerLM& model,
                                       const std::vector<std::vector<int32_t>>& prompts,
                                       const SampleSection& options, int64_t batch,
                                       const BatchTokenCallback& on_token) {
  QUERN_CHECK(batch > 0, "generate: a batch of ", batch, ", expected at least 1");
  check_prompts(prompts, model.config().vocab_size);
  if (prompts.empty() || options.tokens == 0) return std::vector<Generation>(prompts.size());
  const auto rows = std::min(batch, static_cast<int64_t>(prompts.size()));
  return BatchRun(model, prompts, options, rows, on_token).run();
}

std::vector<std::string> long_prompt_warnings(const std::vector<std::vector<int32_t>>& prompts,
                                              int64_t context) {
  std::vector<std::string> warnings;
  for (size_t p = 0; p < prompts.size(); ++p) {
    if (std::ssize(prompts[p]) <= context) continue;
    const std::string which = prompts.size() == 1 ? "the prompt" : cat("prompt ", p + 1);
    warnings.push_back(cat(which, " keeps its last ", context, " of ", prompts[p].size(),
                           " tokens: ctx is ", context));
  }
  return warnings;
}

std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> tokens;
  if (tokenizer.begin_token()) tokens.push_back(*tokenizer.begin_token());
  tokenizer.encoder()->encode(text, tokens);
  return tokens;
}

SampleSection with_end_token(SampleSection options, const Tokenizer* tokenizer) {
  if (options.stop_token == -1 && tokenizer) {
    options.stop_token = tokenizer->end_token().value_or(-1);
  }
  return options;
}

void check_stop_token(const SampleSection& options, int64_t vocabulary) {
  QUERN_CHECK(options.stop_token < vocabulary, "stop_token is ", options.stop_token,
              ", expected less than the model's vocabulary size ", vocabulary);
}

Generation generate(const TransformerLM& model, const std::vector<int32_t>& prompt,
                    const SampleSection& options, const TokenCallback& on_token) {
  BatchTokenCallback of_one;
  if (on_token) of_one = [&](size_t, int32_t token) { return on_token(token); };
  return generate_batch(model, {prompt}, options, 1, of_one).front();
}

}  // namespace quern
