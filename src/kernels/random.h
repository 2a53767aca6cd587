// Random numbers by Philox4x32-10 (Salmon et al., 2011): element i depends only on (seed, offset +
// i), so CPU and GPU give the same integers and uniforms; normals (Box-Muller) agree to 1e-6. See
// base/philox.h.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/stream.h"

namespace quern::kernels {

struct PhiloxKey {
  uint64_t seed = 0;
  uint64_t offset = 0;  // counter of the first element
};

namespace cpu {
// x[i] uniform in [low, high). T: float, bfloat16, and on the CPU double.
template <class T>
void uniform(T* x, int64_t n, double low, double high, PhiloxKey key, Stream stream);

// x[i] normal(mean, std). With truncate > 0 the distribution is cut at truncate * std from the mean
// (by the inverse of the distribution function, so one draw suffices).
template <class T>
void normal(T* x, int64_t n, double mean, double std, double truncate, PhiloxKey key,
            Stream stream);

// x[i] uniform in [0, bound).
void random_integers(int32_t* x, int64_t n, int32_t bound, PhiloxKey key, Stream stream);
}  // namespace cpu

namespace cuda {
template <class T>
void uniform(T* x, int64_t n, double low, double high, PhiloxKey key, Stream stream);
template <class T>
void normal(T* x, int64_t n, double mean, double std, double truncate, PhiloxKey key,
            Stream stream);
void random_integers(int32_t* x, int64_t n, int32_t bound, PhiloxKey key, Stream stream);
}  // namespace cuda

}  // namespace quern::kernels
