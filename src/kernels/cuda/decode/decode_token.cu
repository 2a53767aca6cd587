// A token through the whole model in one kernel, embedding to logits (B, V). Every multiprocessor
// has one block with its own rows of every weight (decode_weights.cuh). Blocks exchange values as
// words with a tag (decode_exchange.cuh). No block waits for a barrier of all: it waits for the
// values that it needs while its next weights arrive. Bound by reading the weights once. A step of
// the model adds the way of a value through L2, a norm, and the sums of a few rows.
//
// The next layer or call overwrites a layer's words. No block still polls for the old ones, as
// these dependencies show. L: the layer. A block sends its part of a product after it has received
// all of the product's x.
// - qkv: written once the stream behind L is there. Every block has some of the rows of gate and
//   up. So each sent part of `hidden` of L, from which that stream was made, after its attention
//   of L, which alone reads qkv.
// - states: written once q of L + 1 is there, which was made from all of the stream behind L.
// - attended: read by blocks that then send part of `middle` of L. Every block receives all of
//   that before its attention of L + 1. (Zeros of inactive rows are sent without a wait.)
// - middle: written once `attended` of L + 1 of any active row is there: so one must be active.
// - hidden: read by blocks that then send part of the stream behind L.
// - stream: read by a block before its gate and up of L + 1.
#include "kernels/decode_token.h"

#include "base/error.h"
#include "kernels/cuda/decode/decode_token_attention.cuh"
#include "kernels/cuda/decode/decode_token_products.cuh"
#include "kernels/cuda/decode/decode_token_rows.cuh"
#include "kernels/cuda/primitives/instructions.cuh"
#include "kernels/cuda/primitives/launch_hopper.cuh"

namespace quern::kernels::cuda {

namespace {

struct TokenWork {
  DecodeToken t;
  TokenMemory memory;
  ExchangePlan exchange;
  TokenLinear linears[kTokenProducts];
  int share_count;  // see shares_of_part
};

// Tables that a block reads all the time.
template <int kRows>
struct BlockTables {
  TokenLinear linears[kTokenProducts];
  WarpShare shares[kTokenProducts * kTokenWarps];
  alignas(16) float squares[kRows][kTokenWarps];
};

// A block at work on a token. kRows: the most rows of x. kHeld: groups of 8 elements of a row of
// the stream that a thread holds. TX: the residual stream's type.
template <class TX, int kRows, int kHeld, class Ring>
class TokenBlock {
 public:
  __device__ __forceinline__ TokenBlock(const TokenWork& work, BlockTables<kRows>& tables,
                                        char* memory)
      : t_(work.t),
        plan_(work.exchange),
        tables_(tables),
        blocks_(reinterpret_cast<DecodeBlock*>(memory + work.memory.blocks)),
        shares_(reinterpret_cast<AttentionShare*>(memory + work.memory.shares)),
        sums_(reinterpret_cast<float*>(memory + work.memory.sums)),
        xs_(memory + work.memory.x),
        ring_(memory + work.memory.ring),
        head_(static_cast<ExchangeHead*>(t_.exchange)),
        words_(static_cast<Word*>(t_.exchange) + kHeadWords),
        share_count_(work.share_count) {}

  // Called by all threads: prefetches the embedding and fills the tables in shared memory.
  __device__ __forceinline__ void prepare(const TokenLinear (&linears)[kTokenProducts]) const {
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    constexpr int kLine = 128 / static_cast<int>(sizeof(bfloat16));
    for (int i = thread * kLine; i < rows() * t_.C; i += threads * kLine) {
      const int64_t m = i / t_.C;
      prefetch(t_.embedding + t_.tokens[m] * t_.C + i - m * t_.C);
    }
    constexpr int kBlockWords = static_cast<int>(sizeof(DecodeBlock) / sizeof(uint64_t));
    for (int i = thread; i < t_.layers * kBlockWords; i += threads) {
      reinterpret_cast<unsigned long long*>(blocks_)[i] =
          __ldg(reinterpret_cast<const unsigned long long*>(t_.blocks) + i);
    }
    if (thread < kTokenProducts * kTokenWarps) {
      const int product = thread / kTokenWarps, warp = thread % kTokenWarps;
      const TokenLinear linear = linears[product].of_block(blockIdx.x, gridDim.x);
      if (warp == 0) tables_.linears[product] = linear;
      tables_.shares[thread] = WarpShare(linear, warp, kTokenWarps);
    }
    for (int i = thread; i < share_count_ * kTokenParts; i += threads) {
      const int id = static_cast<int>(blockIdx.x + gridDim.x * i);
      AttentionShare share(id / kHeadParts, id % kHeadParts, static_cast<int>(t_.H),
                           static_cast<int>(t_.Hk), part_heads(t_));
      if (share.b < t_.B) {
        share.position = t_.rows[share.b].active != 0 ? t_.rows[share.b].length : -1;
      } else {
        share.heads = 0;  // there are no more
      }
      shares_[i % kTokenParts * share_count_ + i / kTokenParts] = share;
    }
    ring_.init(threads - 1 - thread);
    __syncthreads();
  }

