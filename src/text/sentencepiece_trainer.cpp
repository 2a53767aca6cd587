#include "text/sentencepiece_trainer.h"

#include <sentencepiece_trainer.h>

#include <algorithm>
#include <exception>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "io/utf8.h"
#include "text/sentencepiece_tokenizer.h"

namespace quern {

namespace fs = std::filesystem;

namespace {

// The model records the number of training threads. This resets it to the library's default, so
// that equal training gives equal files. It appends trainer_spec { num_threads: 16 } in protobuf's
// encoding, which is merged into the preceding message.
void forget_threads(std::string& model) {
  constexpr std::string_view kDefaultThreads("\x12\x03\x80\x01\x10", 5);
  sentencepiece::SentencePieceProcessor processor;
  const auto status = processor.LoadFromSerializedProto(model.append(kDefaultThreads));
  QUERN_CHECK(status.ok(),
              "tokenizer train: SentencePiece: ", sentencepiece_reason(status.message()));
  model = processor.serialized_model_proto();
}

// A pseudorandom number that depends only on `index` (SplitMix64, Steele et al. 2014).
uint64_t scrambled(uint64_t index) {
  uint64_t z = (index + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// The sampled training lines. SentencePiece does not support exceptions: an exception ends the
// lines and is rethrown afterwards.
class SampledLines : public sentencepiece::SentenceIterator {
 public:
  SampledLines(TextLines lines, double share, std::function<void(int64_t)> progress)
      : lines_(std::move(lines)), share_(share), progress_(std::move(progress)) {
    Next();
  }

  bool done() const override { return done_; }
  const std::string& value() const override { return line_; }
  sentencepiece::util::Status status() const override { return {}; }
  void Next() override {
    try {
      do {
        done_ = !lines_.next(line_);
        read_ += static_cast<int64_t>(line_.size());
        if (progress_ && count_ % 65536 == 0) progress_(read_);
      } while (!done_ && !drawn(count_++));
      if (done_ && progress_) progress_(-1);  // SentencePiece starts to train
      if (!done_) used_ += static_cast<int64_t>(line_.size());
    } catch (...) {
      error_ = std::current_exception();
      done_ = true;
    }
  }

  int64_t used_bytes() const { return used_; }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  bool drawn(uint64_t index) const {
    return share_ >= 1.0 || static_cast<double>(scrambled(index) >> 11) * 0x1p-53 < share_;
  }

  TextLines lines_;
  double share_;
  std::function<void(int64_t)> progress_;
  std::string line_;
  uint64_t count_ = 0;
  int64_t read_ = 0, used_ = 0;
  bool done_ = false;
  std::exception_ptr error_;
};

int64_t count_bytes(TextLines lines, const TrainingProgress& progress) {
  int64_t bytes = 0;
  int64_t count = 0;
  for (std::string line; lines.next(line);) {
    bytes += static_cast<int64_t>(line.size());
    if (progress && count++ % 65536 == 0) progress("counting", lines.files_done());
  }
  return bytes;
}

// True for the tokens of every vocabulary: <unk>, <s>, </s> and the bytes, such as <0x7F>.
bool is_reserved(std::string_view token) {
  if (token == "<unk>" || token == "<s>" || token == "</s>") return true;
  return token.size() == 6 && token.starts_with("<0x") && token.ends_with('>') &&
         token.substr(3, 2).find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
}

// A list as one line of CSV, the format that SentencePiece reads.
std::string csv_list(const std::vector<std::string>& entries) {
  std::string list;
  for (const std::string& entry : entries) {
    list += list.empty() ? "\"" : ",\"";
    for (const char c : entry) list += c == '"' ? "\"\"" : std::string(1, c);
    list += '"';
  }
  return list;
}

std::unordered_map<std::string, std::string> settings(const SentencePieceTraining& options) {
  std::unordered_map<std::string, std::string> map = {
      {"model_type", "bpe"},
      {"vocab_size", std::to_string(options.vocabulary)},
      {"byte_fallback", "true"},
      {"character_coverage", cat(options.coverage)},
      {"split_digits", options.split_digits ? "true" : "false"},
      {"allow_whitespace_only_pieces", "true"},  // for indentation
      {"normalization_rule_name", "identity"},   // this and the next two make decoding exact
      {"remove_extra_whitespaces", "false"},
      {"add_dummy_prefix", "false"},
      {"unk_id", "0"},  // Llama's ids
      {"bos_id", "1"},
      {"eos_id", "2"},
      {"pad_id", "-1"},
      {"max_sentence_length", std::to_string(TextLines::kLongest)},
      {"self_test_sample_size", "0"},
      {"num_threads", std::to_string(std::max(1, options.threads))},
      {"minloglevel", "3"}};  // no logs: errors are returned as a status
  if (!options.special.empty()) map["control_symbols"] = csv_list(options.special);
  return map;
}

// The number behind `words` in SentencePiece's message; -1: `words` are not in it.
int64_t number_after(const std::string& message, const std::string& words) {
  const size_t at = message.find(words);
  if (at == std::string::npos) return -1;
  return std::strtoll(message.c_str() + at + words.size(), nullptr, 10);
}

[[noreturn]] void fail_training(const std::string& message, const SentencePieceTraining& options) {
  const int64_t most = number_after(message, "Please set it to a value <= ");
  if (most >= 0) {
    fail(cat("tokenizer train: the text is too small for a vocabulary of ", options.vocabulary,
             " tokens, expected at most ", most));
  }
  const bool named = message.find("smaller than required_chars") != std::string::npos;
  constexpr int64_t kLeast = 3 + 256 + 1;
  if (named || options.vocabulary < kLeast) {  // SentencePiece does not say why it refuses 1 and 2
    const int64_t least = named ? number_after(message, cat(options.vocabulary, " vs ")) : kLeast;
    fail(cat("tokenizer train: a vocabulary of ", options.vocabulary,
             " tokens is too small for <unk>, <s>, </s>, 256 bytes and the characters of the text, "
             "expected at least ",
             least, " or a smaller coverage than ", options.coverage));
  }
  fail(cat("tokenizer train: SentencePiece: ", sentencepiece_reason(message)));
}

}  // namespace

std::string special_error(std::span<const std::string> special) {
  std::unordered_set<std::string_view> seen;
  for (const std::string& token : special) {
    if (token.empty()) return "has an empty entry, expected tokens";
    if (valid_utf8_prefix(token) != token.size()) {
      return cat("has '", replace_invalid_utf8(token), "', expected UTF-8");
    }
    if (is_reserved(token)) {
      return cat("has '", token,
                 "', expected tokens other than <unk>, <s>, </s> and the bytes <0x00> to <0xFF>, "
                 "which every vocabulary has");
    }
    if (!seen.insert(token).second) return cat("has '", token, "' twice, expected distinct tokens");
  }
  return "";
}

SentencePieceResult train_sentencepiece(std::span<const fs::path> files,
                                        const SentencePieceTraining& options,
                                        const TrainingProgress& progress) {
  const std::string invalid = special_error(options.special);
  QUERN_CHECK(invalid.empty(), "tokenizer train: special ", invalid);
  SentencePieceResult result;
  const auto open = [&] { return TextLines({files.begin(), files.end()}, options.line_text_of); };
  result.text_bytes = count_bytes(open(), progress);
  QUERN_CHECK(result.text_bytes > 0, "tokenizer train: there is no text in ", files.size(),
              " file(s), the first ", files.empty() ? "" : files[0].string());
  const auto all = static_cast<double>(result.text_bytes);
  const bool sampled = options.sample_bytes > 0 && options.sample_bytes < result.text_bytes;
  const double share = sampled ? static_cast<double>(options.sample_bytes) / all : 1.0;
  SampledLines lines(open(), share, [&](int64_t read) {
    if (!progress) return;
    progress(read < 0 ? "learning" : "reading", static_cast<double>(read) / all);
  });
  if (lines.done()) {
    lines.rethrow();
    fail("tokenizer train: the sample has no line; give more --sample-bytes");
  }
  const auto status =
      sentencepiece::SentencePieceTrainer::Train(settings(options), &lines, &result.model);
  lines.rethrow();
  if (!status.ok()) fail_training(status.message(), options);
  forget_threads(result.model);
  result.used_bytes = lines.used_bytes();
  return result;
}

}  // namespace quern
