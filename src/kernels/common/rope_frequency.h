// RoPE's frequencies, plain or scaled for long contexts, shared by the backends.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "kernels/common/math.h"

namespace quern::kernels {

// The scaling of RoPE's frequencies for contexts longer than the trained one. linear: all divided
// by factor (Chen et al., 2023). llama3: wavelengths beyond original_context / low_freq_factor
// divided by factor, those below original_context / high_freq_factor kept, and a blend between the
// two (Llama 3.1; transformers' rope_type "llama3").
enum class RopeScalingKind { none, linear, llama3 };

struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::none;
  double factor = 1.0;
  double low_freq_factor = 1.0;  // llama3 only, as are the two below
  double high_freq_factor = 4.0;
  int64_t original_context = 8192;  // tokens

  friend bool operator==(const RopeScaling&, const RopeScaling&) = default;
};

// The angle, in radians, that pair i < D/2 of a head turns by from one position to the next:
// theta^(-2i/D) (Su et al., 2021, section 3.3), scaled. llama3 is that of Llama 3.1 (Dubey et al.,
// 2024; transformers' _compute_llama3_parameters): with s = (original_context / wavelength - low) /
// (high - low) cut to [0, 1], the frequency becomes (1 - s) f / factor + s f.
QUERN_HD inline double rope_frequency(int64_t i, int64_t D, double theta,
                                      const RopeScaling& scaling) {
  const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(D);
  const double f = math::pow(theta, exponent);
  if (scaling.kind == RopeScalingKind::none) return f;
  const double slow = f / scaling.factor;
  if (scaling.kind == RopeScalingKind::linear) return slow;
  constexpr double kTwoPi = 6.283185307179586;
  const double turns = static_cast<double>(scaling.original_context) * f / kTwoPi;
  const double s =
      (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return s <= 0.0 ? slow : s >= 1.0 ? f : (1.0 - s) * slow + s * f;
}

}  // namespace quern::kernels
