// The choice of `quern tune`: work of known length in place of products. Every configuration that
// it may choose multiplies correctly.
#include "kernels/cuda/gemm/gemm_tuning.h"

#include <cmath>
#include <map>
#include <memory>

#include "gpu/compare.h"
#include "kernels/cuda/gemm/gemm_handle.h"
#include "kernels/cuda/gemm/gemm_proposals.h"
#include "kernels/gemm.h"
#include "support/cpu_gemm.h"

namespace quern::test {
namespace {

using kernels::Gemm;
using kernels::GemmAlgorithm;
using kernels::GemmMeasurement;

class GemmTuningGpu : public GpuTest {
 protected:
  static GemmAlgorithm algorithm(uint64_t name) { return {name, 0, 0, 0, 0, 0, 0, 0}; }

  // Algorithm i clears `bytes` passes[i] times; one with 0 passes is rejected.
  GemmMeasurement choose(int64_t bytes, const std::map<uint64_t, int>& passes,
                         const std::vector<uint64_t>& names, const GemmAlgorithm* before) {
    DeviceBuffer<uint8_t> memory(bytes);
    const kernels::cuda::GemmTrial trial{[&](const GemmAlgorithm& a) {
                                           const int count = passes.at(a[0]);
                                           for (int i = 0; i < count; ++i)
                                             cuda::set_zero(memory.get(), bytes, {});
                                           return count > 0;
                                         },
                                         [] {}};
    std::vector<GemmAlgorithm> candidates;
    for (const uint64_t name : names) candidates.push_back(algorithm(name));
    return kernels::cuda::find_fastest(candidates, before, trial, {});
  }
};

TEST_F(GemmTuningGpu, LongWorkIsDecidedUnderLoad) {
  const GemmAlgorithm before = algorithm(9);
  const GemmMeasurement m =
      choose(int64_t{64} << 20, {{1, 30}, {2, 20}, {3, 0}, {4, 10}, {5, 90}, {9, 25}},
             {1, 2, 3, 4, 5}, &before);
  EXPECT_TRUE(m.sustained);
  EXPECT_EQ(m.candidates, 5);
  EXPECT_EQ(m.chosen, algorithm(4));
  EXPECT_LT(m.chosen_us, m.before_us);
  EXPECT_LT(m.before_us, m.favourite_us);
  EXPECT_NEAR(m.favourite_us / m.chosen_us, 3.0, 0.6);  // as the passes, launching aside
}

TEST_F(GemmTuningGpu, ShortWorkIsDecidedAlone) {
  const GemmMeasurement m = choose(1 << 20, {{1, 4}, {2, 2}, {3, 8}}, {1, 2, 3}, nullptr);
  EXPECT_FALSE(m.sustained);
  EXPECT_EQ(m.chosen, algorithm(2));
  EXPECT_EQ(m.before_us, 0.0);
  EXPECT_LT(m.chosen_us, m.favourite_us);
}

TEST_F(GemmTuningGpu, ARefusedFavouriteIsReplacedAndNothingAtAllIsAnError) {
  EXPECT_EQ(choose(1 << 20, {{1, 0}, {2, 2}}, {1, 2}, nullptr).chosen, algorithm(2));
  EXPECT_THROW(choose(1 << 20, {{1, 0}, {2, 0}}, {1, 2}, nullptr), Error);
}

TEST_F(GemmTuningGpu, TheAlgorithmInUseStaysWhenItIsTheBest) {
  const GemmAlgorithm before = algorithm(9);
  EXPECT_EQ(choose(1 << 20, {{1, 6}, {2, 4}, {9, 2}}, {1, 2}, &before).chosen, before);
}

TEST_F(GemmTuningGpu, EveryConfigurationMultipliesRight) {
  DeviceBuffer<uint8_t> workspace(int64_t{32} << 20);
  kernels::GemmResources resources;
  resources.handle = kernels::cuda::create_gemm_handle();
  resources.workspace = workspace.get();
  resources.workspace_bytes = workspace.size();
  int64_t tried = 0;
  for (const auto& [m, n, k] : {std::array{33, 24, 17}, {257, 132, 68}}) {
    for (const int transposes : {0, 1, 2, 3}) {
      const std::unique_ptr<kernels::GemmAlgorithms> table(kernels::cuda::create_gemm_algorithms());
      resources.algorithms = table.get();
      Gemm g;
      g.m = m, g.n = n, g.k = k, g.batch = transposes == 2 ? 3 : 1;
      g.stride_a = g.m * g.k, g.stride_b = g.n * g.k, g.stride_d = g.m * g.n;
      g.transpose_a = (transposes & 1) != 0, g.transpose_b = (transposes & 2) != 0;
      const auto a = random_values<float>(g.batch * g.stride_a, 1, -1.0, 1.0);
      const auto b = random_values<float>(g.batch * g.stride_b, 2, -1.0, 1.0);
      std::vector<float> expected(static_cast<size_t>(g.batch * g.stride_d));
      testing_support::cpu_gemm(expected.data(), a.data(), b.data(), g);
      DeviceBuffer<float> device_a(a), device_b(b), d(g.batch * g.stride_d);
      const auto multiply = [&] {
        d.poison();
        kernels::cuda::gemm(d.get(), device_a.get(), device_b.get(), g, resources, {});
        // k products below 1 in another order, as in gemm_test.cpp.
        expect_close(d.download(), expected, 0x1p-23, std::max(8, k) * 0x1p-23);
        d.expect_guards_intact();
      };
      multiply();
      const kernels::GemmProblem problem = table->entries().begin()->first;
      const auto handle = static_cast<cublasLtHandle_t>(resources.handle);
      for (const GemmAlgorithm& one : kernels::cuda::gemm_configurations(handle, problem)) {
        table->insert(problem, one);
        SCOPED_TRACE(cat(m, " x ", n, " x ", k, ", transposes ", transposes));
        multiply();
        if (HasFailure()) return;
        ++tried;
      }
    }
  }
  EXPECT_GT(tried, 100);
  kernels::cuda::destroy_gemm_handle(resources.handle);
}

}  // namespace
}  // namespace quern::test
