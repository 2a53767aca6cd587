#include "kernels/decode_attention.h"

#include "support/kernel_test.h"

namespace quern {
namespace {

using namespace kernel_test;
using kernels::DecodeAttention;
using kernels::DecodeRow;

constexpr int64_t B = 4, H = 4, Hk = 2, D = 8, kCapacity = 5;
constexpr double kEps = 1e-2;                                 // large enough to matter
constexpr int64_t kPositions[B] = {0, 2, -1, kCapacity - 1};  // -1: the row is inactive

template <class T>
struct Data {
  std::vector<T> qkv = random_vector<T>(B * (H + 2 * Hk) * D, 1);
  std::vector<T> k = random_vector<T>(B * kCapacity * Hk * D, 2);
  std::vector<T> v = random_vector<T>(B * kCapacity * Hk * D, 3);
  std::vector<float> cos = random_vector<float>(kCapacity * D / 2, 4, -1.0, 1.0);
  std::vector<float> sin = random_vector<float>(kCapacity * D / 2, 5, -1.0, 1.0);
  std::vector<float> q_norm = random_vector<float>(D, 6, 0.5, 1.5);
  std::vector<float> k_norm = random_vector<float>(D, 7, 0.5, 1.5);
};

// Head h of row b of qkv in double, normed by `norm` if there are weights, rotated to `position`.
template <class T>
std::vector<double> head(const Data<T>& data, int64_t b, int64_t h, const std::vector<float>* norm,
                         int64_t position) {
  std::vector<double> x;
  double squares = 0.0;
  for (int64_t d = 0; d < D; ++d) {
    x.push_back(to_double(data.qkv[static_cast<size_t>((b * (H + 2 * Hk) + h) * D + d)]));
    squares += x.back() * x.back();
  }
  if (norm) {
    for (size_t d = 0; d < D; ++d) x[d] *= (*norm)[d] / std::sqrt(squares / D + kEps);
  }
  for (size_t d = 0; position >= 0 && d < D / 2; ++d) {
    const size_t at = static_cast<size_t>(position) * (D / 2) + d;
    const double first = x[d], second = x[d + D / 2];
    x[d] = first * data.cos[at] - second * data.sin[at];
    x[d + D / 2] = second * data.cos[at] + first * data.sin[at];
  }
  return x;
}

template <class T>
void check(bool normed) {
  SCOPED_TRACE(testing::Message() << dtype_of<T> << (normed ? ", normed" : ""));
  const Data<T> data;
  std::vector<DecodeRow> rows(B);
  for (size_t b = 0; b < B; ++b) {
    rows[b].active = kPositions[b] >= 0;
    rows[b].length = static_cast<int32_t>(std::max<int64_t>(kPositions[b], 0));
  }
  Guarded<T> k(data.k), v(data.v), y(B * H * D);
  DecodeAttention<T> a{B, H, Hk, D, kCapacity, rows.data(), data.qkv.data(), k.data(), v.data()};
  a.cos = data.cos.data();
  a.sin = data.sin.data();
  a.q_norm = normed ? data.q_norm.data() : nullptr;
  a.k_norm = normed ? data.k_norm.data() : nullptr;
  a.eps = kEps;
  a.y = y.data();
  kernels::cpu::decode_attention(a, {});

  std::vector<double> keys = doubles(data.k), values = doubles(data.v), expected;
  for (int64_t b = 0; b < B; ++b) {
    const int64_t position = kPositions[b];
    const auto place = [&](int64_t h, int64_t t) {
      return static_cast<size_t>(((b * kCapacity + t) * Hk + h) * D);
    };
    for (int64_t h = 0; position >= 0 && h < Hk; ++h) {
      const auto new_k = head(data, b, H + h, normed ? &data.k_norm : nullptr, position);
      const auto new_v = head(data, b, H + Hk + h, nullptr, -1);
      for (size_t d = 0; d < D; ++d) {
        keys[place(h, position) + d] = new_k[d];
        values[place(h, position) + d] = new_v[d];
      }
    }
    for (int64_t h = 0; h < H; ++h) {
      const auto q = head(data, b, h, normed ? &data.q_norm : nullptr, position);
      std::vector<double> out(D, 0.0);
      double sum = 0.0;
      for (int64_t t = 0; t <= position; ++t) {
        double dot = 0.0;
        for (size_t d = 0; d < D; ++d) dot += q[d] * keys[place(h / (H / Hk), t) + d];
        const double weight = std::exp(dot / std::sqrt(static_cast<double>(D)));
        sum += weight;
        for (size_t d = 0; d < D; ++d) out[d] += weight * values[place(h / (H / Hk), t) + d];
      }
      for (const double x : out) expected.push_back(position < 0 ? 0.0 : x / sum);
    }
  }
  // Norm, rotation and result are rounded to T; a rounded score moves its weight by as much.
  const double bound = std::is_same_v<T, float> ? 2e-6 : 0x1p-6;
  expect_near(y.values(), expected, bound);
  expect_near(k.values(), keys, bound);
  expect_near(v.values(), values, 0.0);
}

TEST(DecodeAttention, AgreesWithPlainLoops) {
  for (const bool normed : {false, true}) {
    check<float>(normed);
    check<bfloat16>(normed);
  }
}

}  // namespace
}  // namespace quern
