// quern data inspect: shows the contents of token files.
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/counted.h"
#include "bench_flags.h"
#include "commands.h"
#include "config/config_parse.h"
#include "data/inspect_tokens.h"
#include "io/utf8.h"

namespace quern {

namespace {

using Json = nlohmann::ordered_json;

InspectOptions options_of(const ParsedArgs& parsed) {
  if (parsed.positional.size() != 1) {
    throw UsageError(cat("data inspect: found ", parsed.positional.size(),
                         " paths, expected one (a pattern in quotes)"));
  }
  const bool window = parsed.extra_given.contains("window");
  const bool offset = parsed.extra_given.contains("offset");
  if (window && offset) throw UsageError("data inspect: found --window and --offset, expected one");
  InspectOptions options;
  options.path = parsed.positional[0];
  options.tokenizer = parsed.extra.at("tokenizer");
  options.verify = parsed.on("verify");
  options.length = count_of(parsed, "length", 1);
  if (window) {
    const int64_t number = count_of(parsed, "window", 0);
    if (number > INT64_MAX / options.length) {
      throw UsageError(cat("--window is ", number, ", too many of --length ", options.length));
    }
    options.window = number * options.length;
  }
  if (offset) options.window = count_of(parsed, "offset", 0);
  return options;
}

Json part_json(const InspectedPart& part) {
  Json files = Json::array();
  for (const InspectedFile& file : part.files) {
    Json one = {{"path", replace_invalid_utf8(file.path.string())},
                {"encoding", name_of(file.encoding)},
                {"tokens", file.tokens}};
    if (file.sidecar) {
      one["documents"] = file.sidecar->documents;
      one["vocabulary"] = file.sidecar->vocabulary;
      one["tokenizer"] = {{"kind", file.sidecar->tokenizer_kind},
                          {"hash", file.sidecar->tokenizer_hash}};
    }
    files.push_back(one);
  }
  const LengthStats& lengths = part.lengths;
  Json json = {{"name", part.name}, {"tokens", part.tokens}, {"largest_token", part.largest}};
  json["documents"] = part.documents ? Json(*part.documents) : Json(nullptr);
  json["lengths"] = {{"documents", lengths.documents}, {"shortest", lengths.shortest},
                     {"median", lengths.median},       {"mean", lengths.mean},
                     {"longest", lengths.longest},     {"histogram", lengths.histogram},
                     {"unfinished", part.unfinished}};
  json["files"] = files;
  return json;
}

void print_json(const Inspection& inspection, bool verified) {
  Json json;
  json["verified"] = verified;
  json["end_token"] = inspection.end_token ? Json(*inspection.end_token) : Json(nullptr);
  for (const InspectedPart& part : inspection.parts) json["parts"].push_back(part_json(part));
  Json window = {{"offset", inspection.window_begin}, {"tokens", inspection.window}};
  if (inspection.tokenizer) {
    window["text"] = replace_invalid_utf8(inspection.tokenizer->decode(inspection.window));
  }
  json["window"] = window;
  fmt::print("{}\n", json.dump());
}

void print_histogram(const LengthStats& lengths) {
  const int64_t most = *std::max_element(lengths.histogram.begin(), lengths.histogram.end());
  for (size_t place = 0; place < lengths.histogram.size(); ++place) {
    const int64_t count = lengths.histogram[place];
    if (count == 0) continue;
    const int64_t low = place == 0 ? 0 : int64_t{1} << (place - 1);
    const int64_t high = place == 0 ? 0 : (int64_t{1} << place) - 1;
    constexpr int64_t kWidth = 40;
    const auto width = static_cast<size_t>(std::max<int64_t>(1, count * kWidth / most));
    fmt::print("  {:>12} to {:<12} {:>10}  {}\n", low, high, count, std::string(width, '#'));
  }
}

void print_part(const InspectedPart& part, std::optional<int32_t> end_token, bool verified) {
  fmt::print("{}\n", part.name);
  for (const InspectedFile& file : part.files) {
    fmt::print("  {}: {}, {}", file.path.string(), name_of(file.encoding),
               counted(file.tokens, "token"));
    if (file.sidecar) {
      fmt::print(", {}, vocabulary {}, tokenizer {} ({}){}",
                 counted(file.sidecar->documents, "document"), file.sidecar->vocabulary,
                 file.sidecar->tokenizer_kind, file.sidecar->tokenizer_hash,
                 verified ? ", checksum verified" : "");
    }
    fmt::print("\n");
  }
  fmt::print("  {} in all, the largest {}\n", counted(part.tokens, "token"), part.largest);
  if (!end_token) {
    fmt::print("  documents: the end token is not known\n");
    return;
  }
  const LengthStats& lengths = part.lengths;
  fmt::print("  {} ended by token {}", counted(lengths.documents, "document"), *end_token);
  if (part.unfinished > 0) {
    fmt::print(", and {} after the last", counted(part.unfinished, "token"));
  }
  fmt::print("\n");
  if (lengths.documents == 0) return;
  fmt::print("  lengths in tokens: {} shortest, {} median, {:.1f} mean, {} longest\n",
             lengths.shortest, lengths.median, lengths.mean, lengths.longest);
  print_histogram(lengths);
}

void print_window(const Inspection& inspection) {
  fmt::print("tokens {} to {} of {}\n", inspection.window_begin,
             inspection.window_begin + static_cast<int64_t>(inspection.window.size()) - 1,
             inspection.parts[0].name);
  fmt::print("  {}\n", fmt::join(inspection.window, " "));
  if (inspection.tokenizer) {
    const std::string text = inspection.tokenizer->decode(inspection.window);
    const bool terminal = isatty(STDOUT_FILENO) != 0;
    fmt::print("{}\n", terminal ? printable_utf8(text) : replace_invalid_utf8(text));
  } else {
    fmt::print("  --tokenizer shows them as text\n");
  }
}

int run_data_inspect(const Arguments& args) {
  const ParsedArgs parsed = parse_command(kDataInspectCommand, args);
  const InspectOptions options = options_of(parsed);
  const Inspection inspection = inspect_tokens(options);
  for (const InspectedPart& part : inspection.parts) {
    for (const InspectedFile& file : part.files) {
      if (file.encoding != TokenEncoding::raw_u16 || file.path.extension() == ".bin") continue;
      spdlog::warn("{}: does not end in .bin; its bytes are read as tokens of 16 bits",
                   file.path.string());
    }
  }
  if (parsed.on("json")) {
    print_json(inspection, options.verify);
    return 0;
  }
  for (const InspectedPart& part : inspection.parts) {
    print_part(part, inspection.end_token, options.verify);
  }
  print_window(inspection);
  return 0;
}

}  // namespace

const Command kDataInspectCommand{
    "data inspect",
    "show the contents of token files",
    R"(Usage: quern data inspect PATH [--FLAG VALUE ...]

PATH is a token file (llm.c's or nanoGPT's), a folder of `quern data prepare`,
or a quoted pattern. Shows format, counts, the largest token, the lengths of
the documents, and a window of the tokens (of the training split) as text.
Reads every token.
)",
    run_data_inspect,
    {{"window", "shows window number N of --length tokens", ""},
     {"offset", "shows the window that begins at token N", ""},
     {"length", "tokens of the window", "64"},
     {"tokenizer", "bytes, a file or a folder; by default the folder's own", ""},
     {"verify", "compare the files' checksums with those in the sidecars", "", true},
     {"json", "print one JSON object", "", true}}};

}  // namespace quern
