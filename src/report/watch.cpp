#include "report/watch.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>

#include "config/config_parse.h"
#include "io/utf8.h"

namespace quern {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kTail = 64 << 10;  // bytes at the end of samples.txt, searched for a sample

std::string memory_text(int64_t bytes) {
  const auto b = static_cast<double>(bytes);
  return bytes >= 1 << 30 ? fmt::format("{:.2f} GiB", b / (1 << 30))
                          : fmt::format("{:.1f} MiB", b / (1 << 20));
}

std::string speed_text(const StepMetrics& m) {
  const std::string mfu = m.mfu > 0.0 ? fmt::format("mfu {:.1f} %  ", 100.0 * m.mfu) : "";
  return fmt::format("{:.0f} tokens/s  {}{}", m.tokens_per_s, mfu, memory_text(m.memory_bytes));
}

// Uses only the latest records, so that it follows a change of speed.
double seconds_left(const std::vector<StepMetrics>& steps, int64_t of) {
  constexpr size_t kRecent = 10;
  double sum = 0.0;
  size_t count = 0;
  for (auto m = steps.rbegin(); m != steps.rend() && count < kRecent; ++m, ++count) sum += m->ms;
  if (count == 0 || of == 0) return std::numeric_limits<double>::quiet_NaN();
  return 1e-3 * sum / static_cast<double>(count) * static_cast<double>(of - steps.back().step);
}

std::optional<Sample> newest_sample(const fs::path& path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) return std::nullopt;
  const auto size = static_cast<int64_t>(in.tellg());
  in.seekg(std::max<int64_t>(0, size - kTail));
  std::vector<Sample> samples = parse_samples({std::istreambuf_iterator<char>(in), {}});
  if (samples.empty()) return std::nullopt;
  return samples.back();
}

}  // namespace

RunWatch::RunWatch(const fs::path& folder)
    : folder_(RunFolder::open(folder)), reader_(folder_.metrics()) {
  name_ = fs::absolute(folder_.path() / "x").lexically_normal().parent_path().filename().string();
  update();
}

bool RunWatch::update() {
  const bool grew = reader_.update();
  sample_ = newest_sample(folder_.samples());
  if (!grew && steps_ > 0) return false;
  try {
    steps_ = load_config(folder_.config().string()).train.steps;  // --resume --steps changes it
  } catch (const Error&) {
    steps_ = 0;  // damaged, or another version's: progress is shown without the number of steps
  }
  return grew;
}

bool RunWatch::ended() const {
  const RunMetrics& m = metrics();
  if (!m.ended.empty()) return true;
  return steps_ > 0 && !m.steps.empty() && m.steps.back().step >= steps_ && m.last_time == 0.0;
}

std::string RunWatch::status(double now) const {
  const RunMetrics& m = metrics();
  if (ended()) return m.ended.empty() ? "done" : m.ended;
  if (m.last_time > 0.0 && now - m.last_time > 60.0) {
    return "silent for " + duration_text(now - m.last_time);
  }
  return m.empty() ? "no metrics yet" : "running";
}

std::vector<std::string> RunWatch::numbers() const {
  const RunMetrics& metrics = this->metrics();
  std::vector<std::string> lines;
  if (metrics.steps.empty()) return lines;
  const StepMetrics& m = metrics.steps.back();
  std::string loss = fmt::format("loss {:.4f}", m.loss);
  if (!metrics.validations.empty()) {
    const Validation& last = metrics.validations.back();
    const auto best = std::ranges::min_element(metrics.validations, {}, [](const Validation& v) {
      return std::isfinite(v.loss) ? v.loss : std::numeric_limits<double>::infinity();
    });
    loss += fmt::format("   validation {:.4f} at step {}, best {:.4f} at step {}", last.loss,
                        last.step, best->loss, best->step);
  }
  lines.push_back(loss);
  lines.push_back(
      fmt::format("lr {:.2e}  norm {:.3f}  {:.1f} ms  {}", m.lr, m.grad_norm, m.ms, speed_text(m)));
  if (m.skipped > 0) lines.push_back(fmt::format("{} steps skipped: not finite", m.skipped));
  return lines;
}

std::vector<std::string> RunWatch::sample_lines(const ScreenSize& size, int64_t rows) const {
  std::vector<std::string> lines;
  if (!sample_ || rows < 3) return lines;
  lines.push_back("");
  lines.push_back(fmt::format("sample at step {}", sample_->step));
  size_t begin = std::min(sample_->text.find_first_not_of('\n'), sample_->text.size());
  while (begin < sample_->text.size() && static_cast<int64_t>(lines.size()) < rows) {
    const size_t end = std::min(sample_->text.find('\n', begin), sample_->text.size());
    lines.push_back("  " + clipped(sample_->text.substr(begin, end - begin), size.columns - 2));
    begin = end + 1;
  }
  return lines;
}

