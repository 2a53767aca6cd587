// Sums and maxima of a row in a fixed order that vector instructions can follow: element i goes to
// lane i % kLanes, and the lanes are folded in halves at the end. The order depends on n alone (not
// on the pointer's alignment), and the error grows with n / kLanes.
#pragma once

#include <cstdint>

namespace quern::kernels::cpu {

inline constexpr int kLanes = 32;

// term(0) + ... + term(n - 1), in A.
template <class A, class Term>
A lane_sum(int64_t n, const Term& term) {
  A lane[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) lane[l] += term(i + l);
  }
  for (int l = 0; i + l < n; ++l) lane[l] += term(i + l);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int l = 0; l < width; ++l) lane[l] += lane[l + width];
  }
  return lane[0];
}

// The largest of `least` and the terms; ignores NaN terms.
template <class A, class Term>
A lane_max(int64_t n, A least, const Term& term) {
  A lane[kLanes];
  for (A& value : lane) value = least;
  const auto raise = [](A& value, A t) { value = value < t ? t : value; };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) raise(lane[l], term(i + l));
  }
  for (int l = 0; i + l < n; ++l) raise(lane[l], term(i + l));
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int l = 0; l < width; ++l) raise(lane[l], lane[l + width]);
  }
  return lane[0];
}

}  // namespace quern::kernels::cpu
