// The accounts against the published formulas, and against each other.
#include <gtest/gtest.h>

#include "bench/kernel_accounts.h"
#include "bench/kernel_cases.h"
#include "tensor/allocator.h"
#include "tensor/context.h"

namespace quern {
namespace {

KernelAccount account(const std::string& kernel, const std::string& variant,
                      const std::vector<int64_t>& shape, DType dtype) {
  const auto found = account_of(kernel, variant, shape, dtype);
  EXPECT_TRUE(found) << kernel << " " << variant;
  return found.value_or(KernelAccount{});
}

// Triton's fused softmax tutorial gives the same count: 5 NM + 2 N read, 3 NM + 2 N written.
TEST(KernelAccounts, NaiveSoftmaxIsFiveKernels) {
  for (const int64_t N : {1, 7, 16384}) {
    for (const int64_t M : {1, 781, 5000}) {
      const KernelAccount a = account("softmax", "naive", {N, M}, DType::f32);
      EXPECT_EQ(a.reads, 5 * N * M + 2 * N);
      EXPECT_EQ(a.writes, 3 * N * M + 2 * N);
      EXPECT_EQ(a.bytes, 4 * (8 * N * M + 4 * N));
      EXPECT_EQ(a.flops, 5 * N * M);
    }
  }
}

TEST(KernelAccounts, OnlineReadsTwiceAndFusedOnce) {
  const int64_t N = 12, M = 100;
  const KernelAccount online = account("softmax", "online", {N, M}, DType::bf16);
  const KernelAccount fused = account("softmax", "fused", {N, M}, DType::bf16);
  EXPECT_EQ(online.reads, 2 * N * M);
  EXPECT_EQ(online.writes, N * M);
  EXPECT_EQ(fused.reads, N * M);
  EXPECT_EQ(fused.writes, N * M);
  EXPECT_EQ(fused.bytes, 2 * 2 * N * M);
  EXPECT_DOUBLE_EQ(fused.intensity(), 5.0 / 4.0);
}

// One example of each kernel, counted by hand from the naive twin's source.
TEST(KernelAccounts, NaiveTwinsAreTheSumOfTheirKernels) {
  const int64_t N = 3, M = 10, n = N * M;
  const KernelAccount gelu = account("gelu", "naive", {N, M}, DType::f32);
  EXPECT_EQ(gelu.reads, 13 * n);
  EXPECT_EQ(gelu.writes, 9 * n);
  const KernelAccount weighted = account("weighted_sum", "naive", {N, M}, DType::f32);
  EXPECT_EQ(weighted.reads, 2 * n + M);
  EXPECT_EQ(weighted.writes, n + N);
  const KernelAccount norm = account("rmsnorm_fwd", "naive", {N, M}, DType::bf16);
  EXPECT_EQ(norm.reads, 5 * n + 3 * N + M);
  EXPECT_EQ(norm.writes, 4 * n + 3 * N);
  // In BF16 the first cast reads and the last writes 2 bytes; the rest is FP32.
  EXPECT_EQ(norm.bytes, 4 * (9 * n + 6 * N + M) - 2 * 2 * n);
  const KernelAccount layer = account("layernorm_fwd", "naive", {N, M}, DType::bf16);
  EXPECT_EQ(layer.reads, 8 * n + 4 * N + 2 * M);
  EXPECT_EQ(layer.writes, 6 * n + 4 * N);
  const KernelAccount gated = account("swiglu_fwd", "naive", {N, M}, DType::bf16);
  EXPECT_EQ(gated.reads, 3 * n / 2);
  EXPECT_EQ(gated.writes, 2 * n / 2);
  const KernelAccount adamw = account("adamw", "naive", {n}, DType::f32);
  EXPECT_EQ(adamw.reads, 10 * n);
  EXPECT_EQ(adamw.writes, 6 * n);
}

TEST(KernelAccounts, RopeCountsItsTables) {
  const int64_t B = 2, H = 3, T = 5, D = 8, n = B * H * T * D;
  const KernelAccount naive = account("rope_fwd", "naive", {B, H, T, D}, DType::bf16);
  EXPECT_EQ(naive.reads, 7 * n + 3 * T * D);
  EXPECT_EQ(naive.writes, 6 * n + 3 * T * D / 2);
  const KernelAccount fused = account("rope_fwd", "fused", {B, H, T, D}, DType::bf16);
  EXPECT_EQ(fused.reads, n + T * D);
  EXPECT_EQ(fused.writes, n);
}

// The BF16 casts are kernels that FP32 lacks.
TEST(KernelAccounts, NoCastInFp32) {
  const KernelAccount f32 = account("rmsnorm_fwd", "naive", {4, 8}, DType::f32);
  const KernelAccount bf16 = account("rmsnorm_fwd", "naive", {4, 8}, DType::bf16);
  EXPECT_EQ(bf16.reads - f32.reads, 2 * 32);
  EXPECT_EQ(bf16.writes - f32.writes, 2 * 32);
}

TEST(KernelAccounts, AdamwMovesItsTwentyEightBytes) {
  EXPECT_EQ(account("adamw", "fused", {1000}, DType::f32).bytes, 28 * 1000);
  EXPECT_EQ(account("adamw", "fused", {1000}, DType::bf16).bytes, 28 * 1000);
  EXPECT_EQ(account("adamw_bf16_moments", "fused", {1000}, DType::bf16).bytes, 20 * 1000);
}

// The listed kernels, each with both accounts. A fused kernel moves at least the minimum traffic,
// and less than its naive twin.
TEST(KernelAccounts, EveryListedKernelHasBoth) {
  for (const char* name : {"softmax", "gelu", "weighted_sum", "rmsnorm_fwd", "layernorm_fwd",
                           "rope_fwd", "swiglu_fwd", "cross_entropy_fwd_bwd", "adamw"}) {
    bool found = false;
    for (const KernelFamily& family : kernel_families()) {
      if (std::string(name) != family.name) continue;
      found = true;
      for (const KernelCase& one : family.cases(64)) {
        const KernelAccount fused = account(name, "fused", one.shape, one.dtype);
        const KernelAccount naive = account(name, "naive", one.shape, one.dtype);
        EXPECT_GE(fused.bytes, one.bytes) << name;
        EXPECT_GT(naive.bytes, fused.bytes) << name;
        EXPECT_GE(naive.flops, fused.flops) << name;
        EXPECT_GT(fused.flops, 0) << name;
      }
    }
    EXPECT_TRUE(found) << name;
  }
}

class AllocatedBytes : public AllocationObserver {
 public:
  void on_allocate(const Allocation& allocation) override { bytes += allocation.bytes; }
  void on_release(const Allocation&) override {}
  int64_t bytes = 0;
};

// Each small op of a naive twin allocates its output. So the account of the writes is compared with
// the code: an added or missing launch shows. Softmax's max also writes N indices.
TEST(KernelAccounts, NaiveWritesAreTheOpsOutputs) {
  const Context& context = Context::current();
  Allocator& allocator = *context.allocator();
  for (const KernelFamily& family : kernel_families()) {
    const std::string name = family.name;
    const bool in_place_or_backward =
        name.starts_with("adamw") || name.starts_with("cross_entropy");
    for (const KernelCase& one : family.cases(8)) {
      const auto expected = account_of(name, "naive", one.shape, one.dtype);
      if (!expected || in_place_or_backward) continue;
      const KernelWork work = one.variants[0].make();
      AllocatedBytes allocated;
      allocator.set_observer(&allocated);
      work.run();
      allocator.set_observer(nullptr);
      const int64_t indices = name == "softmax" ? 8 * one.shape[0] : 0;
      EXPECT_EQ(allocated.bytes - indices, expected->written_bytes) << name << " " << one.dtype;
    }
  }
}

TEST(KernelAccounts, NoneForWhatIsNotCounted) {
  EXPECT_FALSE(account_of("global_norm", "fused", {100}, DType::f32));
  EXPECT_FALSE(account_of("gelu", "online", {100, 2}, DType::f32));
}

// docs/benchmarking.md and kernel_accounts.h list them.
TEST(KernelAccounts, TheUncountedKernels) {
  std::string uncounted;
  for (const KernelFamily& family : kernel_families()) {
    const KernelCase one = family.cases(8)[0];
    std::string variants;
    for (const KernelVariant& variant : one.variants) {
      if (!account_of(family.name, variant.name, one.shape, one.dtype)) {
        variants += " " + variant.name;
      }
    }
    if (!variants.empty()) uncounted += family.name + variants + "\n";
  }
  EXPECT_EQ(uncounted,
            "dropout naive fused\n"
            "rmsnorm_bwd naive fused\n"
            "layernorm_bwd naive fused\n"
            "add_layernorm_fwd naive fused\n"
            "swiglu_bwd naive fused\n"
            "quantize naive\n"
            "quantize_swiglu_bwd naive\n"
            "embedding_bwd naive fused\n"
            "global_norm naive fused\n");
}

TEST(KernelAccounts, AMatrixProduct) {
  const KernelAccount a = matmul_account(10, DType::bf16);
  EXPECT_EQ(a.flops, 2000);
  EXPECT_EQ(a.bytes, 2 * 300);
}

}  // namespace
}  // namespace quern
