#include "io/html.h"

#include <gtest/gtest.h>

#include "support/files.h"

namespace quern {
namespace {

using namespace testing_support;

TEST(Html, PartsTakeThePlacesOfTheirMarks) {
  EXPECT_EQ(fill_page("<a>@x</a><b>@y</b>", {{"@x", "1"}, {"@y", "@x"}}), "<a>1</a><b>@x</b>");
  EXPECT_EQ(json_in_script("\"</script>\""), "\"\\u003c/script>\"");
}

TEST(Html, APageWithoutTheMarkIsAnError) {
  expect_error([] { fill_page("<a>@x</a>", {{"@y", "1"}}); }, {"page: it has no @y"});
}

}  // namespace
}  // namespace quern
