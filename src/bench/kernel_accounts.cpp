// A table of kernels and variants, a line a launch: reads, writes, FLOPs. The naive variants follow
// the compositions in autograd/ops/naive.cpp, kernel_cases.cpp and optim/adamw_naive.cpp; views
// (split, reshape, permute) cost nothing there. Fused kernels keep a row on the chip.
#include "bench/kernel_accounts.h"

#include "base/error.h"
#include "bench/kernel_cases.h"

namespace quern {

namespace {

struct Launch {
  std::vector<Elements> read, written;
  int64_t flops = 0;
};

struct Entry {
  const char *kernel, *variant;
  std::vector<Launch> launches;
};
using Entries = std::vector<Entry>;

// N rows of M elements in the case's dtype. x: all elements; column: one a row; row: one a column.
// Names with 32 are the same in FP32.
struct Operands {
  Operands(const std::vector<int64_t>& shape, DType dtype)
      : N(shape.at(0)), M(shape.size() > 1 ? shape[1] : 1), x{NM, dtype} {}

  // Conversion of x to FP32 and back; no kernel when x is FP32.
  Launch widen() const { return x.dtype == DType::f32 ? Launch{} : Launch{{x}, {x32}}; }
  Launch narrow() const { return x.dtype == DType::f32 ? Launch{} : Launch{{x32}, {x}}; }

