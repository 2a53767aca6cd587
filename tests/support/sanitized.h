// Whether the tests are built with sanitizers, under which the code is ten times as slow.
#pragma once

namespace quern::testing_support {

#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace quern::testing_support