  // Run by the threads that fetch.
  __device__ __forceinline__ void fetch() const {
    const int warp = (static_cast<int>(threadIdx.x) - kTokenThreads) / kWarpSize;
    stream_weights(ring_, TokenTables{blocks_, tables_.linears, tables_.shares}, t_, warp);
  }

  // Run by the threads that compute. One loop has all products, so that the code of each step
  // exists once. No code in the kernel runs often, and code that drops out of the instruction cache
  // is fetched again for each layer.
  __device__ __forceinline__ void compute() {
    const uint32_t calls = __ldcg(&head_->calls);
    const int layers = static_cast<int>(t_.layers);
    begin_residual();
    for (int number = 0; number <= layers * kLayerProducts; ++number) {
      layer_ = number / kLayerProducts;
      which_ = layer_ == layers ? TokenProduct::head
                                : static_cast<TokenProduct>(number % kLayerProducts);
      tag_ = calls * static_cast<uint32_t>(layers) + static_cast<uint32_t>(layer_) + 1;
      if (which_ == TokenProduct::qkv) prefetch_keys(attention(), first_share());
      if (which_ == TokenProduct::output) attend();
      const TokenLinear& linear = tables_.linears[static_cast<int>(which_)];
      if (linear.units == 0) continue;
      stage(linear, number == 0);
      if (which_ == TokenProduct::head) {
        let_next_start();
        const bool asks = blockIdx.x == 0 && threadIdx.x < t_.B;
        if (asks) prefetch(t_.rows + threadIdx.x);  // the sampler reads these first
      }
      const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
      multiply<kRows>(sums_, ring_, place_, linear,
                      tables_.shares[static_cast<int>(which_) * kTokenWarps + warp], xs_, rows());
      for_each_output(sums_, linear, rows(), [&](int m, int n, float first, float second) {
        pass_on(int64_t{m} * linear.outputs() + n, n, first, second);
      });
    }
    end_call(calls);
  }

 private:
  __device__ __forceinline__ int rows() const { return static_cast<int>(t_.B); }
  __device__ __forceinline__ const DecodeBlock& block() const {
    return blocks_[min(layer_, static_cast<int>(t_.layers) - 1)];
  }
  __device__ __forceinline__ DecodeAttention<bfloat16> attention() const {
    return layer_attention(t_, block());
  }
  __device__ __forceinline__ const AttentionShare& first_share() const {
    return shares_[static_cast<int>(threadIdx.x) / kPartThreads * share_count_];
  }

  // The residual stream's two elements that this thread adds to: those of output threadIdx.x of
  // this block in the products whose results are added.
  __device__ __forceinline__ void begin_residual() {
    const TokenLinear& down = tables_.linears[static_cast<int>(TokenProduct::down)];
    const int unit = static_cast<int>(threadIdx.x) / rows();
    const int m = static_cast<int>(threadIdx.x) % rows();
    if (unit >= down.units) return;
    const bfloat16* const x = t_.embedding + int64_t{t_.tokens[m]} * t_.C + 2 * (down.first + unit);
    residual_[0] = to_float(x[0]);
    residual_[1] = to_float(x[1]);
  }

  __device__ __forceinline__ void attend() const {
    for_attention(t_, [&]<int kHeads, int kLanes>() {
      attend_parts<kHeads, kLanes>(attention(), shares_, share_count_,
                                   reinterpret_cast<float*>(xs_), words_, plan_, tag_);
    });
  }

