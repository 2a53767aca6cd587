// Initial values of parameters.
#pragma once

#include <cmath>
#include <cstdint>

#include "nn/options.h"

namespace quern {

// The distribution of a parameter's initial values.
struct Init {
  enum class Kind { normal, truncated_normal, constant };
  Kind kind = Kind::normal;
  double std = 0.02;
  double value = 0.0;  // for Kind::constant

  static Init normal(double std) { return {Kind::normal, std, 0.0}; }
  // Cut at three standard deviations.
  static Init truncated_normal(double std) { return {Kind::truncated_normal, std, 0.0}; }
  static Init constant(double value) { return {Kind::constant, 0.0, value}; }
};

// The schemes for a TransformerLM of `layers` blocks.
// normal (GPT-2): 0.02 everywhere, the projections into the residual stream scaled by 1 / sqrt(2
// layers). truncated: sqrt(2 / (in + out)) for projections, 1 for the embedding, cut at three
// standard deviations.
struct ModelInit {
  InitScheme scheme = InitScheme::normal;
  int64_t layers = 1;

  Init projection(int64_t in, int64_t out) const {
    if (scheme == InitScheme::normal) return Init::normal(0.02);
    return Init::truncated_normal(std::sqrt(2.0 / static_cast<double>(in + out)));
  }
  Init residual(int64_t in, int64_t out) const {
    if (scheme == InitScheme::truncated) return projection(in, out);
    return Init::normal(0.02 / std::sqrt(2.0 * static_cast<double>(layers)));
  }
  Init embedding() const {
    return scheme == InitScheme::normal ? Init::normal(0.02) : Init::truncated_normal(1.0);
  }
};

}  // namespace quern
