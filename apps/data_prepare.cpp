// quern data prepare: turns text into token files.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>

#include "base/counted.h"
#include "bench_flags.h"
#include "commands.h"
#include "config/config_parse.h"
#include "data/prepare/prepare.h"
#include "io/utf8.h"
#include "terminal.h"

namespace quern {

template <>
inline constexpr std::array kNamesOf<TextFormat>{"auto", "text", "jsonl"};

namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kLeastShard = 1024;  // tokens: at least twice the bytes of a file's header

std::atomic<bool> stop_requested{false};
std::atomic<int> stop_signal{0};
static_assert(std::atomic<bool>::is_always_lock_free);  // a signal handler may set them
static_assert(std::atomic<int>::is_always_lock_free);

extern "C" void stop_preparing(int signal) {
  stop_signal = signal;
  stop_requested = true;
  std::signal(signal, SIG_DFL);  // a second signal ends the program
}

PrepareOptions options_of(const ParsedArgs& parsed) {
  PrepareOptions options;
  options.inputs = parsed.positional;
  options.out = parsed.extra.at("out");
  if (options.inputs.empty()) throw UsageError("data prepare: no INPUT; give files or folders");
  if (options.out.empty()) throw UsageError("data prepare: --out is missing, the folder to write");
  options.tokenizer = parsed.extra.at("tokenizer");
  options.format = choice_of<TextFormat>(parsed, "format");
  if (parsed.extra_given.contains("field")) options.field = parsed.extra.at("field");
  options.split_on = parsed.extra.at("split_on");
  options.end_token = parsed.extra.at("end_token");
  options.validation_fraction = number_of(parsed, "validation_fraction", 0.0, 0.999999);
  options.shard_tokens = number_of<int64_t>(parsed, "shard_tokens", kLeastShard, INT32_MAX);
  options.seed = number_of<int64_t>(parsed, "seed", 0, INT64_MAX);
  options.threads = number_of(parsed, "threads", 0, 1024);
  options.checkpoint_seconds = number_of(parsed, "checkpoint_seconds", 0.0, 1e6);
  options.skip_bad = parsed.on("skip_bad");
  options.resume = parsed.on("resume");
  return options;
}

double megabytes(int64_t bytes) {
  return static_cast<double>(bytes) / 1e6;
}

// Shows the progress now and then, and measures the time.
class Progress {
 public:
  void show(const PrepareProgress& progress) {
    const auto now = Clock::now();
    if (progress_.total_bytes == 0) first_ = progress.bytes;  // where a resumed run starts reading
    progress_ = progress;
    const std::chrono::duration<double> since = now - shown_;
    if (since.count() < (progress_is_live() ? 0.2 : 10.0)) return;
    shown_ = now;
    const double seconds = std::chrono::duration<double>(now - start_).count();
    const double rate = static_cast<double>(progress.bytes - first_) / seconds;
    const auto left = static_cast<double>(progress.total_bytes - progress.bytes);
    show_progress(fmt::format("{:.0f} of {:.0f} MB  {:.1f} M tokens  {}  {:.1f} MB/s  ETA {}",
                              megabytes(progress.bytes), megabytes(progress.total_bytes),
                              megabytes(progress.tokens), counted(progress.documents, "document"),
                              rate / 1e6, rate > 0.0 ? duration_text(left / rate) : "?"));
  }
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  int64_t bytes() const { return progress_.bytes - first_; }

 private:
  PrepareProgress progress_;
  int64_t first_ = 0;
  Clock::time_point start_ = Clock::now(), shown_ = Clock::now();
};

void print_part(const char* name, const PreparedPart& part) {
  fmt::print("{:<11} {} of {} in {}\n", name, counted(part.tokens, "token"),
             counted(part.documents, "document"), counted(part.shards, "file"));
}

void print_warnings(const PrepareResult& result) {
  for (const std::string& bad : result.bad) {
    fmt::print(stderr, "quern: skipped: {}\n", printable_utf8(bad));
  }
  for (const auto& [kind, count] : result.skipped) {
    spdlog::warn("skipped {} ({})", count, kind);
  }
  if (result.empty > 0) {
    spdlog::warn("left out {} without text", counted(result.empty, "document"));
  }
  if (result.end_tokens_in_text > 0) {
    spdlog::warn("the end token occurs {} within documents' text",
                 counted(result.end_tokens_in_text, "time"));
  }
  if (!result.validation_warning.empty()) {
    spdlog::warn("{}", result.validation_warning);
  }
}

int run_data_prepare(const Arguments& args) {
  const ParsedArgs parsed = parse_command(kDataPrepareCommand, args);
  PrepareOptions options = options_of(parsed);
  Progress progress;
  options.progress = [&](const PrepareProgress& now) { progress.show(now); };
  options.stop = &stop_requested;
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, stop_preparing);
  const PrepareResult result = prepare_data(options);
  clear_progress();
  const std::string out = options.out.string();
  if (result.was_complete) {
    fmt::print("{}: is complete already\n", out);
    return 0;
  }
  print_warnings(result);
  if (result.interrupted) {
    fmt::print(stderr, "quern: stopped; the same command with --resume continues\n");
    return 128 + stop_signal;
  }
  print_part("train", result.train);
  print_part("validation", result.validation);
  fmt::print("{}: {}, {:.1f} MB in {:.1f} s, {:.1f} MB/s of text\n", out,
             counted(result.sources, "source"), megabytes(result.bytes), progress.seconds(),
             megabytes(result.text_bytes) / progress.seconds());
  return 0;
}

}  // namespace

const Command kDataPrepareCommand{
    "data prepare",
    "turn text into token files",
    R"(Usage: quern data prepare INPUT... --out FOLDER [--FLAG VALUE ...]

Writes FOLDER/train_00000.bin, ... and FOLDER/validation_00000.bin, ..., a JSON
description beside each, FOLDER/sources.json and FOLDER/tokenizer. An INPUT is
a file, a folder (with its subfolders) or a quoted pattern
('data/*.jsonl.zst'). gzip and zstd are detected from the content. docs/data.md
describes each kind of input.

Ctrl-C and SIGTERM stop it so that --resume can continue; the exit code is then
128 plus the signal's number.
)",
    run_data_prepare,
    {{"out", "the folder to write; it must not exist", ""},
     {"tokenizer", "bytes, a tokenizer.json or tokenizer.model, or a folder with one", "bytes"},
     {"format", "auto (by name), text, or jsonl", "auto"},
     {"field", "JSONL: the member that holds the text", "text"},
     {"split_on", "text: a line that separates documents, or blank; default: a file is a document",
      ""},
     {"end_token", "token after each document: auto (the tokenizer's), none, or a token", "auto"},
     {"validation_fraction", "part held out: of the documents, or of few texts; 0: none", "0.01"},
     {"shard_tokens", "tokens of every token file but the last, at least 1024", "100000000"},
     {"seed", "seed of the choice of validation documents", "0"},
     {"threads", "encoding threads; 0: one a core", "0"},
     {"skip_bad", "count broken lines and files, and continue", "", true},
     {"checkpoint_seconds", "seconds between checkpoints for --resume", "5"},
     {"resume", "continue an interrupted run", "", true}}};

}  // namespace quern
