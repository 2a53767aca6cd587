#include "base/parse_number.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace quern {
namespace {

TEST(ParseNumber, TakesTheWholeTextOrNothing) {
  EXPECT_EQ(parse_number<int64_t>("-12"), -12);
  EXPECT_EQ(parse_number<double>("2.5e-3"), 2.5e-3);
  for (const char* text : {"", " 1", "1 ", "+1", "1x", "0x10", "1.5", "9223372036854775808"}) {
    EXPECT_FALSE(parse_number<int64_t>(text)) << text;
  }
  EXPECT_FALSE(parse_number<uint8_t>("256"));
}

}  // namespace
}  // namespace quern
