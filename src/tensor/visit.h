// Maps a tensor's device and dtype to a kernel: the one place where run-time types become C++
// types. An op writes
//
//   visit("silu", x, [&]<class T>(std::type_identity<T>, auto stream) {
//     pointwise_forward(y.data<T>(), x.data<T>(), {}, x.numel(), kernels::Silu{}, stream);
//   });
//
// and the stream's namespace picks kernels::cpu or kernels::cuda (see base/stream.h).
#pragma once

#include <type_traits>

#include "base/error.h"
#include "tensor/context.h"
#include "tensor/tensor.h"

namespace quern {

// Calls f(stream) with the stream of the device, except in a dry run. So f only starts kernels and
// allocates nothing; sizes and choices belong in decide().
template <class F>
void on_device(Device device, F&& f) {
  if (Context::current().is_dry()) return;
  if constexpr (kBuiltWithCuda) {
    if (device.is_cuda()) return f(Context::current().cuda_stream());
  }
  QUERN_CHECK(!device.is_cuda(), "this build has no CUDA code, and a tensor is on ", device);
  f(kernels::cpu::Stream{});
}

// Returns f(stream): the size of a kernel's scratch memory, or whether a kernel supports a shape. f
// starts no work. Also runs in a dry run, even for a GPU in a build without CUDA code.
template <class F>
auto decide(Device device, F&& f) {
  if (device.is_cuda()) return f(Context::current().cuda_stream());
  return f(kernels::cpu::Stream{});
}

namespace detail {
template <class Stream>
inline constexpr bool kHasDouble = std::is_same_v<Stream, kernels::cpu::Stream>;
}

// Calls f(type_identity<T>, stream) for float, bfloat16, and on the CPU double.
template <class F>
void visit(const char* op, const Tensor& x, F&& f) {
  on_device(x.device(), [&](auto stream) {
    switch (x.dtype()) {
      case DType::f32: return f(std::type_identity<float>{}, stream);
      case DType::bf16: return f(std::type_identity<bfloat16>{}, stream);
      case DType::f64:
        if constexpr (detail::kHasDouble<decltype(stream)>) {
          return f(std::type_identity<double>{}, stream);
        }
        [[fallthrough]];
      default:
        fail(cat(op, ": dtype ", x.dtype(), " on ", x.device(),
                 " is not supported, expected f32 or bf16", x.device().is_cuda() ? "" : " or f64"));
    }
  });
}

// Like visit, with float16 too: for pointwise, binary, reduction, gather and mask ops.
template <class F>
void visit_pointwise(const char* op, const Tensor& x, F&& f) {
  if (x.dtype() != DType::f16) return visit(op, x, f);
  on_device(x.device(), [&](auto stream) { f(std::type_identity<float16>{}, stream); });
}

}  // namespace quern
