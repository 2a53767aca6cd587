#include "base/enum_names.h"

#include <gtest/gtest.h>

#include "support/files.h"

namespace quern {

namespace {
enum class Grain { rye, oat };
}

template <>
inline constexpr std::array kNamesOf<Grain>{"rye", "oat"};

namespace {

using namespace testing_support;

TEST(EnumNames, AreThoseOfTheTable) {
  EXPECT_STREQ(name_of(Grain::oat), "oat");
  expect_error([] { name_of(static_cast<Grain>(2)); }, {"no value 2"});
}

}  // namespace
}  // namespace quern
