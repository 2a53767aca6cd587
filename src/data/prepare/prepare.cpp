#include "data/prepare/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "base/error.h"
#include "data/prepare/encode_pipeline.h"
#include "data/prepare/prepare_journal.h"
#include "data/prepare/prepare_plan.h"
#include "data/prepare/shard_writer.h"
#include "io/atomic_file.h"
#include "io/folder.h"
#include "io/json_file.h"
#include "text/tokenizer_files.h"

namespace quern {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

namespace {

constexpr size_t kMostInFlight = size_t{64} << 20;
constexpr size_t kMostMessages = 10;
constexpr const char* kJournal = "journal.jsonl";
constexpr const char* kSources = "sources.json";
constexpr const char* kSourcesFormat = "quern sources";
constexpr const char* kBadInput[] = {"not_text",     "bad_json", "no_field",
                                     "not_a_string", "bad_utf8", "too_long"};  // by Kind

std::string message_of(const BadInput& bad, const fs::path& path) {
  std::string text = path.string();
  if (bad.line > 0) text += fmt::format(":{}", bad.line);
  if (bad.column > 0) text += fmt::format(":{}", bad.column);
  return text + ": " + bad.what;
}

// Reads the sources in order, in blocks.
class SourceReader {
 public:
  // Starts at `position` in source number `source`.
  SourceReader(const PreparePlan& plan, const PrepareOptions& options, size_t source,
               ReadPosition position)
      : plan_(plan),
        options_(options),
        cutter_(*plan.tokenizer, options.pieces),
        source_(source),
        position_(position) {
    for (size_t i = 0; i < source; ++i) bytes_read_ += plan.sources[i].bytes;
  }

  // Reads the next block; false after the last source. The last block of a source is empty and has
  // its digest. Throws also when a source's size changed during the run.
  bool next(SourceBlock& out) {
    out = {};
    if (source_ == plan_.sources.size()) return false;
    const PrepareSource& source = plan_.sources[source_];
    if (!reader_) open(source);
    out.source = source_;
    out.json_lines = source.json_lines;
    if (!reader_->next(out.block)) {
      out.digest = digest_->digest();
      QUERN_CHECK(out.digest->bytes == source.bytes, source.path.string(), ": had ", source.bytes,
                  " bytes when it was opened, and ", out.digest->bytes, " were read");
      reader_.reset();
      ++source_;
      position_ = {};
    }
    out.bytes_read = bytes_read_;
    return true;
  }

 private:
  void open(const PrepareSource& source) {
    digest_ = std::make_unique<DigestStream>();
    auto stream = open_byte_stream(source.path, [this](std::span<const std::byte> bytes) {
      digest_->add(bytes);
      bytes_read_ += static_cast<int64_t>(bytes.size());
    });
    DocumentReaderOptions options;
    options.path = source.path;
    options.split_on = options_.split_on;
    if (plan_.cut && plan_.cut->source == source_) options.cut_at = plan_.cut->byte;
    options.block = options_.block;
    options.longest_line = options_.longest_line;
    reader_ = source.json_lines
                  ? read_json_lines(std::move(stream), position_, options)
                  : read_text_documents(std::move(stream), cutter_, position_, options);
  }

  const PreparePlan& plan_;
  const PrepareOptions& options_;
  PieceCutter cutter_;
  size_t source_;
  ReadPosition position_;
  int64_t bytes_read_ = 0;  // on-disk bytes of all sources
  std::unique_ptr<DigestStream> digest_;
  std::unique_ptr<DocumentReader> reader_;
};

// One run, from a start state through checkpoints to the end.
class Preparation {
 public:
  Preparation(const PrepareOptions& options, const PreparePlan& plan, fs::path folder,
              PrepareJournal journal, PrepareState state)
      : options_(options),
        plan_(plan),
        folder_(std::move(folder)),
        journal_(std::move(journal)),
        state_(std::move(state)),
        train_(folder_, "train", plan.sidecar, options.shard_tokens, state_.train),
        validation_(folder_, "validation", plan.sidecar, options.shard_tokens, state_.validation) {}

  // Returns false when options.stop ended the run.
  bool run() {
    SourceReader reader(plan_, options_, state_.source, state_.position);
    const EncodeSettings settings{plan_.sidecar.end_token, plan_.sidecar.encoding, plan_.field,
                                  options_.pieces};
    const auto make_encoder = [&] {
      return std::make_unique<BlockEncoder>(*plan_.tokenizer, settings);
    };
    const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    EncodePipeline pipeline([&](SourceBlock& block) { return reader.next(block); }, make_encoder,
                            options_.threads > 0 ? options_.threads : cores, kMostInFlight);
    auto last = Clock::now();
    while (std::optional<EncodedBlock> block = pipeline.next()) {
      take(*block);
      if (options_.progress) report(block->bytes_read);
      const bool stopped = options_.stop && *options_.stop;
      const std::chrono::duration<double> passed = Clock::now() - last;
      if (stopped || passed.count() >= options_.checkpoint_seconds) {
        checkpoint();
        last = Clock::now();
      }
      if (stopped) return false;
    }
    return true;
  }

