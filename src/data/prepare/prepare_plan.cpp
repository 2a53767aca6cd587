#include "data/prepare/prepare_plan.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/parse_number.h"
#include "base/philox.h"
#include "data/prepare/json_text.h"
#include "io/input_files.h"
#include "io/utf8.h"
#include "text/tokenizer_files.h"

namespace quern {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

void check_options(const PrepareOptions& options) {
  QUERN_CHECK(!options.inputs.empty(), "prepare: no inputs, expected files, folders or patterns");
  QUERN_CHECK(!options.out.empty(), "prepare: no folder to write");
  QUERN_CHECK(options.validation_fraction >= 0.0 && options.validation_fraction < 1.0,
              "prepare: validation_fraction is ", options.validation_fraction,
              ", expected 0 or more and less than 1");
  QUERN_CHECK(options.shard_tokens > 0 && options.shard_tokens <= INT32_MAX,
              "prepare: shard_tokens is ", options.shard_tokens, ", expected 1 to ", INT32_MAX);
  QUERN_CHECK(options.field != "", "prepare: field is empty, expected a member's name");
}

bool lies_in(const fs::path& path, const fs::path& folder) {
  const fs::path inner = fs::weakly_canonical(path), outer = fs::weakly_canonical(folder);
  return std::ranges::mismatch(outer, inner).in1 == outer.end();
}

// The output must not become input when the run is resumed.
void check_out_is_elsewhere(const PrepareOptions& options) {
  for (const std::string& input : options.inputs) {
    QUERN_CHECK(!fs::is_directory(input) || !lies_in(options.out, input), options.out.string(),
                ": lies in the input folder ", input, ", expected a folder elsewhere");
  }
}

bool is_json_lines(const fs::path& path, TextFormat format) {
  if (format != TextFormat::automatic) return format == TextFormat::jsonl;
  QUERN_CHECK(text_extension(path) != ".json", path.string(),
              ": may be JSON lines or one text; choose with --format jsonl or --format text");
  return is_named_json_lines(path);
}

std::vector<PrepareSource> find_sources(const PrepareOptions& options) {
  std::vector<PrepareSource> sources;
  const fs::path part = fs::path(options.out) += ".part";
  for (const fs::path& path : find_input_files(options.inputs)) {
    if (lies_in(path, part)) continue;  // a pattern matches the unfinished output
    const auto modified = fs::last_write_time(path).time_since_epoch();
    sources.push_back({path, static_cast<int64_t>(fs::file_size(path)),
                       std::chrono::duration_cast<std::chrono::nanoseconds>(modified).count(),
                       is_json_lines(path, options.format)});
  }
  QUERN_CHECK(!sources.empty(), options.inputs[0], ": matches only the unfinished output ",
              part.string(), ", expected files of text");
  return sources;
}

// Refuses an option that applies to no source.
void check_formats(const std::vector<PrepareSource>& sources, const PrepareOptions& options) {
  const auto lines = std::ranges::count(sources, true, &PrepareSource::json_lines);
  if (!options.split_on.empty() && lines == std::ssize(sources)) {
    throw UsageError(cat("--split_on has no meaning with JSONL alone: found ",
                         sources[0].path.string(), ", expected a text file among the inputs"));
  }
  if (options.field) check_field_has_use(lines > 0, sources[0].path);
}

std::optional<int32_t> choose_end_token(const Tokenizer& tokenizer, const PrepareOptions& options) {
  const std::string& word = options.end_token;
  if (word == "none") return std::nullopt;
  if (word == "auto") {
    QUERN_CHECK(tokenizer.end_token(), "the tokenizer ", options.tokenizer,
                " has no end token to separate documents; give a token id with --end_token, or "
                "--end_token none");
    return tokenizer.end_token();
  }
  const std::optional<int32_t> token = parse_number<int32_t>(word);
  QUERN_CHECK(token >= 0 && token < tokenizer.vocabulary(), "end_token is '", word,
              "', expected auto, none, or a token from 0 to ", tokenizer.vocabulary() - 1);
  return token;
}

TokenSidecar common_sidecar(const Tokenizer& tokenizer, std::optional<int32_t> end_token) {
  TokenSidecar sidecar;
  sidecar.vocabulary = tokenizer.vocabulary();
  sidecar.encoding =
      sidecar.vocabulary <= 65536 ? TokenEncoding::llmc_u16 : TokenEncoding::llmc_u32;
  sidecar.end_token = end_token;
  sidecar.tokenizer_kind = tokenizer.kind();
  sidecar.tokenizer_hash = tokenizer.hash();
  return sidecar;
}

// Each text file is a document, so the validation part's share is known before reading. If whole
// documents miss the fraction, as few documents do, the validation part is the end of the text.
void cut_few_documents(PreparePlan& plan, const PrepareOptions& options) {
  constexpr size_t kFew = 1000;
  const bool known = options.split_on.empty() && plan.sources.size() <= kFew &&
                     std::ranges::none_of(plan.sources, &PrepareSource::json_lines);
  if (!known || options.validation_fraction == 0.0) return;
  const auto total = static_cast<double>(plan.total_bytes);
  int64_t index = 0, validated = 0;
  for (size_t i = 0; i < plan.sources.size(); ++i) {
    const int64_t bytes = plan.sources[i].bytes;
    if (bytes > 0 && plan.validates(index++, i, 0, options)) validated += bytes;
  }
  if (meets_fraction(static_cast<double>(validated) / total, options.validation_fraction)) return;
  double before = total * (1.0 - options.validation_fraction);
  size_t source = 0;
  for (; source + 1 < plan.sources.size(); ++source) {
    const auto bytes = static_cast<double>(plan.sources[source].bytes);
    if (before < bytes) break;
    before -= bytes;
  }
  const PrepareSource& last = plan.sources[source];
  if (last.bytes > 0) before /= static_cast<double>(last.bytes);
  // At the boundary of two files the cut is at byte 0, not behind the first line.
  plan.cut = {source, before > 0.0 ? line_at_fraction(last.path, std::min(before, 1.0)) : 0};
}

}  // namespace

