// Random fills: element i is a function of (seed, offset + i), see base/philox.h.
#include "kernels/random.h"

#include "base/philox.h"
#include "kernels/common/parallel.h"

namespace quern::kernels::cpu {

template <class T>
void uniform(T* x, int64_t n, double low, double high, PhiloxKey key, Stream) {
  using A = acc_t<T>;
  parallel_elements(n, [=](int64_t i) {
    x[i] = static_cast<T>(philox_uniform<A>(key.seed, key.offset + i, low, high));
  });
}

template <class T>
void normal(T* x, int64_t n, double mean, double std, double truncate, PhiloxKey key, Stream) {
  using A = acc_t<T>;
  if (truncate > 0.0) {
    parallel_elements(n, [=](int64_t i) {
      const double z = philox_truncated_normal(key.seed, key.offset + i, truncate);
      x[i] = static_cast<T>(static_cast<A>(fma(std, z, mean)));
    });
  } else {
    parallel_elements(n, [=](int64_t i) {
      const double z = philox_normal(key.seed, key.offset + i);
      x[i] = static_cast<T>(static_cast<A>(fma(std, z, mean)));
    });
  }
}

void random_integers(int32_t* x, int64_t n, int32_t bound, PhiloxKey key, Stream) {
  const uint32_t range = static_cast<uint32_t>(bound);
  parallel_elements(n, [=](int64_t i) {
    x[i] = static_cast<int32_t>(philox_integer(key.seed, key.offset + i, range));
  });
}

template decltype(uniform<float>) uniform<float>;
template decltype(uniform<bfloat16>) uniform<bfloat16>;
template decltype(uniform<double>) uniform<double>;
template decltype(normal<float>) normal<float>;
template decltype(normal<bfloat16>) normal<bfloat16>;
template decltype(normal<double>) normal<double>;

}  // namespace quern::kernels::cpu
