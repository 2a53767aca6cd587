#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "bench/verify.h"

namespace quern {

namespace {

struct Heading {
  Quantity quantity;
  const char* text;
};
constexpr std::array kHeadings{Heading{Quantity::logits, "logits"},
                               Heading{Quantity::loss, "loss"},
                               Heading{Quantity::gradient, "gradient of "},
                               Heading{Quantity::losses, "losses while training"},
                               Heading{Quantity::grad_norms, "gradient norms"},
                               Heading{Quantity::weight, "final "}};

constexpr size_t kWorstShown = 3;  // of the gradients, and of the final weights

std::string row(const Heading& heading, const Deviation& deviation) {
  return fmt::format("  {:<62} {:>9.1e} {:>9.1e}{}\n", heading.text + deviation.name,
                     deviation.error, deviation.tolerance, deviation.within() ? "" : "  BEYOND");
}

// Worst first, NaN before all.
bool worse(const Deviation& a, const Deviation& b) {
  const bool a_nan = a.error != a.error, b_nan = b.error != b.error;
  return a_nan != b_nan ? a_nan : a.error > b.error;
}

int64_t count_beyond(const std::vector<Deviation>& deviations) {
  return std::count_if(deviations.begin(), deviations.end(),
                       [](const Deviation& deviation) { return !deviation.within(); });
}

std::string group_rows(const Heading& heading, std::vector<Deviation> group, bool verbose) {
  size_t shown = group.size();
  if (!verbose) {
    std::stable_sort(group.begin(), group.end(), worse);
    shown = std::min(shown, std::max(kWorstShown, static_cast<size_t>(count_beyond(group))));
  }
  std::string rows;
  for (size_t i = 0; i < shown; ++i) rows += row(heading, group[i]);
  if (shown < group.size()) {
    rows += fmt::format("    and {} more, all nearer\n", group.size() - shown);
  }
  return rows;
}

}  // namespace

std::string verify_table(const VerifyResult& result, bool verbose) {
  std::string text =
      fmt::format("{}\n  {:<62} {:>9} {:>9}\n", result.subject, "", "error", "tolerance");
  for (const Heading& heading : kHeadings) {
    std::vector<Deviation> group;
    std::copy_if(result.deviations.begin(), result.deviations.end(), std::back_inserter(group),
                 [&](const Deviation& d) { return d.quantity == heading.quantity; });
    text += group_rows(heading, std::move(group), verbose);
  }
  const int64_t beyond = count_beyond(result.deviations);
  const size_t all = result.deviations.size();
  if (beyond > 0) return text + fmt::format("  FAILED: {} of {} beyond tolerance\n", beyond, all);
  return text + fmt::format("  passed: {} within tolerance\n", all);
}

}  // namespace quern