bool meets_fraction(double share, double fraction) {
  return std::abs(share - fraction) <= std::min(fraction, 1.0 - fraction) / 2.0;
}

bool PreparePlan::validates(int64_t index, size_t source, int64_t index_in_source,
                            const PrepareOptions& options) const {
  if (cut) {
    return source > cut->source ||
           (source == cut->source && (cut->byte == 0 || index_in_source > 0));
  }
  const double number = kernels::philox_unit<double>(
      kernels::philox_block(static_cast<uint64_t>(options.seed), static_cast<uint64_t>(index)));
  return number < options.validation_fraction;
}

PreparePlan plan_prepare(const PrepareOptions& options) {
  check_options(options);
  check_out_is_elsewhere(options);
  PreparePlan plan;
  plan.sources = find_sources(options);
  check_formats(plan.sources, options);
  plan.field = options.field.value_or("text");
  plan.tokenizer = open_tokenizer(options.tokenizer);
  plan.sidecar = common_sidecar(*plan.tokenizer, choose_end_token(*plan.tokenizer, options));
  for (const PrepareSource& source : plan.sources) plan.total_bytes += source.bytes;
  QUERN_CHECK(plan.total_bytes > 0, plan.sources[0].path.string(),
              plan.sources.size() > 1 ? " and all other inputs are empty" : ": is empty");
  cut_few_documents(plan, options);
  return plan;
}

Json settings_json(const PreparePlan& plan, const PrepareOptions& options) {
  Json settings;
  settings["tokenizer"] = {{"kind", plan.tokenizer->kind()}, {"hash", plan.tokenizer->hash()}};
  settings["vocabulary"] = plan.sidecar.vocabulary;
  settings["end_token"] = plan.sidecar.end_token ? Json(*plan.sidecar.end_token) : Json(nullptr);
  settings["field"] = plan.field;
  settings["split_on"] = options.split_on;
  settings["validation_fraction"] = options.validation_fraction;
  settings["validation_begins_at"] =
      plan.cut ? Json{{"source", plan.cut->source}, {"byte", plan.cut->byte}} : Json(nullptr);
  settings["seed"] = options.seed;
  settings["shard_tokens"] = options.shard_tokens;
  settings["piece_bytes"] = {options.pieces.target, options.pieces.longest, options.pieces.probe};
  settings["longest_line"] = options.longest_line;
  return settings;
}

Json sources_json(const PreparePlan& plan) {
  Json sources = Json::array();
  for (const PrepareSource& source : plan.sources) {
    sources.push_back({{"path", replace_invalid_utf8(source.path.string())},  // JSON is UTF-8
                       {"format", source.json_lines ? "jsonl" : "text"},
                       {"bytes", source.bytes},
                       {"modified", source.modified}});
  }
  return sources;
}

}  // namespace quern