  // Waits for x of a product and puts it into shared memory.
  __device__ __forceinline__ void stage(const TokenLinear& linear, bool from_embedding) const {
    const bool mlp = which_ == TokenProduct::gate_up || which_ == TokenProduct::down;
    if (which_ == TokenProduct::output || which_ == TokenProduct::down) {
      constexpr int kAtOnce = kHeld == 1 ? 2 : 6;  // rows of d_ff: 4,096 and 12,288 elements
      stage_words<kAtOnce>(xs_, linear, words_ + (mlp ? plan_.hidden : plan_.attended), tag_,
                           rows());
      return;
    }
    // The stream in the middle of this layer, or behind the previous one.
    StreamSource source{t_.embedding, t_.tokens, nullptr, mlp ? tag_ : tag_ - 1};
    if (!from_embedding) source.words = words_ + (mlp ? plan_.middle : plan_.stream);
    const float* const norm = which_ == TokenProduct::head ? t_.norm
                              : mlp                        ? block().mlp_norm
                                                           : block().attention_norm;
    stage_norm<TX, kHeld>(xs_, linear, norm, t_.eps, rows(), tables_.squares, source);
  }

  // Passes on two neighbouring outputs: the first is number `at` of all rows', n of its row's.
  __device__ __forceinline__ void pass_on(int64_t at, int n, float first, float second) {
    switch (which_) {
      case TokenProduct::qkv:
        if (const bfloat16* const bias = block().qkv_bias) {
          first += to_float(bias[n]);
          second += to_float(bias[n + 1]);
        }
        send_elements<bfloat16>(words_ + plan_.qkv, at, first + 0.0f, second + 0.0f, tag_);
        break;
      case TokenProduct::gate_up:
        send_elements<bfloat16>(words_ + plan_.hidden, at, first, second, tag_);
        break;
      case TokenProduct::head:
        t_.logits[at] = from_float<bfloat16>(first + 0.0f);
        if (n + 1 < t_.V) t_.logits[at + 1] = from_float<bfloat16>(second + 0.0f);
        break;
      default: {
        residual_[0] = rounded<TX>(residual_[0] + first);
        residual_[1] = rounded<TX>(residual_[1] + second);
        const int64_t stream = which_ == TokenProduct::down ? plan_.stream : plan_.middle;
        send_elements<TX>(words_ + stream, at, residual_[0], residual_[1], tag_);
      }
    }
  }

  // Every block has read `calls` when the last one arrives here.
  __device__ __forceinline__ void end_call(uint32_t calls) const {
    if (threadIdx.x != 0 || atomicAdd(&head_->done, 1u) + 1 != gridDim.x) return;
    head_->done = 0;
    head_->calls = calls + 1;
  }