  // Throws when a part is empty.
  void check_not_empty() const {
    const int64_t train = train_.state().all_documents, held = validation_.state().all_documents;
    QUERN_CHECK(state_.documents > 0, "the inputs hold no document with text");
    QUERN_CHECK(train > 0, "the train part is empty with validation_fraction ",
                options_.validation_fraction, " (documents in all: ", held, "); make that smaller");
    QUERN_CHECK(held > 0 || options_.validation_fraction == 0.0,
                "the validation part is empty with validation_fraction ",
                options_.validation_fraction, " (documents in all: ", train,
                "); make that larger, or 0");
  }

  void finish() {
    train_.finish();
    validation_.finish();
    remove_tree(folder_ / "tokenizer");  // left by a run that was interrupted here
    copy_tokenizer(options_.tokenizer, folder_ / "tokenizer");
    write_file_atomically(folder_ / kSources, sources_text());
  }

  // A warning when the validation part is not what the user may expect; otherwise empty.
  std::string validation_warning() const {
    const double fraction = options_.validation_fraction;
    if (plan_.cut) {
      const PrepareSource& source = plan_.sources[plan_.cut->source];
      const bool one = source.bytes == plan_.total_bytes;
      return one ? ""
                 : fmt::format(
                       "the text files, a document each, are too few to split by document; "
                       "the validation part is the last {:.4g} % of the text, from {}, byte {} on",
                       100.0 * fraction, source.path.string(), plan_.cut->byte);
    }
    const auto held = static_cast<double>(validation_.state().all_tokens);
    const double share = held / (held + static_cast<double>(train_.state().all_tokens));
    if (fraction == 0.0 || meets_fraction(share, fraction)) return "";
    return fmt::format(
        "the validation part holds {:.2g} % of the tokens, expected {:.4g} %: documents are not "
        "divided, and the {} are few or unequal; try another --seed",
        100.0 * share, 100.0 * fraction, state_.documents);
  }

  // True when removing the folder would lose work.
  bool has_progress() const { return journal_.checkpoints() > 0; }

  PrepareResult result() const {
    PrepareResult result;
    result.train = part(train_);
    result.validation = part(validation_);
    result.sources = static_cast<int64_t>(plan_.sources.size());
    result.bytes = plan_.total_bytes;
    result.text_bytes = state_.text_bytes;
    result.empty = state_.empty;
    result.skipped = state_.skipped;
    result.bad = bad_;
    result.end_tokens_in_text = state_.end_tokens_in_text;
    return result;
  }

 private:
  static PreparedPart part(const ShardWriter& writer) {
    const ShardState& state = writer.state();
    return {state.shard() + (state.tokens > 0), state.all_tokens, state.all_documents};
  }

  void take(const EncodedBlock& block) {
    const fs::path& path = plan_.sources[block.source].path;
    for (const BadInput& bad : block.bad) {
      const std::string message = message_of(bad, path);
      QUERN_CHECK(options_.skip_bad, message, " (--skip_bad skips bad input)");
      ++state_.skipped[kBadInput[static_cast<size_t>(bad.kind)]];
      if (bad_.size() < kMostMessages) bad_.push_back(message);
    }
    write(block);
    state_.text_bytes += block.text_bytes;
    state_.empty += block.empty;
    state_.end_tokens_in_text += block.end_tokens_in_text;
    state_.source = block.source;
    state_.position = block.end;
    if (block.digest) {
      state_.finished.push_back({*block.digest, state_.source_documents});
      ++state_.source;
      state_.position = {};
      state_.source_documents = 0;
    }
  }

  void write(const EncodedBlock& block) {
    std::span<const std::byte> rest = block.elements;
    for (const EncodedPart& part : block.parts) {
      if (part.begins) {
        state_.in_validation =
            plan_.validates(state_.documents, block.source, state_.source_documents, options_);
        ++state_.documents;
        ++state_.source_documents;
      }
      const auto bytes = static_cast<size_t>(part.tokens * bytes_per_token(plan_.sidecar.encoding));
      (state_.in_validation ? validation_ : train_).write(rest.first(bytes), part.begins);
      rest = rest.subspan(bytes);
    }
  }

  void report(int64_t bytes_read) const {
    options_.progress({bytes_read, plan_.total_bytes,
                       train_.state().all_tokens + validation_.state().all_tokens,
                       state_.documents});
  }

  void checkpoint() {
    train_.sync();
    validation_.sync();
    state_.train = train_.state();
    state_.validation = validation_.state();
    journal_.checkpoint(state_);
  }

