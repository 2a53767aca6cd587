// The wgmma instructions D += A B in BF16 with float sums: M 64, K 16, and the N that kernels use.
// An asm statement needs its operands spelled out one by one. Templates cannot do that, so macros
// do; this file undefines them at its end. Only wgmma.cuh includes it.
#pragma once

#include <cstdint>

namespace quern::kernels::cuda {

// The dimension along which an operand is contiguous: K (rows of A, columns of B as in Q K^T), or M
// of A and N of B.
enum class Major { kK = 0, kMN = 1 };

// d: see fragment.cuh. A: a descriptor of shared memory, or 16 columns in registers. The
// sums start from 0 unless `accumulate`. Asynchronous: see wgmma_fence.
template <int kN>
struct Wgmma;

#define QUERN_D32                                                        \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15" \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define QUERN_D40 \
  QUERN_D32       \
  ", %32, %33, %34, %35, %36, %37, %38, %39"
#define QUERN_D48 \
  QUERN_D40       \
  ", %40, %41, %42, %43, %44, %45, %46, %47"
#define QUERN_D64 \
  QUERN_D48       \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define QUERN_D72 \
  QUERN_D64       \
  ", %64, %65, %66, %67, %68, %69, %70, %71"
#define QUERN_D80 \
  QUERN_D72       \
  ", %72, %73, %74, %75, %76, %77, %78, %79"
#define QUERN_D88 \
  QUERN_D80       \
  ", %80, %81, %82, %83, %84, %85, %86, %87"
#define QUERN_D96 \
  QUERN_D88       \
  ", %88, %89, %90, %91, %92, %93, %94, %95"
#define QUERN_D128                                                                               \
  QUERN_D96                                                                                      \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, " \
  "%127"
#define QUERN_SUMS8(i)                                                                        \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define QUERN_SUMS32 QUERN_SUMS8(0), QUERN_SUMS8(8), QUERN_SUMS8(16), QUERN_SUMS8(24)
#define QUERN_SUMS40 QUERN_SUMS32, QUERN_SUMS8(32)
#define QUERN_SUMS48 QUERN_SUMS40, QUERN_SUMS8(40)
#define QUERN_SUMS64 QUERN_SUMS48, QUERN_SUMS8(48), QUERN_SUMS8(56)
#define QUERN_SUMS72 QUERN_SUMS64, QUERN_SUMS8(64)
#define QUERN_SUMS80 QUERN_SUMS72, QUERN_SUMS8(72)
#define QUERN_SUMS88 QUERN_SUMS80, QUERN_SUMS8(80)
#define QUERN_SUMS96 QUERN_SUMS88, QUERN_SUMS8(88)
#define QUERN_SUMS128 \
  QUERN_SUMS96, QUERN_SUMS8(96), QUERN_SUMS8(104), QUERN_SUMS8(112), QUERN_SUMS8(120)

// kN: N. R: registers of D. n0 to n6: numbers of the asm operands after those.
#define QUERN_WGMMA(kN, R, n0, n1, n2, n3, n4, n5, n6)                                             \
  template <>                                                                                      \
  struct Wgmma<kN> {                                                                               \
    template <Major kA, Major kB>                                                                  \
    __device__ static __forceinline__ void multiply(float (&d)[R], uint64_t a, uint64_t b,         \
                                                    bool accumulate) {                             \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #n2                                        \
                   ", 0;\n"                                                                        \
                   "wgmma.mma_async.sync.aligned.m64n" #kN "k16.f32.bf16.bf16 {" QUERN_D##R        \
                   "}, "                                                                           \
                   "%" #n0 ", %" #n1 ", p, 1, 1, %" #n3 ", %" #n4 ";\n}"                           \
                   : QUERN_SUMS##R                                                                 \
                   : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(static_cast<int>(kA)), \
                     "n"(static_cast<int>(kB)));                                                   \
    }                                                                                              \
    template <Major kB>                                                                            \
    __device__ static __forceinline__ void multiply(float (&d)[R], const uint32_t (&a)[4],         \
                                                    uint64_t b, bool accumulate) {                 \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #n5                                        \
                   ", 0;\n"                                                                        \
                   "wgmma.mma_async.sync.aligned.m64n" #kN "k16.f32.bf16.bf16 {" QUERN_D##R        \
                   "}, "                                                                           \
                   "{%" #n0 ", %" #n1 ", %" #n2 ", %" #n3 "}, %" #n4 ", p, 1, 1, %" #n6 ";\n}"     \
                   : QUERN_SUMS##R                                                                 \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                           \
                     "r"(static_cast<int>(accumulate)), "n"(static_cast<int>(kB)));                \
    }                                                                                              \
  };
QUERN_WGMMA(64, 32, 32, 33, 34, 35, 36, 37, 38)
QUERN_WGMMA(80, 40, 40, 41, 42, 43, 44, 45, 46)
QUERN_WGMMA(96, 48, 48, 49, 50, 51, 52, 53, 54)
QUERN_WGMMA(128, 64, 64, 65, 66, 67, 68, 69, 70)
QUERN_WGMMA(144, 72, 72, 73, 74, 75, 76, 77, 78)
QUERN_WGMMA(160, 80, 80, 81, 82, 83, 84, 85, 86)
QUERN_WGMMA(176, 88, 88, 89, 90, 91, 92, 93, 94)
QUERN_WGMMA(192, 96, 96, 97, 98, 99, 100, 101, 102)
QUERN_WGMMA(256, 128, 128, 129, 130, 131, 132, 133, 134)

#undef QUERN_WGMMA
#undef QUERN_SUMS8
#undef QUERN_D32
#undef QUERN_SUMS32
#undef QUERN_D40
#undef QUERN_SUMS40
#undef QUERN_D48
#undef QUERN_SUMS48
#undef QUERN_D64
#undef QUERN_SUMS64
#undef QUERN_D72
#undef QUERN_SUMS72
#undef QUERN_D80
#undef QUERN_SUMS80
#undef QUERN_D88
#undef QUERN_SUMS88
#undef QUERN_D96
#undef QUERN_SUMS96
#undef QUERN_D128
#undef QUERN_SUMS128

}  // namespace quern::kernels::cuda
