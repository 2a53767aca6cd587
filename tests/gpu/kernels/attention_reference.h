// Attention with its scores written out, in double, for packed arrays: the reference of the flash
// kernels, and, with every intermediate tensor rounded to T, the naive op in that precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <thread>
#include <vector>

#include "gpu/reference.h"
#include "kernels/attention.h"

namespace quern::test {

struct AttentionArrays {
  std::vector<double> q, k, v, d_o;        // (B, T, H or Hk, D)
  std::vector<double> o, lse, dq, dk, dv;  // lse: (B, H, Tq)
};

// One query row against every key of its head: shared by the forward and the backward.
struct AttentionRow {
  int64_t keys = 0;  // the first `keys` are visible
  double max = -INFINITY, sum = 0.0;
  std::vector<double> p;
};

// Fills o, lse, dq, dk and dv, each batch in a thread of its own. `round` is applied to each tensor
// that a composed op would store.
template <class Round>
void naive_attention(AttentionArrays& a, const kernels::AttentionShape& s, Round round) {
  const auto fill = [](std::vector<double>& x, int64_t n) {
    x.assign(static_cast<size_t>(n), 0.0);
  };
  fill(a.o, s.B * s.Tq * s.H * s.D);
  fill(a.lse, s.B * s.H * s.Tq);
  fill(a.dq, s.B * s.Tq * s.H * s.D);
  fill(a.dk, s.B * s.Tk * s.Hk * s.D);
  fill(a.dv, s.B * s.Tk * s.Hk * s.D);
  const auto dot = [&](const double* x, const double* y) {
    double sum = 0.0;
    for (int64_t d = 0; d < s.D; ++d) sum += x[d] * y[d];
    return sum;
  };
  const auto add_scaled = [&](double* y, double factor, const double* x) {
    for (int64_t d = 0; d < s.D; ++d) y[d] += factor * x[d];
  };
  const auto batch = [&](int64_t b) {
    for (int64_t h = 0; h < s.H; ++h) {
      for (int64_t i = 0; i < s.Tq; ++i) {
        const int64_t kv_head = h / (s.H / s.Hk);
        const int64_t query = ((b * s.Tq + i) * s.H + h) * s.D;
        const auto key = [&](int64_t j) { return ((b * s.Tk + j) * s.Hk + kv_head) * s.D; };
        AttentionRow row;
        row.keys = s.causal ? std::clamp<int64_t>(i + s.Tk - s.Tq + 1, 0, s.Tk) : s.Tk;
        for (int64_t j = 0; j < row.keys; ++j) {
          row.p.push_back(round(s.scale * dot(&a.q[query], &a.k[key(j)])));
          row.max = std::max(row.max, row.p.back());
        }
        for (double& p : row.p) row.sum += p = std::exp(p - row.max);
        for (double& p : row.p) p = round(p / row.sum);
        a.lse[(b * s.H + h) * s.Tq + i] = row.keys == 0 ? -INFINITY : row.max + std::log(row.sum);

        double mean = 0.0;  // sum of P dP
        std::vector<double> dp;
        for (int64_t j = 0; j < row.keys; ++j) {
          add_scaled(&a.o[query], row.p[j], &a.v[key(j)]);
          dp.push_back(round(dot(&a.d_o[query], &a.v[key(j)])));
          mean += row.p[j] * dp[j];
        }
        for (int64_t j = 0; j < row.keys; ++j) {
          const double ds = round(row.p[j] * (dp[j] - mean)) * s.scale;
          add_scaled(&a.dq[query], ds, &a.k[key(j)]);
          add_scaled(&a.dk[key(j)], ds, &a.q[query]);
          add_scaled(&a.dv[key(j)], row.p[j], &a.d_o[query]);
        }
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int64_t b = 0; b < s.B; ++b) threads.emplace_back(batch, b);
  }
  for (auto* x : {&a.o, &a.dq, &a.dk, &a.dv}) {
    for (double& value : *x) value = round(value);
  }
}

inline double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double squares = 0.0;
  for (size_t i = 0; i < a.size(); ++i) squares += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(squares);
}

}  // namespace quern::test
