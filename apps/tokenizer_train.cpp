// quern tokenizer train: makes a subword vocabulary from text.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "base/counted.h"
#include "base/error.h"
#include "bench_flags.h"
#include "commands.h"
#include "data/document_reader.h"
#include "data/prepare/json_text.h"
#include "io/atomic_file.h"
#include "io/input_files.h"
#include "terminal.h"
#include "text/sentencepiece_trainer.h"
#include "text/tokenizer_files.h"

namespace quern {

namespace {

std::vector<std::string> special_of(const ParsedArgs& parsed) {
  const std::string& list = parsed.extra.at("special");
  if (list.empty()) return {};
  std::vector<std::string> tokens = split_commas(list);
  const std::string invalid = special_error(tokens);
  if (!invalid.empty()) throw UsageError("--special " + invalid);
  return tokens;
}

// JSON lines have their text in a member; other files are plain text.
LineTextOf line_text_of(const std::string& field) {
  return [field](const std::filesystem::path& file) -> LineText {
    if (!is_named_json_lines(file)) return {};
    return [file, field](int64_t number, std::string_view line, std::string& text) {
      if (const auto bad = read_json_text(line, field, text)) {
        fail(fmt::format("{}:{}:{}: {}", file.string(), number, bad->column, bad->what));
      }
    };
  };
}

SentencePieceTraining options_of(const ParsedArgs& parsed) {
  SentencePieceTraining options;
  for (const char* flag : {"vocab", "out"}) {
    if (!parsed.extra.at(flag).empty()) continue;
    throw UsageError(
        fmt::format("tokenizer train: --{} is missing\n{}", flag, kTokenizerTrainCommand.usage));
  }
  options.vocabulary = number_of<int64_t>(parsed, "vocab", 1, 1 << 24);
  options.line_text_of = line_text_of(parsed.extra.at("field"));
  options.special = special_of(parsed);
  options.split_digits = truth_of(parsed, "split_digits");
  options.coverage = number_of(parsed, "coverage", 0.98, 1.0);  // SentencePiece's limits
  options.sample_bytes = count_of(parsed, "sample_bytes", 0);
  options.threads = static_cast<int>(std::min<int64_t>(count_of(parsed, "threads", 0), 1024));
  if (options.threads == 0) {
    options.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  }
  return options;
}

int run_tokenizer_train(const Arguments& args) {
  const ParsedArgs parsed = parse_command(kTokenizerTrainCommand, args, "no INPUT", 1);
  const SentencePieceTraining options = options_of(parsed);
  const std::string out = parsed.extra.at("out");
  const auto start = std::chrono::steady_clock::now();
  // Refuses an existing folder. Removes the rest of an interrupted run, which an input may match.
  { const AtomicFolder earlier(out, "tokenizer train"); }
  const auto files = find_input_files(parsed.positional);
  if (parsed.extra_given.contains("field")) {
    check_field_has_use(std::ranges::any_of(files, is_named_json_lines), files.front());
  }
  for (const auto& file : files) check_is_text(file);
  AtomicFolder staging(out, "tokenizer train");
  const bool live = progress_is_live();
  std::string shown;
  const auto show = [&](const std::string& what, double part) {
    if (live || what != shown) {
      show_progress(part < 0.0 || !live ? what : fmt::format("{} {:.0f} %", what, 100.0 * part));
    }
    shown = what;
  };
  const SentencePieceResult result = train_sentencepiece(files, options, show);
  clear_progress();
  const auto tokenizer = write_sentencepiece(staging.temporary(), result.model);
  staging.commit();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  fmt::print("{}: {} tokens from {:.1f} of {:.1f} MB in {}, in {:.1f} s, hash {}\n", out,
             tokenizer->vocabulary(), static_cast<double>(result.used_bytes) / 1e6,
             static_cast<double>(result.text_bytes) / 1e6, counted(std::ssize(files), "file"),
             seconds.count(), tokenizer->hash());
  return 0;
}

}  // namespace

const Command kTokenizerTrainCommand{
    "tokenizer train",
    "train a subword tokenizer",
    R"(Usage: quern tokenizer train INPUT... --vocab N --out FOLDER [--FLAG VALUE ...]

Trains a SentencePiece BPE with byte fallback and writes FOLDER/tokenizer.model
and the two files that transformers' AutoTokenizer needs beside it. Encoded
text decodes to the same bytes. An INPUT is a file of UTF-8 text, a folder
(with its subfolders) or a quoted pattern ('data/*.txt.zst'). gzip and zstd are
detected from the content, JSONL from the extensions .jsonl and .ndjson.
)",
    run_tokenizer_train,
    {{"vocab", "vocabulary size, including <unk>, <s>, </s> and the 256 bytes", ""},
     {"out", "the folder to write; it must not exist", ""},
     {"field", "JSONL: the member that holds the text", "text"},
     {"split_digits", "each digit is a token: true or false", "true"},
     {"special", "additional tokens without text, separated by commas", ""},
     {"coverage", "part of the text whose characters get tokens; rarer ones are bytes", "0.9995"},
     {"sample_bytes", "bytes of text to train on, sampled by lines; 0: all", "100000000"},
     {"threads", "training threads; 0: one a core", "0"}}};

}  // namespace quern