  int64_t N, M, NM = N * M;
  Elements x, column{N, x.dtype}, row{M, x.dtype};
  Elements x32{NM, DType::f32}, column32{N, DType::f32}, row32{M, DType::f32};
};

Elements times(int64_t count, Elements of) {
  return {count * of.count, of.dtype};
}

// naive softmax reads NM + (NM + N) + NM + NM + (NM + N) = 5 NM + 2 N and writes N + NM + NM + N +
// NM = 3 NM + 2 N. The max op also writes N indices; softmax does not need them, so they are left
// out.
// online: one pass keeps each row's maximum m and sum s on the chip, a second pass writes. Per
// element, max and s = s exp(m - m') + exp(x - m') cost 7; exp(x - m) / s costs 3.
// The other variants have one launch per op of the formula.
Entries pointwise(const Operands& o) {
  const auto& [N, M, NM, x, column, row, x32, column32, row32] = o;
  return {{"softmax",
           "naive",
           {{{x}, {column}, NM},       // m = max(x)
            {{x, column}, {x}, NM},    // x - m
            {{x}, {x}, NM},            // exp
            {{x}, {column}, NM},       // s = sum
            {{x, column}, {x}, NM}}},  // / s
          {"softmax", "online", {{{times(2, x)}, {x}, 10 * NM}}},
          {"softmax", "fused", {{{x}, {x}, 5 * NM}}},  // max, -, exp, +, times 1 / s
          {"gelu",
           "naive",
           {{{x, x}, {x}, NM},    // x x
            {{x, x}, {x}, NM},    // x^2 x
            {{x}, {x}, 2 * NM},   // 0.044715 x^3: scale is a factor and an offset
            {{x, x}, {x}, NM},    // x +
            {{x}, {x}, 2 * NM},   // sqrt(2 / pi) times
            {{x}, {x}, NM},       // tanh
            {{x}, {x}, 2 * NM},   // 0.5 x
            {{x}, {x}, 2 * NM},   // 1 + tanh
            {{x, x}, {x}, NM}}},  // their product
          // x x x 0.044715, x +, times sqrt(2 / pi), tanh, 1 +, times x times 0.5
          {"gelu", "fused", {{{x}, {x}, 9 * NM}}},
          {"weighted_sum",
           "naive",
           {{{x, row}, {x}, NM},    // x w
            {{x}, {column}, NM}}},  // sum
          {"weighted_sum", "fused", {{{x, row}, {column}, 2 * NM}}}};
}

// The fused kernels also write rstd, and LayerNorm its mean, for the backward.
Entries norms(const Operands& o) {
  const auto& [N, M, NM, x, column, row, x32, column32, row32] = o;
  const Launch squares{{x32}, {column32}, 2 * NM};   // sum of squares
  const Launch mean{{column32}, {column32}, 2 * N};  // / C + eps
  const Launch rstd{{column32}, {column32}, N};      // ^-0.5
  const Launch scaled{{x32, column32}, {x32}, NM};   // times rstd
  const Launch weighted{{x32, row32}, {x32}, NM};    // times w; plus b
  const Launch centred{{x32, column32}, {x32}, NM};  // x - mean
  const Launch means{{x32}, {column32}, NM + N};     // mean
  const Launch sum{{x, x}, {x}, NM};                 // the stream plus the branch
  const Launch widen = o.widen(), narrow = o.narrow();
  return {{"rmsnorm_fwd", "naive", {widen, squares, mean, rstd, scaled, weighted, narrow}},
          {"rmsnorm_fwd", "fused", {{{x, row32}, {x, column32}, 4 * NM + 3 * N}}},
          {"add_rmsnorm_fwd", "naive", {sum, widen, squares, mean, rstd, scaled, weighted, narrow}},
          {"add_rmsnorm_fwd",
           "fused",
           {{{times(2, x), row32}, {times(2, x), column32}, 5 * NM + 3 * N}}},
          {"layernorm_fwd",
           "naive",
           {widen, means, centred, squares, mean, rstd, scaled, weighted, weighted, narrow}},
          {"layernorm_fwd",
           "fused",
           {{{x, times(2, row32)}, {x, times(2, column32)}, 7 * NM + 4 * N}}}};
}

// n elements of x (B, H, T, D), and tables of cos and sin with T D / 2 elements each.
Entries rope(const std::vector<int64_t>& shape, DType dtype) {
  const int64_t n = shape.at(0) * shape.at(1) * shape.at(2) * shape.at(3);
  const Operands o({n}, dtype);
  const Elements x = o.x32, table{shape[2] * shape[3] / 2, DType::f32}, both = times(2, table);
  return {{"rope_fwd",
           "naive",
           {{{table}, {table}, both.count},  // -sin, a scale
            {{both}, {both}},                // (-sin, sin)
            o.widen(),
            {{x}, {x}},            // (x2, x1)
            {{x, table}, {x}, n},  // x cos
            {{x, both}, {x}, n},   // (x2, x1) (-sin, sin)
            {{x, x}, {x}, n},      // their sum
            o.narrow()}},
          {"rope_fwd", "fused", {{{o.x, both}, {o.x}, 3 * n}}}};
}

// swiglu: M is 2 F, gate beside up; silu(x) = x / (1 + exp(-x)) costs 4.
// quantize: magnitude and maximum, then times the scale's inverse; both FP8 copies.
// cross-entropy: forward and backward over N x V logits. Tensors of N elements (targets, losses,
// logsumexp) are left out, since V is tens of thousands. Forward: max, -, exp, +. Backward: (exp(x
// - lse) - 1 at the target) / N. In place: one pass reads the logits and overwrites them.
// adamw: under dtype bf16 the weights lie in two parts, which the naive ones join before and split
// after. With BF16 moments, the integer operations of their rounding are left out.
Entries training(const Operands& o) {
  const auto& [N, M, NM, x, column, row, x32, column32, row32] = o;
  const bool split = x.dtype != DType::f32;
  const Elements half{NM / 2, x.dtype}, bytes{NM, DType::u8}, weights = split ? times(2, x) : x32;
  const std::vector<Launch> naive_cross_entropy{
      o.widen(),
      {{x32}, {x32}, 5 * NM},       // log_softmax: max, -, exp, +, -
      {{}, {x32}},                  // backward of the gather: zeros except at the targets
      {{x32, x32}, {x32}, 4 * NM},  // backward of log_softmax: +, dy - exp(y) sum
      o.narrow()};
  std::vector<Launch> naive_adamw{{{x32, x32}, {x32}, 3 * N},   // m = beta1 m + (1 - beta1) g
                                  {{x32, x32}, {x32}, 4 * N},   // v, with g^2
                                  {{x32}, {x32}, N},            // sqrt(v)
                                  {{x32}, {x32}, 2 * N},        // corrected, plus eps
                                  {{x32, x32}, {x32}, N},       // m / that
                                  {{x32, x32}, {x32}, 3 * N}};  // p = (1 - lr decay) p - lr that
  if (split) {
    naive_adamw.insert(naive_adamw.begin(), {{weights}, {x32}});
    naive_adamw.push_back({{x32}, {weights}});
  }
  std::vector<Launch> naive_bf16_moments{o.widen(), o.widen()};
  naive_bf16_moments.insert(naive_bf16_moments.end(), naive_adamw.begin(), naive_adamw.end());
  naive_bf16_moments.push_back({{times(2, x32)}, {times(2, x)}});  // rounded
  return {{"swiglu_fwd",
           "naive",
           {{{half}, {half}, 4 * half.count},      // silu(gate)
            {{half, half}, {half}, half.count}}},  // times up
          {"swiglu_fwd", "fused", {{{x}, {half}, 5 * half.count}}},
          {"quantize", "fused", {{{x}, {times(2, bytes)}, 3 * NM}}},
          {"quantize_swiglu_bwd", "fused", {{{x, half}, {times(2, bytes)}, 9 * NM}}},
          {"cross_entropy_fwd_bwd", "naive", naive_cross_entropy},
          {"cross_entropy_fwd_bwd", "fused", {{{x}, {}, 4 * NM}, {{x}, {x}, 3 * NM}}},
          {"cross_entropy_in_place", "naive", naive_cross_entropy},
          {"cross_entropy_in_place", "fused", {{{x}, {x}, 7 * NM}}},
          {"adamw", "naive", naive_adamw},
          {"adamw", "fused", {{{weights, times(3, x32)}, {weights, times(2, x32)}, 14 * N}}},
          {"adamw_bf16_moments", "naive", naive_bf16_moments},
          {"adamw_bf16_moments",
           "fused",
           {{{weights, x32, times(2, x)}, {weights, times(2, x)}, 14 * N}}}};
}

KernelAccount sum_of(const std::vector<Launch>& launches) {
  KernelAccount account;
  for (const auto& [read, written, flops] : launches) {
    for (const Elements& e : read) {
      account.reads += e.count;
      account.bytes += bytes_of(e.dtype, e.count);
    }
    for (const Elements& e : written) {
      account.writes += e.count;
      account.written_bytes += bytes_of(e.dtype, e.count);
    }
    account.flops += flops;
  }
  account.bytes += account.written_bytes;
  return account;
}

}  // namespace

double KernelAccount::intensity() const {
  return bytes > 0 ? static_cast<double>(flops) / static_cast<double>(bytes) : 0.0;
}

std::optional<KernelAccount> account_of(const std::string& kernel, const std::string& variant,
                                        const std::vector<int64_t>& shape, DType dtype) {
  const Operands operands(shape, dtype);
  Entries entries = kernel == "rope_fwd" ? rope(shape, dtype) : pointwise(operands);
  for (const Entries& more : {norms(operands), training(operands)}) {
    entries.insert(entries.end(), more.begin(), more.end());
  }
  for (const Entry& entry : entries) {
    if (kernel == entry.kernel && variant == entry.variant) return sum_of(entry.launches);
  }
  return {};
}

KernelAccount matmul_account(int64_t n, DType dtype) {
  const Elements square{n * n, dtype};
  return sum_of({{{times(2, square)}, {square}, 2 * n * n * n}});
}

}  // namespace quern
