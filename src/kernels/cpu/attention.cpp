// Flash attention on the CPU with the online softmax and the names of "FlashAttention-2" (Dao,
// 2023). Q_i, O_i, dO_i are tiles of queries, K_j, V_j of keys; S = scale Q_i K_j^T, P = exp(S -
// L). Tiles are packed in acc_t<T> and stay in the cache. Scores are computed as S^T (keys,
// queries) in panels of queries (panels.h): a vector holds neighbouring queries, so the softmax
// needs no sum across lanes, and P^T and dS^T are packed operands of O^T += V_j^T P^T and dQ^T +=
// K_j^T dS^T as they are.
#include "kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/round_up.h"
#include "kernels/common/math.h"
#include "kernels/common/parallel.h"
#include "kernels/common/rotate_gradients.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/pack_panels.h"
#include "kernels/cpu/panels.h"

namespace quern::kernels::cpu {
namespace {

// Keys of a tile, and queries of one: more in the forward, which packs K_j and V_j for each.
constexpr int64_t kKeys = 128, kForwardQueries = 128, kBackwardQueries = 64;

// Scratch memory of one task, handed out in pieces that begin at a vector's boundary.
template <class A>
class Workspace {
 public:
  explicit Workspace(std::initializer_list<int64_t> sizes) {
    int64_t total = 0;
    for (const int64_t size : sizes) total += aligned(size);
    next_ = memory_ = static_cast<A*>(::operator new[](total * sizeof(A), kAlignment));
  }
  ~Workspace() { ::operator delete[](memory_, kAlignment); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  // The next piece, in the order of the constructor's sizes.
  A* take(int64_t size) { return std::exchange(next_, next_ + aligned(size)); }

 private:
  static constexpr std::align_val_t kAlignment{64};
  static int64_t aligned(int64_t size) { return round_up(size, 64 / sizeof(A)); }

  A *memory_, *next_;
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

// Key `key` of the tile at j is hidden from the first lanes of the panel of queries at i.
int64_t hidden_lanes(const AttentionShape& s, int64_t i, int64_t j, int64_t key, int64_t lanes) {
  return s.causal ? std::clamp<int64_t>(j + key - (i + s.Tk - s.Tq), 0, lanes) : 0;
}

// A panel's hidden scores become -inf: `key` is hidden from the first hidden(key) lanes.
template <class A, class Hidden>
void hide(A* S, int64_t keys, const Hidden& hidden) {
  for (int64_t key = 0; key < keys; ++key) {
    std::fill_n(S + key * kPanelCols<A>, hidden(key), A(-INFINITY));
  }
}

// S^T (or dP^T) of `keys` keys of the tile at j and a panel of `count` queries at i: the product of
// the packed left (keys, D) and right (D, queries). Vectors of queries that see no key of a panel
// of keys are left out: hide() fills them.
template <class A>
void multiply_visible(A* S, const A* left, const A* right, const AttentionShape& s, int64_t i,
                      int64_t j, int64_t keys, int64_t count) {
  constexpr int kCols = kPanelCols<A>, kLanes = Vector<A>::kLanes;
  for (int64_t key = 0; key < keys; key += kPanelRows) {
    const int64_t hidden = hidden_lanes(s, i, j, key, count - 1) / kLanes * kLanes;
    multiply_panels<false>(S + key * kCols + hidden, left + key * s.D, kPanelRows * s.D,
                           right + hidden, 1, s.D, count - hidden);
  }
}

// The online softmax of one panel of queries: of each the running maximum m and sum l, and O^T
// (D_rows, panel) unnormalised.
template <class A>
struct OnlineSoftmax {
  static constexpr int kCols = kPanelCols<A>, kLanes = Vector<A>::kLanes;
  A *m, *l, *O;
  int64_t D_rows;

  void start() const {
    std::fill_n(m, kCols, A(-INFINITY));
    std::fill_n(l, kCols, A(0));
    std::fill_n(O, D_rows * kCols, A(0));
  }

  // m_new = max(m, max of S over keys); P = exp(S - m_new) in place of S; l and O shrink by
  // exp(m - m_new). As long as a query sees no key, 0 stands for its maximum.
  template <class Hidden>
  void step(A* S, int64_t keys, const Hidden& hidden) const {
    alignas(64) A shift[kCols], correction[kCols];
    fold(shift, m, S, keys, [](auto best, auto score) { return best < score ? score : best; });
    vector_for(0, kCols, [&](int64_t c) {
      const A before = m[c];
      m[c] = shift[c];
      shift[c] = shift[c] == A(-INFINITY) ? A(0) : shift[c];
      correction[c] = math::exp(before - shift[c]);  // 0 at the first tile, where m = -inf
      l[c] *= correction[c];
    });
    for (int64_t key = 0; key < keys; ++key) {
      A* row = S + key * kCols;
      const int64_t first = hidden(key) / kLanes * kLanes;
      std::fill_n(row, first, A(0));
      vector_for(first, kCols, [&](int64_t c) { row[c] = math::exp(row[c] - shift[c]); });
    }
    fold(l, l, S, keys, [](auto sum, auto p) { return sum + p; });
    if (std::all_of(correction, correction + kCols, [](A x) { return x == A(1); })) return;
    scale_rows(correction);
  }

  // O = O / l and L = m + log l. A query that sees no key keeps O = 0 and has L = -inf.
  void finish(A* L) const {
    alignas(64) A inverse[kCols];
    for (int c = 0; c < kCols; ++c) {
      inverse[c] = l[c] == A(0) ? A(0) : A(1) / l[c];
      L[c] = l[c] == A(0) ? A(-INFINITY) : m[c] + math::log(l[c]);
    }
    scale_rows(inverse);
  }

 private:
  // to[c] = f(... f(from[c], S[0][c]) ..., S[keys - 1][c]).
  template <class F>
  static void fold(A* to, const A* from, const A* S, int64_t keys, const F& f) {
    typename Vector<A>::type all[kPanelVectors];
    for (int v = 0; v < kPanelVectors; ++v) all[v] = load_vector(from + v * kLanes);
    for (int64_t key = 0; key < keys; ++key, S += kCols) {
      for (int v = 0; v < kPanelVectors; ++v) all[v] = f(all[v], load_vector(S + v * kLanes));
    }
    for (int v = 0; v < kPanelVectors; ++v) store_vector(to + v * kLanes, all[v]);
  }

  void scale_rows(const A* factor) const {
    for (int64_t d = 0; d < D_rows; ++d) {
      A* row = O + d * kCols;
      vector_for(0, kCols, [=](int64_t c) { row[c] *= factor[c]; });
    }
  }
};

// Algorithm 1, one query tile: rows [i, i + rows) of head (b, h).
template <class T, class A>
void forward_tile(T* o, A* lse, const T* q, const T* k, const T* v, const AttentionShape& s,
                  int64_t b, int64_t h, int64_t i) {
  constexpr int kCols = kPanelCols<A>;
  const int64_t rows = std::min(kForwardQueries, s.Tq - i), D = s.D, kv_head = h / (s.H / s.Hk);
  const int64_t panels = ceil_div(rows, kCols), D_panels = ceil_div(D, kPanelRows);
  const int64_t D_rows = D_panels * kPanelRows, key_rows = round_up(kKeys, kPanelRows);
  const Head<const T> Q(q, s.q_strides, b, h, D), K(k, s.k_strides, b, kv_head, D),
      V(v, s.v_strides, b, kv_head, D);
  const int64_t tile_size = std::max(kForwardQueries, kKeys) * D;
  Workspace<A> space({tile_size, panels * kCols * D, key_rows * D, D_rows * kKeys, key_rows * kCols,
                      panels * D_rows * kCols, panels * kCols, panels * kCols});
  A* tile = space.take(tile_size);
  A* Q_i = space.take(panels * kCols * D);                               // (D, queries)
  A *K_j = space.take(key_rows * D), *V_j = space.take(D_rows * kKeys);  // (keys, D), (D, keys)
  A* S = space.take(key_rows * kCols);
  std::fill_n(S, key_rows * kCols, A(0));  // the softmax also reads what no product writes
  A* O_i = space.take(panels * D_rows * kCols);
  A *m = space.take(panels * kCols), *l = space.take(panels * kCols);
  const auto softmax = [=](int64_t p) {
    return OnlineSoftmax<A>{m + p * kCols, l + p * kCols, O_i + p * D_rows * kCols, D_rows};
  };

  for (int64_t p = 0; p < panels; ++p) softmax(p).start();
  Q.load(tile, i, rows, static_cast<A>(s.scale));
  pack_lines<kCols>(Q_i, kCols * D, tile, D, rows, D);
  const int64_t keys = visible_keys(s, i + rows - 1, 0, s.Tk);  // later tiles are masked entirely
  for (int64_t j = 0; j < keys; j += kKeys) {
    const int64_t cols = std::min(kKeys, keys - j);
    K.load(tile, j, cols);
    pack_lines<kPanelRows>(K_j, kPanelRows * D, tile, D, cols, D);
    V.load(tile, j, cols);
    pack_slices<kPanelRows>(V_j, tile, D, D, cols);
    for (int64_t p = 0; p < panels; ++p) {
      const int64_t first = i + p * kCols, count = std::min<int64_t>(kCols, rows - p * kCols);
      const int64_t seen = visible_keys(s, first + count - 1, j, cols);
      if (seen == 0) continue;
      multiply_visible(S, K_j, Q_i + p * kCols * D, s, first, j, seen, count);
      const auto hidden = [&](int64_t key) { return hidden_lanes(s, first, j, key, kCols); };
      hide(S, seen, hidden);
      softmax(p).step(S, seen, hidden);
      multiply_panels<true>(softmax(p).O, V_j, kPanelRows * cols, S, D_panels, seen,
                            count);  // O^T += V_j^T P^T
    }
  }
  for (int64_t p = 0; p < panels; ++p) {
    const int64_t first = p * kCols, count = std::min<int64_t>(kCols, rows - first);
    softmax(p).finish(l + first);
    std::copy_n(l + first, count, lse + (b * s.H + h) * s.Tq + i + first);
    transpose(tile + first * D, D, softmax(p).O, kCols, D, count);
  }
  Head<T>(o, s.o_strides, b, h, D).store(tile, i, rows);
}

// P = exp(S - L) in place of S, then dS = P (dP - delta) in place of dP, in one panel. Both are 0
// where a key is hidden, from its first hidden(key) lanes.
template <class A, class Hidden>
void softmax_gradient(A* S, A* dP, const A* L, const A* delta, int64_t keys, const Hidden& hidden) {
  constexpr int kCols = kPanelCols<A>, kLanes = Vector<A>::kLanes;
  for (int64_t key = 0; key < keys; ++key) {
    A *p = S + key * kCols, *dp = dP + key * kCols;
    const int64_t empty = hidden(key);
    vector_for(empty / kLanes * kLanes, kCols, [=](int64_t c) {
      const A probability = math::exp(p[c] - L[c]);
      p[c] = probability;
      dp[c] = probability * (dp[c] - delta[c]);
    });
    std::fill_n(p, empty, A(0));
    std::fill_n(dp, empty, A(0));
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

// One tile of queries as the products read it: as columns (D, queries) and as rows (queries, D).
template <class A>
struct QueryTile {
  A *columns, *rows;

  template <class T>
  void load(A* tile, const Head<const T>& x, int64_t i, int64_t count, A scale) const {
    constexpr int kCols = kPanelCols<A>;
    x.load(tile, i, count, scale);
    pack_lines<kCols>(columns, kCols * x.D, tile, x.D, count, x.D);
    pack_slices<kCols>(rows, tile, x.D, x.D, count);
  }
};

// The sizes of a head's dQ^T, panel by panel, and of its deltas.
template <class A>
struct GradientScratch {
  int64_t queries, dQ;

  explicit GradientScratch(const AttentionShape& s)
      : queries(round_up(s.Tq, kPanelCols<A>)), dQ(queries * round_up(s.D, kPanelRows)) {}
};

// Algorithm 2 for the query heads of one kv head of one batch. dQ^T sums over key tiles in `dQ`; dK
// and dV of a key tile sum over the group and its query tiles.
template <class T, class A>
void backward_group(const BackwardArguments<T>& x, const AttentionShape& s, int64_t b,
                    int64_t kv_head, A* dQ, A* delta) {
  constexpr int kCols = kPanelCols<A>;
  const int64_t D = s.D, group = s.H / s.Hk, h0 = kv_head * group;
  const A scale = static_cast<A>(s.scale);
  const GradientScratch<A> sizes(s);
  const int64_t D_panels = ceil_div(D, kPanelRows), D_rows = D_panels * kPanelRows;
  const int64_t D_columns = round_up(D, kCols), key_rows = round_up(kKeys, kPanelRows);
  const int64_t columns = round_up(kBackwardQueries, kCols);
  const Head<const T> K(x.k, s.k_strides, b, kv_head, D), V(x.v, s.v_strides, b, kv_head, D);

  const int64_t tile_size = std::max(kKeys, kBackwardQueries) * D, keys_size = key_rows * D;
  const int64_t sum_size = key_rows * D_columns, scores_size = key_rows * kCols;
  const int64_t columns_size = columns * D, rows_size = kBackwardQueries * D_columns;
  const int64_t turned_size = key_rows * kBackwardQueries;
  Workspace<A> space({tile_size, keys_size, keys_size, D_rows * kKeys, sum_size, sum_size,
                      columns_size, rows_size, columns_size, rows_size, scores_size, scores_size,
                      turned_size, turned_size});
  A* tile = space.take(tile_size);
  A *K_j = space.take(keys_size), *V_j = space.take(keys_size);  // (keys, D)
  A* K_turned = space.take(D_rows * kKeys);                      // (D, keys)
  A *dK_j = space.take(sum_size), *dV_j = space.take(sum_size);  // (keys, D), panels of D
  const QueryTile<A> Q_i{space.take(columns_size), space.take(rows_size)};
  const QueryTile<A> dO_i{space.take(columns_size), space.take(rows_size)};
  A *S = space.take(scores_size), *dP = space.take(scores_size);  // one panel, then P and dS
  std::fill_n(S, scores_size, A(0));  // the softmax also reads what no product writes
  std::fill_n(dP, scores_size, A(0));
  A *P = space.take(turned_size), *dS = space.take(turned_size);  // (keys, queries) of the tile

  std::fill_n(dQ, group * sizes.dQ, A(0));
  std::fill_n(delta, group * sizes.queries, A(0));
  for (int64_t g = 0; g < group; ++g) {
    row_deltas(delta + g * sizes.queries, Head<const T>(x.d_o, s.do_strides, b, h0 + g, D),
               Head<const T>(x.o, s.o_strides, b, h0 + g, D), s.Tq);
  }
  for (int64_t j = 0; j < s.Tk; j += kKeys) {
    const int64_t cols = std::min(kKeys, s.Tk - j);
    K.load(tile, j, cols);
    pack_lines<kPanelRows>(K_j, kPanelRows * D, tile, D, cols, D);
    pack_slices<kPanelRows>(K_turned, tile, D, D, cols);
    V.load(tile, j, cols);
    pack_lines<kPanelRows>(V_j, kPanelRows * D, tile, D, cols, D);
    std::fill_n(dK_j, sum_size, A(0));
    std::fill_n(dV_j, sum_size, A(0));
    for (int64_t g = 0; g < group; ++g) {
      const Head<const T> Q(x.q, s.q_strides, b, h0 + g, D), dO(x.d_o, s.do_strides, b, h0 + g, D);
      const A* L = x.lse + (b * s.H + h0 + g) * s.Tq;
      for (int64_t i = 0; i < s.Tq; i += kBackwardQueries) {
        const int64_t rows = std::min(kBackwardQueries, s.Tq - i);
        const int64_t tile_seen = visible_keys(s, i + rows - 1, j, cols);
        if (tile_seen == 0) continue;
        Q_i.load(tile, Q, i, rows, scale);
        dO_i.load(tile, dO, i, rows, A(1));
        for (int64_t first = 0; first < rows; first += kCols) {
          const int64_t count = std::min<int64_t>(kCols, rows - first);
          alignas(64) A L_panel[kCols];  // +inf behind the last query, where P is 0
          std::fill(std::copy_n(L + i + first, count, L_panel), L_panel + kCols, A(INFINITY));
          const int64_t seen = visible_keys(s, i + first + count - 1, j, tile_seen);
          multiply_visible(S, K_j, Q_i.columns + first * D, s, i + first, j, seen, count);
          multiply_visible(dP, V_j, dO_i.columns + first * D, s, i + first, j, seen, count);
          softmax_gradient(S, dP, L_panel, delta + g * sizes.queries + i + first, seen,
                           [&](int64_t key) { return hidden_lanes(s, i + first, j, key, kCols); });
          for (A* const panel : {S, dP}) {
            std::fill(panel + seen * kCols, panel + tile_seen * kCols, A(0));
          }
          A* dQ_i = dQ + g * sizes.dQ + (i + first) * D_rows;
          multiply_panels<true>(dQ_i, K_turned, kPanelRows * cols, dP, D_panels, seen, count);
          pack_lines<kPanelRows>(P + first * kPanelRows, rows * kPanelRows, S, kCols, tile_seen,
                                 count);
          pack_lines<kPanelRows>(dS + first * kPanelRows, rows * kPanelRows, dP, kCols, tile_seen,
                                 count);
        }
        // dV += P^T dO, dK += dS^T Q, from the first query on that sees a key of the panel.
        for (int64_t d = 0; d < D; d += kCols) {
          for (int64_t key = 0; key < tile_seen; key += kPanelRows) {
            const int64_t hidden = hidden_lanes(s, i, j, key, rows - 1);
            const int64_t from = key * rows + hidden * kPanelRows, at = d * rows + hidden * kCols;
            const int64_t to = d * key_rows + key * kCols;
            multiply_panels<true>(dV_j + to, P + from, 0, dO_i.rows + at, 1, rows - hidden, D - d);
            multiply_panels<true>(dK_j + to, dS + from, 0, Q_i.rows + at, 1, rows - hidden, D - d);
          }
        }
      }
    }
    const auto store = [&](T* out, const int64_t(&strides)[3], const A* sum) {
      for (int64_t d = 0; d < D; d += kCols) {
        const int64_t count = std::min<int64_t>(kCols, D - d);
        for (int64_t key = 0; key < cols; ++key) {
          std::copy_n(sum + d * key_rows + key * kCols, count, tile + key * D + d);
        }
      }
      Head<T>(out, strides, b, kv_head, D).store(tile, j, cols);
    };
    store(x.dk, s.dk_strides, dK_j);
    store(x.dv, s.dv_strides, dV_j);
  }
  for (int64_t g = 0; g < group; ++g) {
    const Head<T> out(x.dq, s.dq_strides, b, h0 + g, D);
    for (int64_t i = 0; i < s.Tq; i += kCols) {
      const int64_t count = std::min<int64_t>(kCols, s.Tq - i);
      transpose(tile, D, dQ + g * sizes.dQ + i * D_rows, kCols, D, count);
      out.store(tile, i, count, scale);
    }
  }
}

}  // namespace

template <class T>
void attention_forward(T* o, acc_t<T>* lse, const T* q, const T* k, const T* v,
                       const AttentionShape& s, Stream) {
  check_attention(s);
  const int64_t query_tiles = ceil_div(s.Tq, kForwardQueries);
  parallel_for(s.B * s.H * query_tiles, 1, [&](int64_t task, int64_t) {
    const int64_t head = task / query_tiles, i = task % query_tiles * kForwardQueries;
    forward_tile(o, lse, q, k, v, s, head / s.H, head % s.H, i);
  });
}

int64_t attention_backward_scratch(const AttentionShape& s, DType dtype, Stream) {
  const auto bytes = [&]<class A>(A) {
    const GradientScratch<A> sizes(s);
    return s.B * s.H * (sizes.dQ + sizes.queries) * static_cast<int64_t>(sizeof(A));
  };
  return dtype == DType::f64 ? bytes(double()) : bytes(float());
}

template <class T>
void attention_backward(T* dq, T* dk, T* dv, const T* d_o, const T* o, const acc_t<T>* lse,
                        const T* q, const T* k, const T* v, const AttentionShape& s,
                        const RotaryTable<acc_t<T>>& rotary, void* scratch, Stream stream) {
  using A = acc_t<T>;
  check_attention(s);
  const BackwardArguments<T> arguments{dq, dk, dv, d_o, o, lse, q, k, v};
  const GradientScratch<A> sizes(s);
  A* dQ = static_cast<A*>(scratch);
  A* delta = dQ + s.B * s.H * sizes.dQ;
  const int64_t group = s.H / s.Hk;
  parallel_for(s.B * s.Hk, 1, [&](int64_t task, int64_t) {
    backward_group(arguments, s, task / s.Hk, task % s.Hk, dQ + task * group * sizes.dQ,
                   delta + task * group * sizes.queries);
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
