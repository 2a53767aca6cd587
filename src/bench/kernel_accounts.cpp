// One function a kernel and variant, a line a launch: what it reads, what it writes, its FLOPs. The
// naive ones follow the compositions in autograd/ops/naive.cpp, kernel_cases.cpp and
// optim/adamw_naive.cpp; views (split, reshape, permute) cost nothing there.
#include "bench/kernel_accounts.h"

#include <algorithm>

#include "base/error.h"
#include "bench/kernel_cases.h"

namespace quern {

namespace {

constexpr DType kF32 = DType::f32;

// The rows and columns of a case, and their product.
struct Extents {
  explicit Extents(const std::vector<int64_t>& shape)
      : N(shape.at(0)), M(shape.size() > 1 ? shape[1] : 1), NM(N * M) {}
  int64_t N, M, NM;
};

// Reads NM + (NM + N) + NM + NM + (NM + N) = 5 NM + 2 N, writes N + NM + NM + N + NM = 3 NM + 2 N.
// That max also notes where (N indices) is the op's, and not softmax's, and is left out.
KernelAccount naive_softmax(const Extents& e, DType t) {
  KernelAccount a;
  a.kernel({{e.NM, t}}, {{e.N, t}}, e.NM);             // m = max(x)
  a.kernel({{e.NM, t}, {e.N, t}}, {{e.NM, t}}, e.NM);  // x - m
  a.kernel({{e.NM, t}}, {{e.NM, t}}, e.NM);            // exp
  a.kernel({{e.NM, t}}, {{e.N, t}}, e.NM);             // s = sum
  a.kernel({{e.NM, t}, {e.N, t}}, {{e.NM, t}}, e.NM);  // / s
  return a;
}

// A pass that keeps maximum m and sum s of each row on the chip, a pass that writes. An element
// costs max, then s = s exp(m - m') + exp(x - m'): 7; then exp(x - m) / s: 3.
KernelAccount online_softmax(const Extents& e, DType t) {
  KernelAccount a;
  a.kernel({{2 * e.NM, t}}, {{e.NM, t}}, 10 * e.NM);
  return a;
}

// The row stays on the chip: max, -, exp, +, times 1 / s.
KernelAccount fused_softmax(const Extents& e, DType t) {
  KernelAccount a;
  a.kernel({{e.NM, t}}, {{e.NM, t}}, 5 * e.NM);
  return a;
}

KernelAccount naive_gelu(const Extents& e, DType t) {
  const Elements x{e.NM, t};
  KernelAccount a;
  a.kernel({x, x}, {x}, e.NM);   // x x
  a.kernel({x, x}, {x}, e.NM);   // x^2 x
  a.kernel({x}, {x}, 2 * e.NM);  // 0.044715 x^3: scale is a factor and an offset
  a.kernel({x, x}, {x}, e.NM);   // x +
  a.kernel({x}, {x}, 2 * e.NM);  // sqrt(2 / pi) times
  a.kernel({x}, {x}, e.NM);      // tanh
  a.kernel({x}, {x}, 2 * e.NM);  // 0.5 x
  a.kernel({x}, {x}, 2 * e.NM);  // 1 + tanh
  a.kernel({x, x}, {x}, e.NM);   // their product
  return a;
}

// x x x 0.044715, x +, times sqrt(2 / pi), tanh, 1 +, times x times 0.5.
KernelAccount fused_gelu(const Extents& e, DType t) {
  KernelAccount a;
  a.kernel({{e.NM, t}}, {{e.NM, t}}, 9 * e.NM);
  return a;
}

KernelAccount naive_weighted_sum(const Extents& e, DType t) {
  KernelAccount a;
  a.kernel({{e.NM, t}, {e.M, t}}, {{e.NM, t}}, e.NM);  // x w
  a.kernel({{e.NM, t}}, {{e.N, t}}, e.NM);             // sum
  return a;
}

KernelAccount fused_weighted_sum(const Extents& e, DType t) {
  KernelAccount a;
  a.kernel({{e.NM, t}, {e.M, t}}, {{e.N, t}}, 2 * e.NM);
  return a;
}

// To FP32 or back; no kernel when x is FP32.
void add_cast(KernelAccount& a, int64_t count, DType from, DType to) {
  if (from != to) a.kernel({{count, from}}, {{count, to}}, 0);
}

// sum of squares, / C + eps, ^-0.5: a column.
void add_rstd(KernelAccount& a, const Extents& e) {
  a.kernel({{e.NM, kF32}}, {{e.N, kF32}}, 2 * e.NM);
  a.kernel({{e.N, kF32}}, {{e.N, kF32}}, 2 * e.N);
  a.kernel({{e.N, kF32}}, {{e.N, kF32}}, e.N);
}

KernelAccount naive_rms_norm(const Extents& e, DType t) {
  const Elements x{e.NM, kF32};
  KernelAccount a;
  add_cast(a, e.NM, t, kF32);
  add_rstd(a, e);
  a.kernel({x, {e.N, kF32}}, {x}, e.NM);  // times rstd
  a.kernel({x, {e.M, kF32}}, {x}, e.NM);  // times w
  add_cast(a, e.NM, kF32, t);
  return a;
}

// Also writes rstd, for backward.
KernelAccount fused_rms_norm(const Extents& e, DType t) {
  KernelAccount a;
  a.kernel({{e.NM, t}, {e.M, kF32}}, {{e.NM, t}, {e.N, kF32}}, 4 * e.NM + 3 * e.N);
  return a;
}

KernelAccount naive_add_rms_norm(const Extents& e, DType t) {
  KernelAccount a = naive_rms_norm(e, t);
  a.kernel({{e.NM, t}, {e.NM, t}}, {{e.NM, t}}, e.NM);  // the stream plus the branch
  return a;
}

KernelAccount fused_add_rms_norm(const Extents& e, DType t) {
  KernelAccount a;
  a.kernel({{2 * e.NM, t}, {e.M, kF32}}, {{2 * e.NM, t}, {e.N, kF32}}, 5 * e.NM + 3 * e.N);
  return a;
}

KernelAccount naive_layer_norm(const Extents& e, DType t) {
  const Elements x{e.NM, kF32}, column{e.N, kF32}, row{e.M, kF32};
  KernelAccount a;
  add_cast(a, e.NM, t, kF32);
  a.kernel({x}, {column}, e.NM + e.N);  // mean
  a.kernel({x, column}, {x}, e.NM);     // x - mean
  add_rstd(a, e);
  a.kernel({x, column}, {x}, e.NM);  // times rstd
  a.kernel({x, row}, {x}, e.NM);     // times w
  a.kernel({x, row}, {x}, e.NM);     // plus b
  add_cast(a, e.NM, kF32, t);
  return a;
}

// Also writes mean and rstd, for backward.
KernelAccount fused_layer_norm(const Extents& e, DType t) {
  KernelAccount a;
  a.kernel({{e.NM, t}, {2 * e.M, kF32}}, {{e.NM, t}, {2 * e.N, kF32}}, 7 * e.NM + 4 * e.N);
  return a;
}

// n elements of x (B, H, T, D), and the tables' T D / 2 of each of cos and sin.
struct RopeExtents {
  explicit RopeExtents(const std::vector<int64_t>& shape)
      : n(shape.at(0) * shape.at(1) * shape.at(2) * shape.at(3)), half(shape[2] * shape[3] / 2) {}
  int64_t n, half;
};

KernelAccount naive_rope(const RopeExtents& e, DType t) {
  const Elements x{e.n, kF32}, table{e.half, kF32}, both{2 * e.half, kF32};
  KernelAccount a;
  a.kernel({table}, {table}, 2 * e.half);  // -sin, a scale
  a.kernel({both}, {both}, 0);             // (-sin, sin)
  add_cast(a, e.n, t, kF32);
  a.kernel({x}, {x}, 0);           // (x2, x1)
  a.kernel({x, table}, {x}, e.n);  // x cos
  a.kernel({x, both}, {x}, e.n);   // (x2, x1) (-sin, sin)
  a.kernel({x, x}, {x}, e.n);      // their sum
  add_cast(a, e.n, kF32, t);
  return a;
}

KernelAccount fused_rope(const RopeExtents& e, DType t) {
  KernelAccount a;
  a.kernel({{e.n, t}, {2 * e.half, kF32}}, {{e.n, t}}, 3 * e.n);
  return a;
}

// M is 2 F: gate beside up. silu(x) = x / (1 + exp(-x)): 4.
KernelAccount naive_swiglu(const Extents& e, DType t) {
  const Elements half{e.NM / 2, t};
  KernelAccount a;
  a.kernel({half}, {half}, 4 * half.count);    // silu(gate)
  a.kernel({half, half}, {half}, half.count);  // times up
  return a;
}

KernelAccount fused_swiglu(const Extents& e, DType t) {
  KernelAccount a;
  a.kernel({{e.NM, t}}, {{e.NM / 2, t}}, 5 * e.NM / 2);
  return a;
}

// Forward and backward over N x V logits; what has N elements alone (targets, losses, logsumexp)
// is left out: V is tens of thousands.
KernelAccount naive_cross_entropy(const Extents& e, DType t) {
  const Elements wide{e.NM, kF32};
  KernelAccount a;
  add_cast(a, e.NM, t, kF32);
  a.kernel({wide}, {wide}, 5 * e.NM);        // log_softmax: max, -, exp, +, -
  a.kernel({}, {wide}, 0);                   // backward of the gather: zeros but at the targets
  a.kernel({wide, wide}, {wide}, 4 * e.NM);  // of log_softmax: + , dy - exp(y) sum
  add_cast(a, e.NM, kF32, t);
  return a;
}

// Forward: max, -, exp, +. Backward reads the logits again: (exp(x - lse) - 1 at the target) / N.
KernelAccount fused_cross_entropy(const Extents& e, DType t) {
  KernelAccount a;
  a.kernel({{e.NM, t}}, {}, 4 * e.NM);
  a.kernel({{e.NM, t}}, {{e.NM, t}}, 3 * e.NM);
  return a;
}

// The same in one pass over logits that are read once and replaced.
KernelAccount in_place_cross_entropy(const Extents& e, DType t) {
  KernelAccount a;
  a.kernel({{e.NM, t}}, {{e.NM, t}}, 7 * e.NM);
  return a;
}

// dtype bf16: with the BF16 copy of the parameters.
KernelAccount naive_adamw(const Extents& e, DType t) {
  const Elements n{e.N, kF32};
  KernelAccount a;
  a.kernel({n, n}, {n}, 3 * e.N);  // m = beta1 m + (1 - beta1) g
  a.kernel({n, n}, {n}, 4 * e.N);  // v = beta2 v + (1 - beta2) g^2
  a.kernel({n}, {n}, e.N);         // sqrt(v)
  a.kernel({n}, {n}, 2 * e.N);     // corrected, plus eps
  a.kernel({n, n}, {n}, e.N);      // m / that
  a.kernel({n, n}, {n}, 3 * e.N);  // p = (1 - lr decay) p - lr that
  add_cast(a, e.N, kF32, t);
  return a;
}

KernelAccount fused_adamw(const Extents& e, DType t) {
  const int64_t copies = t == kF32 ? 0 : e.N;  // written from registers
  KernelAccount a;
  a.kernel({{4 * e.N, kF32}}, {{3 * e.N, kF32}, {copies, t}}, 14 * e.N);
  return a;
}

using AccountOf = KernelAccount (*)(const Extents&, DType);

struct Entry {
  const char *kernel, *variant;
  AccountOf account;
};

constexpr Entry kEntries[] = {
    {"softmax", "naive", naive_softmax},
    {"softmax", "online", online_softmax},
    {"softmax", "fused", fused_softmax},
    {"gelu", "naive", naive_gelu},
    {"gelu", "fused", fused_gelu},
    {"weighted_sum", "naive", naive_weighted_sum},
    {"weighted_sum", "fused", fused_weighted_sum},
    {"rmsnorm_fwd", "naive", naive_rms_norm},
    {"rmsnorm_fwd", "fused", fused_rms_norm},
    {"add_rmsnorm_fwd", "naive", naive_add_rms_norm},
    {"add_rmsnorm_fwd", "fused", fused_add_rms_norm},
    {"layernorm_fwd", "naive", naive_layer_norm},
    {"layernorm_fwd", "fused", fused_layer_norm},
    {"swiglu_fwd", "naive", naive_swiglu},
    {"swiglu_fwd", "fused", fused_swiglu},
    {"cross_entropy_fwd_bwd", "naive", naive_cross_entropy},
    {"cross_entropy_fwd_bwd", "fused", fused_cross_entropy},
    {"cross_entropy_in_place", "naive", naive_cross_entropy},
    {"cross_entropy_in_place", "fused", in_place_cross_entropy},
    {"adamw", "naive", naive_adamw},
    {"adamw", "fused", fused_adamw},
};

}  // namespace

void KernelAccount::kernel(std::initializer_list<Elements> read,
                           std::initializer_list<Elements> written, int64_t operations) {
  for (const Elements& e : read) {
    reads += e.count;
    bytes += bytes_of(e.dtype, e.count);
  }
  for (const Elements& e : written) {
    writes += e.count;
    bytes += bytes_of(e.dtype, e.count);
    written_bytes += bytes_of(e.dtype, e.count);
  }
  flops += operations;
}

double KernelAccount::intensity() const {
  return bytes > 0 ? static_cast<double>(flops) / static_cast<double>(bytes) : 0.0;
}

std::optional<KernelAccount> account_of(const std::string& kernel, const std::string& variant,
                                        const std::vector<int64_t>& shape, DType dtype) {
  if (kernel == "rope_fwd") {
    const RopeExtents extents(shape);
    if (variant == "naive") return naive_rope(extents, dtype);
    if (variant == "fused") return fused_rope(extents, dtype);
    return {};
  }
  for (const Entry& entry : kEntries) {
    if (kernel == entry.kernel && variant == entry.variant) {
      return entry.account(Extents(shape), dtype);
    }
  }
  return {};
}

KernelAccount matmul_account(int64_t n, DType dtype) {
  KernelAccount a;
  a.kernel({{2 * n * n, dtype}}, {{n * n, dtype}}, 2 * n * n * n);
  return a;
}

}  // namespace quern
