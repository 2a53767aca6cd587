// Attention of one token per row in plain loops: the reference of the GPU's tests.
#include "kernels/decode_attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace quern::kernels::cpu {
namespace {

// A head of D elements, normed where there are weights and rotated to the row's position.
template <class T>
std::vector<float> rotated(const T* x, const float* norm, int64_t position,
                           const DecodeAttention<T>& a) {
  const auto rounded = [](float v) { return static_cast<float>(static_cast<T>(v)); };
  std::vector<float> y(x, x + a.D);
  if (norm != nullptr) {
    float squares = 0.0f;
    for (const float v : y) squares += v * v;
    const float r = 1.0f / std::sqrt(squares / static_cast<float>(a.D) + static_cast<float>(a.eps));
    for (size_t i = 0; i < y.size(); ++i) y[i] = rounded(norm[i] * (y[i] * r));
  }
  const auto half = static_cast<size_t>(a.D / 2);
  for (size_t i = 0; i < half; ++i) {
    const auto at = static_cast<size_t>(position) * half + i;
    const float x1 = y[i], x2 = y[i + half];
    y[i] = rounded(x1 * a.cos[at] - x2 * a.sin[at]);
    y[i + half] = rounded(x2 * a.cos[at] + x1 * a.sin[at]);
  }
  return y;
}

// One query head over n keys; k and v are those of its first key.
template <class T>
void attend(T* y, const std::vector<float>& q, const T* k, const T* v, int64_t n,
            const DecodeAttention<T>& a) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(a.D));
  const int64_t stride = a.Hk * a.D;
  std::vector<float> p(static_cast<size_t>(n));
  for (int64_t j = 0; j < n; ++j) {
    float dot = 0.0f;
    for (int64_t d = 0; d < a.D; ++d) {
      dot += q[static_cast<size_t>(d)] * static_cast<float>(k[j * stride + d]);
    }
    p[static_cast<size_t>(j)] = dot * scale;
  }
  const float largest = *std::max_element(p.begin(), p.end());
  float sum = 0.0f;
  for (float& x : p) sum += x = std::exp(x - largest);
  for (int64_t d = 0; d < a.D; ++d) {
    float total = 0.0f;
    for (int64_t j = 0; j < n; ++j) {
      total += p[static_cast<size_t>(j)] * static_cast<float>(v[j * stride + d]);
    }
    y[d] = static_cast<T>(total / sum);
  }
}

}  // namespace

template <class T>
void decode_attention(const DecodeAttention<T>& a, Stream, bool) {
  for (int64_t b = 0; b < a.B; ++b) {
    T* const y = a.y + b * a.H * a.D;
    if (a.rows[b].active == 0) {
      std::fill_n(y, a.H * a.D, static_cast<T>(0.0f));
      continue;
    }
    const int64_t position = a.rows[b].length;
    const T* const q = a.qkv + b * (a.H + 2 * a.Hk) * a.D;
    for (int64_t h = 0; h < a.Hk; ++h) {
      const int64_t first = (b * a.capacity * a.Hk + h) * a.D, at = first + position * a.Hk * a.D;
      const std::vector<float> k = rotated(q + (a.H + h) * a.D, a.k_norm, position, a);
      std::transform(k.begin(), k.end(), a.k_cache + at, [](float x) { return static_cast<T>(x); });
      std::copy_n(q + (a.H + a.Hk + h) * a.D, a.D, a.v_cache + at);
      const int64_t group = a.H / a.Hk;
      for (int64_t i = h * group; i < (h + 1) * group; ++i) {
        attend(y + i * a.D, rotated(q + i * a.D, a.q_norm, position, a), a.k_cache + first,
               a.v_cache + first, position + 1, a);
      }
    }
  }
}

template decltype(decode_attention<float>) decode_attention<float>;
template decltype(decode_attention<bfloat16>) decode_attention<bfloat16>;

}  // namespace quern::kernels::cpu
