// The names of an enumeration's values, as a table beside it:
//   template <>
//   inline constexpr std::array kNamesOf<Colour>{"red", "green"};
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "base/error.h"

namespace quern {

// In the order of the values, which count from 0. Empty: the enumeration has no such table.
template <class E>
inline constexpr std::array<const char*, 0> kNamesOf{};

template <class E>
requires(!kNamesOf<E>.empty()) const char* name_of(E value) {
  const auto at = static_cast<size_t>(value);
  QUERN_CHECK(at < kNamesOf<E>.size(), "the enumeration has no value ", at);
  return kNamesOf<E>[at];
}

// All values of such an enumeration.
template <class E>
std::vector<E> values_of() {
  std::vector<E> values(kNamesOf<E>.size());
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<E>(i);
  return values;
}

}  // namespace quern