std::vector<std::string> RunWatch::screen(const ScreenSize& size, double now) const {
  const RunMetrics& m = metrics();
  const int64_t step = m.last_step;
  std::vector<std::string> lines = {
      clipped(fmt::format("{}  {}", name_, status(now)), size.columns)};
  const std::string left =
      ended() ? "" : fmt::format("  ETA {}", duration_text(seconds_left(m.steps, steps_)));
  const std::string count =
      steps_ > 0 ? fmt::format("step {}/{}", step, steps_) : fmt::format("step {}", step);
  const int64_t width = std::min<int64_t>(40, size.columns - 40);
  const std::string bar =
      steps_ > 0 && width > 0 ? progress_bar(step, steps_, width, size.unicode) + "  " : "";
  lines.push_back(clipped(bar + count + left, size.columns));
  for (const std::string& line : numbers()) lines.push_back(clipped(line, size.columns));
  std::vector<double> losses;
  for (const StepMetrics& s : m.steps) losses.push_back(s.loss);
  const int64_t room = size.rows - static_cast<int64_t>(lines.size());
  const auto plot = text_plot(losses, std::min<int64_t>(size.columns, 120),
                              std::clamp<int64_t>(room / 2, 2, 12), size.unicode);
  if (!plot.empty() && room > static_cast<int64_t>(plot.size())) {
    lines.emplace_back("");
    lines.insert(lines.end(), plot.begin(), plot.end());
  }
  const auto sample = sample_lines(size, size.rows - 1 - static_cast<int64_t>(lines.size()));
  lines.insert(lines.end(), sample.begin(), sample.end());
  return lines;
}

std::vector<std::string> RunWatch::new_lines() {
  const RunMetrics& m = metrics();
  if (m.steps.size() < told_steps_ || m.validations.size() < told_validations_) {  // resumed
    const auto told = [this](const auto& record) { return record.time <= told_time_; };
    told_steps_ = static_cast<size_t>(std::count_if(m.steps.begin(), m.steps.end(), told));
    told_validations_ =
        static_cast<size_t>(std::count_if(m.validations.begin(), m.validations.end(), told));
    told_end_ = false;
  }
  if (m.ended.empty()) told_end_ = false;
  std::vector<std::pair<int64_t, std::string>> lines;
  for (; told_steps_ < m.steps.size(); ++told_steps_) {
    const StepMetrics& s = m.steps[told_steps_];
    lines.emplace_back(
        s.step, fmt::format("step {:>6}/{}  loss {:.4f}  norm {:.3f}  lr {:.2e}  {:.1f} ms  {}",
                            s.step, steps_, s.loss, s.grad_norm, s.lr, s.ms, speed_text(s)));
  }
  for (; told_validations_ < m.validations.size(); ++told_validations_) {
    const Validation& v = m.validations[told_validations_];
    lines.emplace_back(
        v.step, fmt::format("step {:>6}/{}  validation loss {:.4f}", v.step, steps_, v.loss));
  }
  std::stable_sort(lines.begin(), lines.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> texts;
  texts.reserve(lines.size() + 1);
  for (auto& [step, text] : lines) texts.push_back(std::move(text));
  told_time_ = m.last_time;
  if (ended() && !told_end_) {
    told_end_ = true;
    texts.push_back(m.ended.empty() ? "done" : printable_utf8(m.ended));
  }
  return texts;
}

namespace {

// A canvas of dots: 2 x 4 a character in Braille, one a character in ASCII.
class Dots {
 public:
  Dots(int64_t columns, int64_t rows, bool unicode)
      : columns_(columns), across_(unicode ? 2 : 1), down_(unicode ? 4 : 1), unicode_(unicode) {
    cells_.resize(static_cast<size_t>(columns * rows));
  }

  void set(int64_t x, int64_t y) {
    // Unicode's numbering: dots 1 2 3 go down on the left, 4 5 6 on the right, 7 and 8 below.
    constexpr uint8_t kBits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    cells_[static_cast<size_t>(y / down_ * columns_ + x / across_)] |=
        kBits[y % down_][x % across_];
  }

  std::string row(int64_t y) const {
    std::string text;
    for (int64_t x = 0; x < columns_; ++x) {
      const uint8_t cell = cells_[static_cast<size_t>(y * columns_ + x)];
      if (!unicode_ || cell == 0) {
        text += cell == 0 ? ' ' : '*';
      } else {  // U+2800 + cell
        text +=
            {'\xE2', static_cast<char>(0xA0 | cell >> 6), static_cast<char>(0x80 | (cell & 0x3F))};
      }
    }
    return text;
  }

 private:
  int64_t columns_, across_, down_;
  bool unicode_;
  std::vector<uint8_t> cells_;
};

// Thins to at most n values: the means of equal parts. Values that are not finite are left out.
std::vector<double> means(const std::vector<double>& values, int64_t n) {
  std::vector<double> finite;
  for (const double x : values) {
    if (std::isfinite(x)) finite.push_back(x);
  }
  const auto size = static_cast<int64_t>(finite.size());
  if (size <= n) return finite;
  std::vector<double> out;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t begin = i * size / n, end = (i + 1) * size / n;
    double sum = 0.0;
    for (int64_t j = begin; j < end; ++j) sum += finite[static_cast<size_t>(j)];
    out.push_back(sum / static_cast<double>(end - begin));
  }
  return out;
}

}  // namespace

