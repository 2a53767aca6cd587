// Work on part of a GPU, as a green context gives it: grids whose blocks wait for each other
// are sized for the part.
#include <cudaTypedefs.h>

#include "gpu/reference.h"
#include "kernels/cuda/primitives/driver_function.h"
#include "kernels/cuda/primitives/launch_hopper.cuh"
#include "kernels/decode_token.h"

namespace quern::kernels::cuda {
namespace {

using test::DeviceBuffer;
using test::random_values;

constexpr unsigned kPart = 16;  // multiprocessors: what compute capability 9.0 can split off

// A stream of a green context with kPart multiprocessors or a few more.
class PartitionGpu : public test::GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(cudaFree(nullptr), cudaSuccess);  // the primary context
    const auto get_all =
        driver_function<PFN_cuDeviceGetDevResource_v12040>("cuDeviceGetDevResource", 12040);
    const auto split = driver_function<PFN_cuDevSmResourceSplitByCount_v12040>(
        "cuDevSmResourceSplitByCount", 12040);
    const auto describe =
        driver_function<PFN_cuDevResourceGenerateDesc_v12040>("cuDevResourceGenerateDesc", 12040);
    const auto create = driver_function<PFN_cuGreenCtxCreate_v12040>("cuGreenCtxCreate", 12040);
    const auto make_stream =
        driver_function<PFN_cuGreenCtxStreamCreate_v12050>("cuGreenCtxStreamCreate", 12050);
    if (!get_all || !split || !describe || !create || !make_stream) {
      GTEST_SKIP() << "the driver has no green contexts";
    }
    CUdevResource all{}, part{}, rest{};
    ASSERT_EQ(get_all(0, &all, CU_DEV_RESOURCE_TYPE_SM), CUDA_SUCCESS);
    unsigned groups = 1;
    if (all.sm.smCount < 2 * kPart) GTEST_SKIP() << "a GPU of " << all.sm.smCount;
    ASSERT_EQ(split(&part, &groups, &all, &rest, 0, kPart), CUDA_SUCCESS);
    CUdevResourceDesc description = nullptr;
    ASSERT_EQ(describe(&description, &part, 1), CUDA_SUCCESS);
    ASSERT_EQ(create(&green_, description, 0, CU_GREEN_CTX_DEFAULT_STREAM), CUDA_SUCCESS);
    CUstream handle = nullptr;
    ASSERT_EQ(make_stream(&handle, green_, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
    stream_.handle = handle;
    granted_ = static_cast<int>(part.sm.smCount);
  }
  void TearDown() override {
    if (stream_.handle) cudaStreamDestroy(static_cast<cudaStream_t>(stream_.handle));
    const auto destroy = driver_function<PFN_cuGreenCtxDestroy_v12040>("cuGreenCtxDestroy", 12040);
    if (green_ && destroy) destroy(green_);
  }

  CUgreenCtx green_ = nullptr;
  Stream stream_;  // of the green context
  int granted_ = 0;
};

// Ends when every block has begun. The tests give it all shared memory of a multiprocessor.
__global__ void meet_kernel(unsigned* arrived) {
  if (threadIdx.x != 0) return;
  atomicAdd(arrived, 1u);
  while (atomicAdd(arrived, 0u) < gridDim.x) {
  }
}

TEST_F(PartitionGpu, AGridIsResidentOnItsPartAlone) {
  const Stream whole{};
  const int all = device_traits().multiprocessors, shared = device_traits().shared_bytes_per_block;
  EXPECT_EQ(multiprocessors_of(whole), all);
  EXPECT_EQ(multiprocessors_of(stream_), granted_);
  ASSERT_LT(granted_, all);
  const void* const kernel = reinterpret_cast<const void*>(meet_kernel);
  EXPECT_TRUE(grid_is_resident(kernel, all, 32, shared, whole));
  EXPECT_FALSE(grid_is_resident(kernel, all, 32, shared, stream_));
  EXPECT_TRUE(grid_is_resident(kernel, granted_, 32, shared, stream_));
  EXPECT_FALSE(grid_is_resident(kernel, granted_ + 1, 32, shared, stream_));
  LaunchOptions options;
  options.resident = true;
  DeviceBuffer<unsigned> arrived(std::vector<unsigned>{0});
  launch(options, meet_kernel, one_block_each(granted_), dim3(32), static_cast<size_t>(shared),
         stream_, arrived.get());
  EXPECT_EQ(arrived.download()[0], static_cast<unsigned>(granted_));
}

// A model of one block.
struct TinyToken {
  static constexpr int64_t C = 256, H = 4, Hk = 2, D = 64, F = 512, V = 384, kCapacity = 8;
  static constexpr int64_t kHeads = (H + 2 * Hk) * D;

