// Rows of a table by token id. The backward first groups the tokens by id (a counting sort, which
// keeps their order), so that one core sums each row of dw in the order of the tokens.
#include "kernels/embedding.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/common/parallel.h"

namespace quern::kernels::cpu {
namespace {

void check_ids(const int32_t* ids, int64_t n, int64_t V) {
  for (int64_t i = 0; i < n; ++i) {
    QUERN_CHECK(ids[i] >= 0 && ids[i] < V, "embedding: token ", i, " has id ", ids[i],
                ", expected 0 to ", V - 1);
  }
}

// order: token positions sorted by id; id v has order[first[v] .. first[v + 1]).
void group_by_id(int64_t* first, int64_t* order, const int32_t* ids, int64_t n, int64_t V) {
  std::fill_n(first, V + 1, int64_t{0});
  for (int64_t i = 0; i < n; ++i) ++first[ids[i] + 1];
  for (int64_t v = 0; v < V; ++v) first[v + 1] += first[v];
  for (int64_t i = 0; i < n; ++i) order[first[ids[i]]++] = i;
  for (int64_t v = V; v > 0; --v) first[v] = first[v - 1];  // undo the advance
  first[0] = 0;
}

}  // namespace

template <class TY, class TW>
void embedding_forward(TY* y, const TW* w, const int32_t* ids, int64_t n, int64_t V, int64_t C,
                       Stream) {
  check_ids(ids, n, V);
  parallel_rows(n, C, [=](int64_t i) {
    const TW* row = w + ids[i] * C;
    TY* out = y + i * C;
    vector_for(0, C, [=](int64_t c) { out[c] = static_cast<TY>(static_cast<acc_t<TW>>(row[c])); });
  });
}

int64_t embedding_backward_scratch(int64_t n, int64_t V, int64_t, Stream) {
  return (V + 1 + n) * static_cast<int64_t>(sizeof(int64_t));
}

template <class T>
void embedding_backward(acc_t<T>* dw, const T* dy, const int32_t* ids, int64_t n, int64_t V,
                        int64_t C, bool add, void* scratch, Stream) {
  using A = acc_t<T>;
  check_ids(ids, n, V);
  int64_t* first = static_cast<int64_t*>(scratch);
  int64_t* order = first + V + 1;
  group_by_id(first, order, ids, n, V);
  parallel_rows(V, C, [=](int64_t v) {
    A* row = dw + v * C;
    if (!add) std::fill_n(row, C, A(0));
    for (int64_t k = first[v]; k < first[v + 1]; ++k) {
      const T* grad = dy + order[k] * C;
      vector_for(0, C, [=](int64_t c) { row[c] += static_cast<A>(grad[c]); });
    }
  });
}

template decltype(embedding_forward<float, float>) embedding_forward<float, float>;
template decltype(embedding_forward<bfloat16, bfloat16>) embedding_forward<bfloat16, bfloat16>;
template decltype(embedding_forward<float, bfloat16>) embedding_forward<float, bfloat16>;
template decltype(embedding_forward<double, double>) embedding_forward<double, double>;

template decltype(embedding_backward<float>) embedding_backward<float>;
template decltype(embedding_backward<bfloat16>) embedding_backward<bfloat16>;
template decltype(embedding_backward<double>) embedding_backward<double>;

}  // namespace quern::kernels::cpu
