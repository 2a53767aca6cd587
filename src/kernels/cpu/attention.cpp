// Flash attention on the CPU with the tiles, online softmax and names of "FlashAttention-2" (Dao,
// 2023). Q_i, O_i, dO_i are tiles of kTile queries, K_j, V_j of kTile keys; S = scale Q_i K_j^T,
// P = exp(S - L). All tiles are packed in acc_t<T> and stay in the cache; Eigen's products take
// most of the time.
#include "kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/error.h"
#include "kernels/common/math.h"
#include "kernels/common/parallel.h"
#include "kernels/common/rotate_gradients.h"
#include "kernels/cpu/eigen.h"
#include "kernels/cpu/lanes.h"

namespace quern::kernels::cpu {
namespace {

constexpr int64_t kTile = 64;

int64_t tiles(int64_t length) {
  return (length + kTile - 1) / kTile;
}

// Scratch memory of one task, handed out in tiles.
template <class A>
class Workspace {
 public:
  explicit Workspace(int64_t size) : memory_(std::make_unique_for_overwrite<A[]>(size)) {}
  A* take(int64_t size) {
    A* start = memory_.get() + used_;
    used_ += size;
    return start;
  }

 private:
  std::unique_ptr<A[]> memory_;
  int64_t used_ = 0;
};

// One head of one batch of a (B, T, H, D) tensor.
template <class T>
struct Head {
  T* data;
  int64_t stride;  // elements between neighbouring times
  int64_t D;

  Head(T* base, const int64_t (&strides)[3], int64_t b, int64_t h, int64_t head_dim)
      : data(base + b * strides[0] + h * strides[2]), stride(strides[1]), D(head_dim) {}

  // tile (rows, D) = scale x[t .. t + rows).
  template <class A>
  void load(A* tile, int64_t t, int64_t rows, A scale = 1) const {
    for (int64_t r = 0; r < rows; ++r) {
      const T* from = data + (t + r) * stride;
      A* to = tile + r * D;
      vector_for(0, D, [=](int64_t d) { to[d] = scale * static_cast<A>(from[d]); });
    }
  }
  // x[t .. t + rows) = scale tile.
  template <class A>
  void store(const A* tile, int64_t t, int64_t rows, A scale = 1) const {
    for (int64_t r = 0; r < rows; ++r) {
      T* to = data + (t + r) * stride;
      const A* from = tile + r * D;
      vector_for(0, D, [=](int64_t d) { to[d] = static_cast<T>(scale * from[d]); });
    }
  }
};

// The number of keys in [first, first + count) that query i sees: under a causal mask, those with
// j <= i + Tk - Tq.
int64_t visible_keys(const AttentionShape& s, int64_t i, int64_t first, int64_t count) {
  const int64_t end = s.causal ? i + s.Tk - s.Tq + 1 : s.Tk;
  return std::clamp<int64_t>(end - first, 0, count);
}

// One query tile's state of the online softmax: the running maximum m, the running sum l, and O
// unnormalised.
template <class A>
struct OnlineSoftmax {
  A *m, *l, *O;
  int64_t D;

  void start(int64_t rows) const {
    std::fill_n(m, rows, A(-INFINITY));
    std::fill_n(l, rows, A(0));
    std::fill_n(O, rows * D, A(0));
  }

  // Row r: m_new = max(m, rowmax S); P = exp(S - m_new) in place of S; l and O shrink by
  // exp(m - m_new). Only the first `visible` of `cols` scores count, the others give P = 0.
  void step(A* S, int64_t r, int64_t visible, int64_t cols) const {
    std::fill(S + visible, S + cols, A(0));
    if (visible == 0) return;
    const A m_new = lane_max<A>(visible, m[r], [=](int64_t c) { return S[c]; });
    const A correction = math::exp(m[r] - m_new);  // 0 at the first tile, where m = -inf
    vector_for(0, visible, [=](int64_t c) { S[c] = math::exp(S[c] - m_new); });
    l[r] = correction * l[r] + lane_sum<A>(visible, [=](int64_t c) { return S[c]; });
    m[r] = m_new;
    A* row = O + r * D;
    if (correction != A(1)) {
      vector_for(0, D, [=](int64_t d) { row[d] *= correction; });
    }
  }

