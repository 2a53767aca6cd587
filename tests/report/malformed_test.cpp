// Malformed lines of metrics.jsonl, which a report leaves out with a warning.
#include "support/malformed.h"

#include <gtest/gtest.h>

#include "report/metrics_reader.h"

namespace quern {
namespace {

using namespace testing_support;

TEST(Malformed, Metrics) {
  const TemporaryFolder folder;
  const std::string good = "{\"step\":1,\"loss\":2.5}\n", expected = "a JSON object with a step";
  expect_malformed(
      folder / "metrics.jsonl",
      {{"text", good + "step 2\n", ":2:", "begins 'step 2'", expected},
       {"a list", good + "[2, 1.5]\n", ":2:", "begins '[2, 1.5]'", expected},
       {"no step", good + "{\"loss\":1.5}\n", ":2:", "begins '{\"loss\":1.5}'", expected},
       {"a step as text", "{\"step\":\"2\"}\n", ":1:", "begins '{\"step\":\"2\"}'", expected},
       {"Latin-1", "{\"step\":2,\"ended\":\"\xe4\"}\n", ":1:", "'{\"step\":2,\"ended\":", expected},
       {"a zero byte", std::string("{\"step\":2}\0\n", 12), ":1:", "'{\"step\":2}", expected},
       {"cut", good + good + "{\"step\":3,\"lo", ":3:", "is cut in the middle",
        "the 2 lines before"}},
      [](const auto& path) {
        const RunMetrics metrics = read_metrics(path);
        if (!metrics.warnings.empty()) fail(metrics.warnings[0]);
      });
}

}  // namespace
}  // namespace quern