  static std::vector<bfloat16> weights(int64_t n, unsigned seed) {
    return random_values<bfloat16>(n, seed, -0.1, 0.1);
  }
  DeviceBuffer<bfloat16> embedding{weights(V * C, 1)}, head{weights(V * C, 2)};
  DeviceBuffer<bfloat16> qkv{weights(kHeads * C, 3)}, output{weights(C * H * D, 4)};
  DeviceBuffer<bfloat16> gate_up{weights(2 * F * C, 5)}, down{weights(C * F, 6)};
  DeviceBuffer<float> norm{random_values<float>(C, 7, 0.5, 1.5)};
  DeviceBuffer<float> angles{random_values<float>(kCapacity * D / 2, 8)};
  DeviceBuffer<bfloat16> k_cache{weights(kCapacity * Hk * D, 9)};
  DeviceBuffer<bfloat16> v_cache{weights(kCapacity * Hk * D, 10)};
  DeviceBuffer<int32_t> tokens{std::vector<int32_t>{17}};
  DeviceBuffer<bfloat16> logits{V};
  DeviceBuffer<DecodeRow> rows{[] {
    DecodeRow row;
    row.length = 5;
    row.active = 1;
    return std::vector<DecodeRow>{row};
  }()};

  std::vector<bfloat16> run(Stream stream) {
    DecodeBlock block;
    block.attention_norm = block.mlp_norm = norm.get();
    block.qkv = qkv.get();
    block.k_cache = k_cache.get();
    block.v_cache = v_cache.get();
    block.output = output.get();
    block.gate_up = gate_up.get();
    block.down = down.get();
    DeviceBuffer<DecodeBlock> blocks(std::vector<DecodeBlock>{block});
    DecodeToken token = sizes();
    token.rows = rows.get();
    token.tokens = tokens.get();
    token.embedding = embedding.get();
    token.blocks = blocks.get();
    token.norm = norm.get();
    token.head = head.get();
    token.cos = token.sin = angles.get();
    token.logits = logits.get();
    const int64_t bytes = decode_token_exchange(token, stream);
    DeviceBuffer<uint8_t> exchange(std::vector<uint8_t>(static_cast<size_t>(bytes), 0));
    token.exchange = exchange.get();
    logits.poison();
    decode_token(token, stream);
    return logits.download();
  }
  static DecodeToken sizes() {
    DecodeToken token{1, 1, C, H, Hk, D, F, V, kCapacity};
    token.eps = 1e-5;
    return token;
  }
};

// The division of the sums over blocks does not show in the bits.
TEST_F(PartitionGpu, ATokenHasTheBitsOfTheWholeDevice) {
  if (!decode_token_fits(TinyToken::sizes(), Stream{})) GTEST_SKIP() << "no code for this GPU";
  ASSERT_TRUE(decode_token_fits(TinyToken::sizes(), stream_));
  TinyToken tiny;
  const std::vector<bfloat16> expected = tiny.run({}), found = tiny.run(stream_);
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(found[i].bits, expected[i].bits) << "logit " << i;
  }
}

}  // namespace
}  // namespace quern::kernels::cuda
