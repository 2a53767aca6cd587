// The product of a few rows by separate kernels: the reference of the GPU's tests.
#include "kernels/decode_linear.h"

#include <vector>

#include "base/error.h"
#include "kernels/gemm.h"
#include "kernels/rms_norm.h"
#include "kernels/swiglu.h"

namespace quern::kernels::cpu {
namespace {

template <class T, class TX>
std::vector<T> norm_of(const TX* x, const DecodeLinear<T>& l, Stream stream) {
  std::vector<T> y(static_cast<size_t>(l.rows * l.in));
  std::vector<float> rstd(static_cast<size_t>(l.rows));
  add_rms_norm_forward<TX, T>(nullptr, y.data(), rstd.data(), x, nullptr, l.norm, l.rows, l.in,
                              l.eps, stream);
  return y;
}

template <class T, class TX>
void add_to(TX* x, const std::vector<T>& y) {
  for (size_t i = 0; i < y.size(); ++i) {
    x[i] = static_cast<TX>(static_cast<float>(x[i]) + static_cast<float>(y[i]));
  }
}

}  // namespace

template <class T>
void decode_linear(const DecodeLinear<T>& l, Stream stream, bool) {
  std::vector<T> x;
  if (l.x == nullptr) {
    x = l.fp32_stream ? norm_of<T>(static_cast<const float*>(l.stream), l, stream)
                      : norm_of<T>(static_cast<const T*>(l.stream), l, stream);
  }
  std::vector<T> y(static_cast<size_t>(l.rows * l.out));
  Gemm product{l.rows, l.out, l.in};
  product.transpose_b = true;
  std::vector<float> packed(gemm_scratch(product, dtype_of<T>, stream) / sizeof(float));
  GemmResources resources;
  resources.scratch = packed.data();
  gemm(y.data(), l.x == nullptr ? x.data() : l.x, l.w, product, resources, stream);
  switch (l.output) {
    case DecodeOutput::store:
      for (size_t i = 0; i < y.size(); ++i) {
        const float bias =
            l.bias == nullptr ? 0.0f : static_cast<float>(l.bias[i % static_cast<size_t>(l.out)]);
        l.y[i] = static_cast<T>(static_cast<float>(y[i]) + bias);
      }
      return;
    case DecodeOutput::add:
      return l.fp32_stream ? add_to(static_cast<float*>(l.stream), y)
                           : add_to(static_cast<T*>(l.stream), y);
    case DecodeOutput::swiglu: return swiglu_forward(l.y, y.data(), l.rows, l.out / 2, stream);
  }
  fail("decode_linear: unknown output");
}

template <class T>
bool decode_linear_fits(int64_t, bool, Stream) {
  return true;
}

template decltype(decode_linear<float>) decode_linear<float>;
template decltype(decode_linear<bfloat16>) decode_linear<bfloat16>;
template decltype(decode_linear_fits<float>) decode_linear_fits<float>;
template decltype(decode_linear_fits<bfloat16>) decode_linear_fits<bfloat16>;

}  // namespace quern::kernels::cpu