std::vector<std::string> text_plot(const std::vector<double>& values, int64_t columns, int64_t rows,
                                   bool unicode) {
  constexpr int64_t kScale = 9;  // "  1.2345 " before each row
  const int64_t wide = columns - kScale;
  if (wide < 2 || rows < 2) return {};
  const int64_t width = wide * (unicode ? 2 : 1), height = rows * (unicode ? 4 : 1);
  const std::vector<double> curve = means(values, width);
  if (curve.size() < 2) return {};
  const auto [low, high] = std::minmax_element(curve.begin(), curve.end());
  const double range = std::max(*high - *low, 1e-12);
  Dots dots(wide, rows, unicode);
  const auto last = curve.size() - 1;
  // The row of dots where the curve, linear between two values, meets a column.
  const auto row_at = [&](int64_t x) {
    const double place = std::min(
        static_cast<double>(x) * static_cast<double>(last) / static_cast<double>(width - 1),
        static_cast<double>(last));
    const size_t i = std::min(static_cast<size_t>(place), last - 1);
    const double value = std::lerp(curve[i], curve[i + 1], place - static_cast<double>(i));
    return std::llround((*high - value) / range * static_cast<double>(height - 1));
  };
  for (int64_t x = 0; x < width; ++x) {
    const auto here = row_at(x);
    const auto [top, bottom] = std::minmax({here, row_at(x + 1)});
    dots.set(x, here);
    for (int64_t y = top + 1; y < bottom; ++y) dots.set(x, y);  // all dots that it crosses
  }
  std::vector<std::string> lines;
  for (int64_t y = 0; y < rows; ++y) {
    const std::string scale = y == 0          ? fmt::format("{:8.4f} ", *high)
                              : y == rows - 1 ? fmt::format("{:8.4f} ", *low)
                                              : std::string(kScale, ' ');
    lines.push_back(scale.substr(0, kScale) + dots.row(y));
  }
  return lines;
}

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds)) return "-";
  const int64_t s = std::llround(std::max(seconds, 0.0));
  if (s < 60) return fmt::format("{}s", s);
  if (s < 3600) return fmt::format("{}m{:02}s", s / 60, s % 60);
  return fmt::format("{}h{:02}m", s / 3600, s % 3600 / 60);
}

std::string progress_bar(int64_t step, int64_t steps, int64_t width, bool unicode) {
  const int64_t filled = std::clamp<int64_t>(width * step / std::max<int64_t>(1, steps), 0, width);
  std::string bar;
  for (int64_t i = 0; i < width; ++i) {
    bar += unicode ? (i < filled ? "\u2588" : "\u2591") : (i < filled ? "#" : ".");
  }
  return bar;
}

std::string clipped(const std::string& text, int64_t columns) {
  std::string line = printable_utf8(text);
  std::ranges::replace_if(
      line, [](char c) { return c == '\n' || c == '\t'; }, ' ');
  size_t end = 0;
  while (end < line.size()) {
    utf8proc_int32_t character = 0;
    const auto* const at = reinterpret_cast<const utf8proc_uint8_t*>(line.data()) + end;
    const auto bytes =
        utf8proc_iterate(at, static_cast<utf8proc_ssize_t>(line.size() - end), &character);
    columns -= utf8proc_charwidth(character);
    if (bytes <= 0 || columns < 0) break;
    end += static_cast<size_t>(bytes);
  }
  line.resize(end);
  return line;
}

}  // namespace quern
