// The curve of `quern watch`, in characters.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "train/watch.h"

namespace quern {

namespace {

// Dots of a screen of characters: in Braille 2 x 4 in one, in ASCII one.
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

// At most n values: the means of equal parts. What is not finite is left out.
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
  const auto last = static_cast<int64_t>(curve.size()) - 1;
  const auto at = [&](double value) {
    return std::llround((*high - value) / range * static_cast<double>(height - 1));
  };
  for (int64_t x = 0; x < width; ++x) {
    // Between two values the curve is a straight line; a column holds all that it crosses.
    const double place = static_cast<double>(x * last) / static_cast<double>(width - 1);
    const auto i = std::min(static_cast<int64_t>(place), last - 1);
    const double part = place - static_cast<double>(i);
    const double here =
        std::lerp(curve[static_cast<size_t>(i)], curve[static_cast<size_t>(i + 1)], part);
    const double next_place =
        std::min(static_cast<double>((x + 1) * last) / static_cast<double>(width - 1),
                 static_cast<double>(last));
    const auto j = std::min(static_cast<int64_t>(next_place), last - 1);
    const double next = std::lerp(curve[static_cast<size_t>(j)], curve[static_cast<size_t>(j + 1)],
                                  next_place - static_cast<double>(j));
    const auto [top, bottom] = std::minmax({at(here), at(next)});
    dots.set(x, at(here));
    for (int64_t y = top + 1; y < bottom; ++y) dots.set(x, y);
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

std::string clipped(const std::string& text, int64_t columns) {
  std::string out;
  int64_t count = 0;
  for (size_t i = 0; i < text.size() && count < columns; ++count) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const size_t length = byte < 0x80    ? 1
                          : byte >= 0xF0 ? 4
                          : byte >= 0xE0 ? 3
                          : byte >= 0xC2 ? 2
                                         : 0;
    bool whole =
        length > 0 && i + length <= text.size() && byte < 0xF5 && byte >= 0x20 && byte != 0x7F;
    for (size_t j = 1; whole && j < length; ++j) {
      whole = (static_cast<unsigned char>(text[i + j]) & 0xC0) == 0x80;
    }
    // U+0080 to U+009F are control characters too.
    if (whole && byte == 0xC2 && static_cast<unsigned char>(text[i + 1]) < 0xA0) whole = false;
    out += whole ? text.substr(i, length) : byte == '\t' ? " " : "?";
    i += whole ? length : 1;
  }
  return out;
}

}  // namespace quern
