// Cross-entropy of rows of logits: loss = logsumexp(x) - x[target], and its gradient
// softmax(x) - onehot(target), recomputed from logsumexp.
#include "kernels/cross_entropy.h"

#include <cmath>

#include "base/error.h"
#include "kernels/common/math.h"
#include "kernels/common/parallel.h"
#include "kernels/cpu/lanes.h"

namespace quern::kernels::cpu {
namespace {

void check_targets(const int32_t* targets, int64_t N, int64_t V, int32_t ignore_index) {
  for (int64_t i = 0; i < N; ++i) {
    QUERN_CHECK((targets[i] >= 0 && targets[i] < V) || targets[i] == ignore_index,
                "cross_entropy: target ", i, " is ", targets[i], ", expected 0 to ", V - 1,
                " or ignore_index (", ignore_index, ")");
  }
}

template <class T>
acc_t<T> logsumexp(const T* x, int64_t V) {
  using A = acc_t<T>;
  const A max = lane_max<A>(V, -INFINITY, [=](int64_t v) { return static_cast<A>(x[v]); });
  const A sum = lane_sum<A>(V, [=](int64_t v) { return math::exp(static_cast<A>(x[v]) - max); });
  return max + math::log(sum);
}

// The gradient of one row whose target counts, (share softmax - onehot) factor; dx may be x.
template <class T>
void row_gradient(T* dx, const T* x, acc_t<T> lse, int32_t target, acc_t<T> factor, int64_t V,
                  acc_t<T> share = 1) {
  using A = acc_t<T>;
  const A at_target = math::exp(static_cast<A>(x[target]) - lse) * share - A(1);
  const A row_factor = share * factor;
  vector_for(0, V, [=](int64_t v) {
    dx[v] = static_cast<T>(math::exp(static_cast<A>(x[v]) - lse) * row_factor);
  });
  dx[target] = static_cast<T>(at_target * factor);
}

int64_t count_targets(const int32_t* targets, int64_t n, int32_t ignore_index) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) count += targets[i] != ignore_index;
  return count;
}

}  // namespace

template <class T>
void cross_entropy_forward(acc_t<T>* row_loss, acc_t<T>* lse, const T* logits,
                           const int32_t* targets, int64_t N, int64_t V, int32_t ignore_index,
                           Stream) {
  using A = acc_t<T>;
  check_targets(targets, N, V, ignore_index);
  parallel_rows(N, V, [=](int64_t i) {
    const T* x = logits + i * V;
    lse[i] = logsumexp(x, V);
    const bool counts = targets[i] != ignore_index;
    row_loss[i] = counts ? lse[i] - static_cast<A>(x[targets[i]]) : A(0);
  });
}

// One core and sums in double: n is the number of tokens, not of logits.
template <class A>
void cross_entropy_mean(A* loss, A* inverse_count, const A* row_loss, const int32_t* targets,
                        int64_t n, int32_t ignore_index, Stream) {
  const int64_t count = count_targets(targets, n, ignore_index);
  const double sum = lane_sum<double>(n, [=](int64_t i) { return row_loss[i]; });
  const double inverse = count == 0 ? 0.0 : 1.0 / static_cast<double>(count);
  loss[0] = static_cast<A>(sum * inverse);
  inverse_count[0] = static_cast<A>(inverse);
}

template <class T>
void cross_entropy_backward(T* dlogits, const T* logits, const acc_t<T>* lse,
                            const int32_t* targets, const acc_t<T>* scale, const acc_t<T>* dloss,
                            int64_t N, int64_t V, int32_t ignore_index, Stream) {
  using A = acc_t<T>;
  const A factor = scale[0] * (dloss == nullptr ? A(1) : dloss[0]);
  parallel_rows(N, V, [=](int64_t i) {
    T* dx = dlogits + i * V;
    if (targets[i] == ignore_index) {
      std::fill_n(dx, V, static_cast<T>(A(0)));
    } else {
      row_gradient(dx, logits + i * V, lse[i], targets[i], factor, V);
    }
  });
}

template <class A>
void cross_entropy_scale(A* scale, const int32_t* targets, int64_t n, double loss_scale,
                         int32_t ignore_index, Stream) {
  const int64_t count = count_targets(targets, n, ignore_index);
  scale[0] = static_cast<A>(count == 0 ? 0.0 : loss_scale / static_cast<double>(count));
}

template <class T>
void cross_entropy_forward_backward(acc_t<T>* row_loss, T* logits, const int32_t* targets,
                                    const acc_t<T>* scale, int64_t N, int64_t V,
                                    int32_t ignore_index, ZLoss<acc_t<T>> z, Stream) {
  using A = acc_t<T>;
  check_targets(targets, N, V, ignore_index);
  const A factor = scale[0];
  parallel_rows(N, V, [=](int64_t i) {
    T* x = logits + i * V;
    if (targets[i] == ignore_index) {
      row_loss[i] = A(0);
      if (z.rows != nullptr) z.rows[i] = A(0);
      std::fill_n(x, V, static_cast<T>(A(0)));
      return;
    }
    const A lse = logsumexp(x, V);
    row_loss[i] = lse - static_cast<A>(x[targets[i]]);
    if (z.rows != nullptr) z.rows[i] = lse * lse;
    row_gradient(x, x, lse, targets[i], factor, V, z.factor(lse));
  });
}

#define QUERN_INSTANTIATE(T)                                              \
  template decltype(cross_entropy_forward<T>) cross_entropy_forward<T>;   \
  template decltype(cross_entropy_backward<T>) cross_entropy_backward<T>; \
  template decltype(cross_entropy_forward_backward<T>) cross_entropy_forward_backward<T>;
QUERN_INSTANTIATE(float)
QUERN_INSTANTIATE(bfloat16)
QUERN_INSTANTIATE(double)
#undef QUERN_INSTANTIATE

template decltype(cross_entropy_mean<float>) cross_entropy_mean<float>;
template decltype(cross_entropy_mean<double>) cross_entropy_mean<double>;
template decltype(cross_entropy_scale<float>) cross_entropy_scale<float>;
template decltype(cross_entropy_scale<double>) cross_entropy_scale<double>;

}  // namespace quern::kernels::cpu
