#include "data/prepare/prepare_journal.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "io/checksum.h"

namespace quern {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

template <class... T>
static void read_list(const Json& json, T&... values) {
  size_t i = 0;
  (json.at(i++).get_to(values), ...);
}

// The parts of the state are lists of their values in JSON.
static void to_json(Json& json, const Finished& x) {
  json = {{x.digest.bytes, x.digest.xxh3}, x.documents};
}

static void from_json(const Json& json, Finished& x) {
  read_list(json.at(0), x.digest.bytes, x.digest.xxh3);
  json.at(1).get_to(x.documents);
}

static void to_json(Json& json, const ReadPosition& x) {
  json = {x.offset, x.line, x.in_document, x.in_line};
}

static void from_json(const Json& json, ReadPosition& x) {
  read_list(json, x.offset, x.line, x.in_document, x.in_line);
}

static void to_json(Json& json, const ShardState& x) {
  json = {x.tokens, x.documents, x.all_tokens, x.all_documents, x.xxh3, x.finished};
}

static void from_json(const Json& json, ShardState& x) {
  read_list(json, x.tokens, x.documents, x.all_tokens, x.all_documents, x.xxh3, x.finished);
}

namespace {

// Calls f(name, field) for the members of a checkpoint's line.
template <class State, class F>
void for_each_field(State& state, F f) {
  f("source", state.source);
  f("position", state.position);
  f("source_documents", state.source_documents);
  f("documents", state.documents);
  f("in_validation", state.in_validation);
  f("train", state.train);
  f("validation", state.validation);
  f("text_bytes", state.text_bytes);
  f("empty", state.empty);
  f("end_tokens_in_text", state.end_tokens_in_text);
  f("skipped", state.skipped);
}

constexpr const char* kFormat = "quern prepare";
constexpr int64_t kVersion = 3;
constexpr size_t kChecksum = 16;  // hexadecimal digits, before a space

std::string line_of(const Json& json) {
  const std::string text = json.dump();
  return cat(checksum_of(text), ' ', text, '\n');
}

// Empty when the line is damaged.
std::string_view text_of(std::string_view line) {
  const std::string_view text = line.substr(std::min(line.size(), kChecksum + 1));
  return line.starts_with(checksum_of(text) + " ") ? text : std::string_view();
}

Json to_json(const PrepareState& state) {
  Json json;
  for_each_field(state, [&](const char* name, const auto& field) { json[name] = field; });
  return json;
}

void check_same_settings(const std::string& file, const Json& found, const Json& expected) {
  for (const auto& [key, value] : expected.items()) {
    const Json before = found.contains(key) ? found.at(key) : Json();
    QUERN_CHECK(before == value, file, ": was begun with ", key, " ", before.dump(), ", and now ",
                key, " is ", value.dump(), "; go on with the same, or remove the folder");
  }
}

void check_same_sources(const std::string& file, const Json& found, const Json& expected) {
  for (size_t i = 0; i < std::min(found.size(), expected.size()); ++i) {
    const std::string path = expected[i].at("path"), before = found[i].at("path");
    QUERN_CHECK(path == before, file, ": was begun with source ", i + 1, " ", before,
                ", and now it is ", path, "; go on with the same, or remove the folder");
    QUERN_CHECK(found[i] == expected[i], path, ": has changed since ", file,
                " was begun; remove the folder and begin anew");
  }
  QUERN_CHECK(found.size() == expected.size(), file, ": was begun with ", found.size(),
              " sources, and now there are ", expected.size(),
              "; go on with the same, or remove the folder");
}

}  // namespace

PrepareJournal::PrepareJournal(fs::path file)
    : file_(std::move(file)),
      lock_(file_, cat(file_.string(), ": another process is writing this folder")),
      descriptor_(file_, O_RDWR | O_APPEND) {
  if (!descriptor_) fail_with_errno(file_, "cannot be opened");
}

bool PrepareJournal::begun(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::string line;
  return std::getline(in, line) && !in.eof();
}

PrepareJournal PrepareJournal::create(const fs::path& file, const Json& settings,
                                      const Json& sources) {
  PrepareJournal journal(file);
  journal.truncate(0);
  journal.append(line_of(
      {{"format", kFormat}, {"version", kVersion}, {"settings", settings}, {"sources", sources}}));
  return journal;
}

PrepareJournal PrepareJournal::resume(const fs::path& file, const Json& settings,
                                      const Json& sources, PrepareState& state) {
  PrepareJournal journal(file);
  std::ifstream in(file, std::ios::binary);
  std::string line;
  int64_t end = 0, kept = 0;  // bytes of the lines read, and of those up to the last checkpoint
  int64_t number = 0;         // of lines
  std::vector<Finished> finished;
  const auto take = [&](const Json& json) {
    if (number == 1) {
      QUERN_CHECK(json.at("format") == kFormat && json.at("version") == kVersion, file.string(),
                  ": is not a journal of this version", kBeginAnew);
      check_same_run(file, json.at("settings"), json.at("sources"), settings, sources);
    } else if (json.contains("finished")) {
      finished.push_back(json.at("finished").get<Finished>());
      return;
    } else {
      for_each_field(state, [&](const char* name, auto& x) { json.at(name).get_to(x); });
      state.finished = finished;
      ++journal.checkpoints_;
    }
    kept = end;
  };
  // A line without a line feed is incomplete: the run was interrupted there.
  while (std::getline(in, line) && !in.eof()) {
    end += static_cast<int64_t>(line.size()) + 1;
    ++number;
    const std::string_view text = text_of(line);
    QUERN_CHECK(!text.empty(), file.string(), ": line ", number,
                " is damaged, expected a line that begins with its checksum", kBeginAnew);
    try {
      take(Json::parse(text));
    } catch (const nlohmann::json::exception&) {
      fail(cat(file.string(), ": line ", number, " is not of this version's form", kBeginAnew));
    }
  }
  QUERN_CHECK(state.source == state.finished.size() && state.source <= sources.size(),
              file.string(), ": has ", state.finished.size(), " finished sources at source ",
              state.source);
  journal.truncate(kept);
  journal.finished_ = state.finished.size();
  return journal;
}

void PrepareJournal::checkpoint(const PrepareState& state) {
  std::string lines;
  for (; finished_ < state.finished.size(); ++finished_) {
    lines += line_of({{"finished", state.finished[finished_]}});
  }
  append(lines + line_of(to_json(state)));
  ++checkpoints_;
}

void PrepareJournal::truncate(int64_t bytes) {
  const auto cut = [&] { return ::ftruncate(descriptor_.get(), bytes); };
  if (retried(cut) != 0) fail_with_errno(file_, "cannot be written");
}

void PrepareJournal::append(const std::string& lines) {
  if (!descriptor_.write(std::as_bytes(std::span(lines)))) {
    fail_with_errno(file_, "cannot be written");
  }
  const auto synced = [&] { return ::fdatasync(descriptor_.get()); };
  if (retried(synced) != 0) fail_with_errno(file_, "cannot be written to disk");
}

void check_same_run(const fs::path& file, const Json& found_settings, const Json& found_sources,
                    const Json& settings, const Json& sources) {
  check_same_settings(file.string(), found_settings, settings);
  check_same_sources(file.string(), found_sources, sources);
}

}  // namespace quern