  std::string sources_text() const {
    const auto part_json = [](const PreparedPart& part) {
      return Json{{"shards", part.shards}, {"tokens", part.tokens}, {"documents", part.documents}};
    };
    Json json;
    json["format"] = kSourcesFormat;
    json["version"] = 1;
    json["settings"] = settings_json(plan_, options_);
    json["train"] = part_json(part(train_));
    json["validation"] = part_json(part(validation_));
    json["text_bytes"] = state_.text_bytes;
    json["empty"] = state_.empty;
    json["skipped"] = state_.skipped;
    json["end_tokens_in_text"] = state_.end_tokens_in_text;
    Json sources = sources_json(plan_);
    for (size_t i = 0; i < sources.size(); ++i) {
      sources[i].erase("modified");  // the same content gives the same folder
      sources[i]["xxh3"] = hex(state_.finished[i].digest.xxh3);
      sources[i]["documents"] = state_.finished[i].documents;
    }
    json["sources"] = sources;
    return json.dump(1) + "\n";
  }

  const PrepareOptions& options_;
  const PreparePlan& plan_;
  fs::path folder_;
  PrepareJournal journal_;
  PrepareState state_;
  ShardWriter train_, validation_;
  std::vector<std::string> bad_;
};

// Throws unless `folder` is the result of this run.
void check_complete(const fs::path& folder, const PrepareOptions& options,
                    const PreparePlan& plan) {
  const fs::path file = folder / kSources;
  QUERN_CHECK(fs::exists(file), folder.string(), ": is there already and was not prepared (no ",
              kSources, "), expected a new folder");
  const Json json = read_json_object(file);
  QUERN_CHECK(json.value("format", "") == kSourcesFormat && json.contains("settings") &&
                  json.contains("sources"),
              file.string(), ": format is not \"", kSourcesFormat, "\"");
  Json found = json.at("sources"), expected = sources_json(plan);
  for (Json& source : found) {
    source.erase("xxh3");
    source.erase("documents");
  }
  for (Json& source : expected) source.erase("modified");
  check_same_run(file, json.at("settings"), found, settings_json(plan, options), expected);
}

// Whether `part` is absent, empty, or has a journal without a first line.
bool holds_nothing_yet(const fs::path& part) {
  if (!fs::exists(part)) return true;
  return std::ranges::all_of(entries_of(part),
                             [](const fs::path& path) { return path.filename() == kJournal; });
}

PrepareResult run_in(const fs::path& part, const PrepareOptions& options, const PreparePlan& plan) {
  const bool goes_on = PrepareJournal::begun(part / kJournal);
  if (!goes_on) create_folder(part);
  PrepareState state;
  const Json settings = settings_json(plan, options), sources = sources_json(plan);
  PrepareJournal journal = goes_on
                               ? PrepareJournal::resume(part / kJournal, settings, sources, state)
                               : PrepareJournal::create(part / kJournal, settings, sources);
  Preparation preparation(options, plan, part, std::move(journal), std::move(state));
  bool keep = true;  // whether an error leaves the written files
  try {
    const bool whole = preparation.run();
    if (whole) {
      keep = false;
      preparation.check_not_empty();
      keep = true;
      preparation.finish();
      remove_tree(part / kJournal);  // then the folder is complete but for its name
      QUERN_CHECK(!fs::exists(options.out), options.out.string(),
                  ": has been made meanwhile; move it away");
      place_new_folder(part, options.out);
    }
    PrepareResult result = preparation.result();
    result.interrupted = !whole;
    if (whole) result.validation_warning = preparation.validation_warning();
    return result;
  } catch (const Error& error) {
    if (keep && preparation.has_progress()) {
      fail(cat(error.what(), "\n", part.string(),
               " keeps the work so far; the same command with --resume continues from there"));
    }
    std::error_code ignored;  // the first error counts
    remove_tree(part, ignored);
    throw;
  }
}

}  // namespace

PrepareResult prepare_data(const PrepareOptions& given) {
  PrepareOptions options = given;
  options.out = without_slash(options.out);
  const fs::path part = fs::path(options.out) += ".part";
  QUERN_CHECK(options.resume || !fs::exists(options.out), options.out.string(),
              ": exists already, expected a new folder");
  const bool renamed = fs::exists(options.out);
  const bool unnamed = !renamed && !fs::exists(part / kJournal) && fs::exists(part / kSources);
  const bool begun = PrepareJournal::begun(part / kJournal);
  QUERN_CHECK(options.resume || (!unnamed && !begun), part.string(),
              ": holds the work of an interrupted run; --resume continues it, or remove it");
  QUERN_CHECK(renamed || unnamed || begun || holds_nothing_yet(part), part.string(),
              ": is there, but is not the work of an interrupted run; remove it");
  const PreparePlan plan = plan_prepare(options);
  if (!renamed && !unnamed) return run_in(part, options, plan);
  check_complete(renamed ? options.out : part, options, plan);
  if (unnamed) place_new_folder(part, options.out);
  PrepareResult result;
  result.was_complete = true;
  return result;
}

}  // namespace quern
