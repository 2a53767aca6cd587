#include "report/metrics_reader.h"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/utf8.h"

namespace quern {

namespace {

using Json = nlohmann::json;

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kMostWarnings = 10;

double number(const Json& row, const char* key, double otherwise) {
  const auto found = row.find(key);
  return found != row.end() && found->is_number() ? found->get<double>() : otherwise;
}

int64_t integer(const Json& row, const char* key) {
  const auto found = row.find(key);
  return found != row.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

std::string text(const Json& row, const char* key) {
  const auto found = row.find(key);
  return found != row.end() && found->is_string() ? found->get<std::string>() : "";
}

StepMetrics step_metrics(const Json& row) {
  StepMetrics m;
  m.step = integer(row, "step");
  m.loss = number(row, "loss", kUnknown);
  if (row.contains("z_loss")) m.z_loss = number(row, "z_loss", kUnknown);
  m.grad_norm = number(row, "grad_norm", kUnknown);
  m.lr = number(row, "lr", kUnknown);
  m.ms = number(row, "ms", kUnknown);
  m.tokens_per_s = number(row, "tokens_per_s", kUnknown);
  m.mfu = number(row, "mfu", kUnknown);
  m.memory_bytes = integer(row, "memory_bytes");
  m.skipped = integer(row, "skipped");
  m.tokens = integer(row, "tokens");
  m.time = number(row, "time", 0.0);
  return m;
}

}  // namespace

bool MetricsReader::update() {
  struct stat status {};
  if (stat(path_.c_str(), &status) != 0) return false;
  const auto size = static_cast<uint64_t>(status.st_size);
  const bool replaced = inode_ != 0 && (status.st_ino != inode_ || size < offset_);
  if (replaced) {
    metrics_ = {};
    pending_.clear();
    offset_ = 0;
    lines_ = 0;
  }
  inode_ = status.st_ino;
  if (size == offset_) return replaced;
  std::ifstream in(path_, std::ios::binary);
  in.seekg(static_cast<std::streamoff>(offset_));
  std::string chunk(1 << 20, '\0');
  while (in.read(chunk.data(), static_cast<std::streamsize>(chunk.size())) || in.gcount() > 0) {
    pending_.append(chunk, 0, static_cast<size_t>(in.gcount()));
    offset_ += static_cast<uint64_t>(in.gcount());
    take_lines();
  }
  QUERN_CHECK(in.eof(), path_.string(), ": cannot be read");
  return true;
}

void MetricsReader::take_lines() {
  size_t begin = 0;
  for (size_t end = 0; (end = pending_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    ++lines_;
    take(pending_.substr(begin, end - begin));
  }
  pending_.erase(0, begin);
}

void MetricsReader::finish() {
  if (pending_.empty()) return;
  if (Json::accept(pending_)) {
    ++lines_;
    take(pending_);
  } else {
    metrics_.warnings.push_back(cat(path_.string(), ":", lines_ + 1,
                                    ": the last line is cut in the middle; the ", lines_,
                                    " lines before it are read"));
  }
  pending_.clear();
}

void MetricsReader::take(const std::string& line) {
  const bool whole = line.find('\0') == std::string::npos;  // nlohmann takes a zero as the end
  const Json row = whole ? Json::parse(line, nullptr, false) : Json();
  if (!row.is_object() || !row.contains("step") || !row["step"].is_number_integer()) {
    if (metrics_.warnings.size() < kMostWarnings) {
      const std::string begin = printable_utf8(std::string_view(line).substr(0, 30));
      metrics_.warnings.push_back(cat(path_.string(), ":", lines_, ": begins '", begin,
                                      "', expected a JSON object with a step; the line is left "
                                      "out"));
    }
    return;
  }
  metrics_.ended = text(row, "ended");
  metrics_.last_step = std::max(metrics_.last_step, integer(row, "step"));
  metrics_.last_time = number(row, "time", metrics_.last_time);
  if (row.contains("loss")) {
    metrics_.steps.push_back(step_metrics(row));
  } else if (row.contains("val_loss")) {
    metrics_.validations.push_back(
        {integer(row, "step"), number(row, "val_loss", kUnknown), number(row, "time", 0.0)});
  } else if (row.contains("first_step_s")) {
    const FirstStep first{integer(row, "step"), number(row, "first_step_s", kUnknown),
                          text(row, "device"), integer(row, "parameters")};
    metrics_.processes.push_back({first, number(row, "time", 0.0)});
  }
}

RunMetrics read_metrics(const std::filesystem::path& path) {
  QUERN_CHECK(std::filesystem::is_regular_file(path), path.string(), ": there is no such file");
  QUERN_CHECK(std::ifstream(path), path.string(), ": cannot be opened for reading");
  MetricsReader reader(path);
  reader.update();
  reader.finish();
  return reader.metrics();
}

}  // namespace quern