  const DecodeToken& t_;
  const ExchangePlan& plan_;
  BlockTables<kRows>& tables_;
  DecodeBlock* blocks_;
  AttentionShare* shares_;
  float* sums_;
  char* xs_;
  Ring ring_;
  ExchangeHead* head_;
  Word* words_;
  int share_count_;
  // The current product.
  int layer_ = 0;
  TokenProduct which_ = TokenProduct::qkv;
  uint32_t tag_ = 0;
  typename Ring::Place place_;
  float residual_[2] = {};
};

template <class TX, int kRows, int kHeld, class Ring>
__global__ void __launch_bounds__(kTokenThreads + kFetchThreads, 1)
    decode_token_kernel(const __grid_constant__ TokenWork work) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint4 token_memory[];
  __shared__ alignas(16) char tables[sizeof(BlockTables<kRows>)];
  TokenBlock<TX, kRows, kHeld, Ring> block(work, reinterpret_cast<BlockTables<kRows>&>(tables),
                                           reinterpret_cast<char*>(token_memory));
  block.prepare(work.linears);
  if (threadIdx.x >= kTokenThreads) {
    give_registers<kFetchRegisters>();
    block.fetch();
  } else {
    take_registers<kTokenRegisters>();
    block.compute();
  }
#endif
}

using TokenKernel = void (*)(TokenWork);

// A kernel for up to `rows` rows of up to `width` elements, with a ring of ring_bytes.
struct TokenVariant {
  bool fp32_stream;
  int rows, width, ring_bytes;
  TokenKernel kernel;
};
template <class TX, int kRows, int kHeld, class Ring>
constexpr TokenVariant kVariant = {sizeof(TX) == 4, kRows, kHeld* kTokenThreads * 8, Ring::kBytes,
                                   decode_token_kernel<TX, kRows, kHeld, Ring>};
// plan_token takes the first one that fits.
constexpr TokenVariant kVariants[] = {
    kVariant<bfloat16, 2, 1, WeightRing<6, 4>>, kVariant<bfloat16, 2, 2, WeightRing<6, 4>>,
    kVariant<bfloat16, 4, 2, WeightRing<4, 4>>, kVariant<bfloat16, 8, 2, WeightRing<4, 4>>,
    kVariant<bfloat16, 8, 2, WeightRing<3, 2>>, kVariant<float, 2, 2, WeightRing<6, 4>>,
    kVariant<float, 4, 2, WeightRing<4, 4>>,    kVariant<float, 8, 2, WeightRing<3, 2>>,
};

struct TokenPlan {
  TokenKernel kernel = nullptr;  // null: the token does not fit
  int blocks = 0;
  TokenMemory memory;
};

TokenPlan plan_token(const DecodeToken& t, Stream stream) {
  TokenPlan plan;
  // A warp's chunks and words must be whole. A thread holds its share of a row of the stream, and
  // at most one of the outputs that are added to it.
  const bool whole = t.C % 8 == 0 && t.F % 8 == 0 && t.D % 8 == 0 && t.D <= 256;
  constexpr int64_t kMostUnits = 1 << 24;  // 32 bits hold its multiples in of_block
  if (!whole || std::max({t.V, t.F, (t.H + 2 * t.Hk) * t.D}) > kMostUnits) return plan;
  if (plan_exchange(t).words > INT32_MAX) return plan;
  const int blocks = static_cast<int>(std::min<int64_t>(multiprocessors_of(stream), t.F / 2));
  if (ceil_div(t.C / 2, blocks) * t.B > kTokenThreads) return plan;
  for (const TokenVariant& variant : kVariants) {
    if (t.B > variant.rows || t.C > variant.width || t.fp32_stream != variant.fp32_stream) continue;
    const TokenMemory memory = plan_memory(t, blocks, variant.ring_bytes);
    const void* const kernel = reinterpret_cast<const void*>(variant.kernel);
    if (hopper_kernel_runs(kernel, memory.bytes) &&
        grid_is_resident(kernel, blocks, kTokenThreads + kFetchThreads, memory.bytes, stream)) {
      return {variant.kernel, blocks, memory};
    }
  }
  return plan;
}

TokenWork token_work(const DecodeToken& t, const TokenPlan& plan) {
  TokenWork work{t, plan.memory, plan_exchange(t), {}, shares_of_part(t, plan.blocks)};
  for (int i = 0; i < kTokenProducts; ++i) {
    work.linears[i] = token_linear(t, static_cast<TokenProduct>(i));
  }
  return work;
}

}  // namespace

bool decode_token_fits(const DecodeToken& token, Stream stream) {
  return plan_token(token, stream).kernel != nullptr;
}

bool decode_block_fits(const DecodeBlock& block, Stream) {
  return aligned16({block.attention_norm, block.qkv, block.k_cache, block.v_cache, block.output,
                    block.mlp_norm, block.gate_up, block.down});
}

int64_t decode_token_exchange(const DecodeToken& token, Stream) {
  return (kHeadWords + plan_exchange(token).words) * static_cast<int64_t>(sizeof(Word));
}

void decode_token(const DecodeToken& token, Stream stream) {
  const TokenPlan plan = plan_token(token, stream);
  QUERN_CHECK(plan.kernel != nullptr, "decode_token: ", token.B, " rows with d_model ", token.C,
              ", d_ff ", token.F, " and head_dim ", token.D,
              " do not fit this device, see decode_token_fits");
  QUERN_CHECK(aligned16({token.embedding, token.norm, token.head, token.exchange}),
              "decode_token: embedding, norm, head or exchange is not aligned to 16 bytes");
  LaunchOptions options;
  options.resident = true;
  launch(options, plan.kernel, one_block_each(plan.blocks), dim3(kTokenThreads + kFetchThreads),
         static_cast<size_t>(plan.memory.bytes), stream, token_work(token, plan));
}

}  // namespace quern::kernels::cuda