  // O = O / l and L = m + log l. A query that sees no key keeps O = 0 and has L = -inf.
  void finish(A* L, int64_t rows) const {
    for (int64_t r = 0; r < rows; ++r) {
      const A inverse = l[r] == A(0) ? A(0) : A(1) / l[r];
      A* row = O + r * D;
      vector_for(0, D, [=](int64_t d) { row[d] *= inverse; });
      L[r] = l[r] == A(0) ? A(-INFINITY) : m[r] + math::log(l[r]);
    }
  }
};

// Algorithm 1, one query tile: rows [i, i + rows) of head (b, h).
template <class T, class A>
void forward_tile(T* o, A* lse, const T* q, const T* k, const T* v, const AttentionShape& s,
                  int64_t b, int64_t h, int64_t i) {
  const int64_t rows = std::min(kTile, s.Tq - i), D = s.D, kv_head = h / (s.H / s.Hk);
  const Head<const T> Q(q, s.q_strides, b, h, D), K(k, s.k_strides, b, kv_head, D),
      V(v, s.v_strides, b, kv_head, D);
  Workspace<A> space(4 * kTile * D + kTile * kTile + 2 * kTile);
  A *Q_i = space.take(kTile * D), *K_j = space.take(kTile * D), *V_j = space.take(kTile * D);
  A* S = space.take(kTile * kTile);
  A *O_i = space.take(kTile * D), *m = space.take(kTile), *l = space.take(kTile);
  const OnlineSoftmax<A> softmax{m, l, O_i, D};

  softmax.start(rows);
  Q.load(Q_i, i, rows, static_cast<A>(s.scale));
  const int64_t keys = visible_keys(s, i + rows - 1, 0, s.Tk);  // later tiles are masked entirely
  for (int64_t j = 0; j < keys; j += kTile) {
    const int64_t cols = std::min(kTile, keys - j);
    K.load(K_j, j, cols);
    V.load(V_j, j, cols);
    multiply<A>(S, kTile, {Q_i, D}, {K_j, D, true}, rows, cols, D, A(1), false);
    for (int64_t r = 0; r < rows; ++r) {
      softmax.step(S + r * kTile, r, visible_keys(s, i + r, j, cols), cols);
    }
    multiply<A>(O_i, D, {S, kTile}, {V_j, D}, rows, D, cols, A(1), true);  // O += P V
  }
  softmax.finish(lse + (b * s.H + h) * s.Tq + i, rows);
  Head<T>(o, s.o_strides, b, h, D).store(O_i, i, rows);
}

// P = exp(S - L) in place of S, then dS = P (dP - delta) in place of dP, row by row.
template <class A>
void softmax_gradient(A* S, A* dP, const A* L, const A* delta, const AttentionShape& s, int64_t i,
                      int64_t j, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t visible = visible_keys(s, i + r, j, cols);
    A *p = S + r * kTile, *dp = dP + r * kTile;
    const A shift = L[r], mean = delta[r];
    vector_for(0, visible, [=](int64_t c) {
      const A probability = math::exp(p[c] - shift);
      p[c] = probability;
      dp[c] = probability * (dp[c] - mean);
    });
    std::fill(p + visible, p + cols, A(0));
    std::fill(dp + visible, dp + cols, A(0));
  }
}

// delta = rowsum(dO o O), the line of algorithm 2 before its loops, for one query head.
template <class T, class A>
void row_deltas(A* delta, const Head<const T>& d_o, const Head<const T>& o, int64_t Tq) {
  for (int64_t i = 0; i < Tq; ++i) {
    const T *grad = d_o.data + i * d_o.stride, *out = o.data + i * o.stride;
    delta[i] = lane_sum<A>(
        o.D, [=](int64_t d) { return static_cast<A>(grad[d]) * static_cast<A>(out[d]); });
  }
}

template <class T>
struct BackwardArguments {
  T *dq, *dk, *dv;
  const T *d_o, *o;
  const acc_t<T>* lse;
  const T *q, *k, *v;
};

// Algorithm 2 for the query heads of one kv head of one batch. dQ (group, Tq, D) sums over key
// tiles in `dQ`; dK and dV of a key tile sum over the group and its query tiles.
template <class T, class A>
void backward_group(const BackwardArguments<T>& x, const AttentionShape& s, int64_t b,
                    int64_t kv_head, A* dQ, A* delta) {
  const int64_t D = s.D, group = s.H / s.Hk, h0 = kv_head * group;
  const A scale = static_cast<A>(s.scale);
  const Head<const T> K(x.k, s.k_strides, b, kv_head, D), V(x.v, s.v_strides, b, kv_head, D);
  Workspace<A> space(6 * kTile * D + 2 * kTile * kTile);
  A *K_j = space.take(kTile * D), *V_j = space.take(kTile * D);
  A *dK_j = space.take(kTile * D), *dV_j = space.take(kTile * D);
  A *Q_i = space.take(kTile * D), *dO_i = space.take(kTile * D);
  A *S = space.take(kTile * kTile), *dP = space.take(kTile * kTile);

  std::fill_n(dQ, group * s.Tq * D, A(0));
  for (int64_t g = 0; g < group; ++g) {
    row_deltas(delta + g * s.Tq, Head<const T>(x.d_o, s.do_strides, b, h0 + g, D),
               Head<const T>(x.o, s.o_strides, b, h0 + g, D), s.Tq);
  }
  for (int64_t j = 0; j < s.Tk; j += kTile) {
    const int64_t cols = std::min(kTile, s.Tk - j);
    K.load(K_j, j, cols);
    V.load(V_j, j, cols);
    std::fill_n(dK_j, cols * D, A(0));
    std::fill_n(dV_j, cols * D, A(0));
    for (int64_t g = 0; g < group; ++g) {
      const Head<const T> Q(x.q, s.q_strides, b, h0 + g, D), dO(x.d_o, s.do_strides, b, h0 + g, D);
      const A* L = x.lse + (b * s.H + h0 + g) * s.Tq;
      for (int64_t i = 0; i < s.Tq; i += kTile) {
        const int64_t rows = std::min(kTile, s.Tq - i);
        if (visible_keys(s, i + rows - 1, j, cols) == 0) continue;
        Q.load(Q_i, i, rows, scale);
        dO.load(dO_i, i, rows);
        multiply<A>(S, kTile, {Q_i, D}, {K_j, D, true}, rows, cols, D, A(1), false);
        multiply<A>(dP, kTile, {dO_i, D}, {V_j, D, true}, rows, cols, D, A(1), false);
        softmax_gradient(S, dP, L + i, delta + g * s.Tq + i, s, i, j, rows, cols);
        A* dQ_i = dQ + (g * s.Tq + i) * D;
        multiply<A>(dV_j, D, {S, kTile, true}, {dO_i, D}, cols, D, rows, A(1), true);  // P^T dO
        multiply<A>(dQ_i, D, {dP, kTile}, {K_j, D}, rows, D, cols, A(1), true);        // dS K
        multiply<A>(dK_j, D, {dP, kTile, true}, {Q_i, D}, cols, D, rows, A(1), true);  // dS^T Q
      }
    }
    Head<T>(x.dk, s.dk_strides, b, kv_head, D).store(dK_j, j, cols);
    Head<T>(x.dv, s.dv_strides, b, kv_head, D).store(dV_j, j, cols);
  }
  for (int64_t g = 0; g < group; ++g) {
    Head<T>(x.dq, s.dq_strides, b, h0 + g, D).store(dQ + g * s.Tq * D, 0, s.Tq, scale);
  }
}

}  // namespace

template <class T>
void attention_forward(T* o, acc_t<T>* lse, const T* q, const T* k, const T* v,
                       const AttentionShape& s, Stream) {
  check_attention(s);
  const int64_t query_tiles = tiles(s.Tq);
  parallel_for(s.B * s.H * query_tiles, 1, [&](int64_t task, int64_t) {
    const int64_t head = task / query_tiles, i = task % query_tiles * kTile;
    forward_tile(o, lse, q, k, v, s, head / s.H, head % s.H, i);
  });
}

int64_t attention_backward_scratch(const AttentionShape& s, DType dtype, Stream) {
  const size_t width = dtype == DType::f64 ? sizeof(double) : sizeof(float);
  return s.B * s.H * s.Tq * (s.D + 1) * static_cast<int64_t>(width);  // dQ and delta
}

template <class T>
void attention_backward(T* dq, T* dk, T* dv, const T* d_o, const T* o, const acc_t<T>* lse,
                        const T* q, const T* k, const T* v, const AttentionShape& s,
                        const RotaryTable<acc_t<T>>& rotary, void* scratch, Stream stream) {
  using A = acc_t<T>;
  check_attention(s);
  const BackwardArguments<T> arguments{dq, dk, dv, d_o, o, lse, q, k, v};
  A* dQ = static_cast<A*>(scratch);
  A* delta = dQ + s.B * s.H * s.Tq * s.D;
  const int64_t group_rows = s.H / s.Hk * s.Tq;
  parallel_for(s.B * s.Hk, 1, [&](int64_t task, int64_t) {
    backward_group(arguments, s, task / s.Hk, task % s.Hk, dQ + task * group_rows * s.D,
                   delta + task * group_rows);
  });
  rotate_gradients_back(dq, dk, s, rotary, stream);
}

template decltype(attention_forward<float>) attention_forward<float>;
template decltype(attention_forward<bfloat16>) attention_forward<bfloat16>;
template decltype(attention_forward<double>) attention_forward<double>;
template decltype(attention_backward<float>) attention_backward<float>;
template decltype(attention_backward<bfloat16>) attention_backward<bfloat16>;
template decltype(attention_backward<double>) attention_backward<double>;

}  // namespace quern::kernels::cpu
