// Whole steps and single ops, repeated while other kernels come and go on the GPU: each repetition
// gives the bits of the first. QUERN_REPEATS sets their number.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "gpu/device_buffer.h"
#include "gpu/other_work.h"
#include "kernels/cuda/primitives/launch.cuh"
#include "model/model_config.h"
#include "run/make_context.h"
#include "run/make_optimizer.h"
#include "support/op_cases.h"
#include "tensor/cuda_runtime.h"
#include "tensor/factory.h"
#include "train/training_step.h"

namespace quern::test {
namespace {

using kernels::cuda::check_cuda;

int repeats() {
  const char* text = std::getenv("QUERN_REPEATS");
  return text != nullptr ? std::atoi(text) : 20;
}

__global__ void count_differences(int32_t* differences, const uint8_t* a, const uint8_t* b,
                                  int64_t bytes) {
  int32_t mine = 0;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < bytes;
       i += int64_t{gridDim.x} * blockDim.x) {
    mine += a[i] != b[i] ? 1 : 0;
  }
  if (mine > 0) atomicAdd(differences, mine);
}

struct StepCase {
  const char* name;
  ModelConfig model;
  int64_t batch;
  ComputeSection compute;
  OptimizerSection optimizer = {};
};

std::vector<StepCase> step_cases() {
  const ModelConfig heads_of_64{.vocab_size = 50304,
                                .context = 1024,
                                .d_model = 768,
                                .d_ff = 2048,
                                .layers = 2,
                                .heads = 12,
                                .kv_heads = 4};
  ModelConfig heads_of_128 = heads_of_64, heads_of_96 = heads_of_64, heads_of_256 = heads_of_64;
  ModelConfig gpt2 = heads_of_64;
  heads_of_128.heads = 6, heads_of_128.kv_heads = 6, heads_of_128.context = 2048;
  heads_of_96.heads = 8, heads_of_96.kv_heads = 2;
  heads_of_256.heads = 3, heads_of_256.kv_heads = 1;
  apply_size(gpt2, "gpt2");
  gpt2.layers = 2;
  const auto compute = [](Precision precision) {
    ComputeSection c;
    c.device = DeviceChoice::cuda;
    c.precision = precision;
    return c;
  };
  const ComputeSection bf16 = compute(Precision::bf16), tf32 = compute(Precision::tf32),
                       fp32 = compute(Precision::fp32), fp8 = compute(Precision::fp8);
  ComputeSection naive = fp32, wide = bf16;
  naive.attention = AttentionKind::naive, naive.kernels = KernelKind::naive;
  wide.residual = ResidualType::fp32, wide.recompute = Recompute::blocks;
  return {{"bf16", heads_of_64, 4, bf16},
          {"bf16, one sequence", heads_of_128, 1, bf16},
          {"bf16, heads of 96", heads_of_96, 2, bf16},
          {"bf16, heads of 256", heads_of_256, 2, bf16},
          {"bf16, FP32 residual, blocks again", heads_of_64, 2, wide},
          {"bf16, GPT-2", gpt2, 4, bf16},
          {"bf16, Muon", heads_of_64, 2, bf16, {.kind = OptimizerKind::muon}},
          {"bf16, BF16 moments", heads_of_64, 2, bf16, {.moments = MomentType::bf16}},
          {"fp8", heads_of_64, 4, fp8},
          {"tf32", heads_of_64, 2, tf32},
          {"fp32", heads_of_64, 1, fp32},
          {"fp32, naive", heads_of_64, 1, naive}};
}

// A step that can be taken again from the same weights and moments.
class RepeatedStep {
 public:
  explicit RepeatedStep(const StepCase& c)
      : context_(make_context(c.compute, 1)),
        scope_(*context_),
        instance_(c.model, c.compute, InitScheme::normal, true, 1),
        optimizer_(make_optimizer(instance_.arena, optimizer_config(c.optimizer))),
        step_(instance_, *optimizer_, captures_steps(c.compute)),
        tokens_(random_integers({c.batch, c.model.context}, c.model.vocab_size)),
        targets_(random_integers({c.batch, c.model.context}, c.model.vocab_size)) {
    optimizer_->set_learning_rate(1e-3);
    for (const OptimizerBuffer& buffer : optimizer_->buffers()) state_.push_back(buffer.data);
    const ParameterArena& arena = instance_.arena;
    for (const Tensor& weights : {arena.values(), arena.low(), arena.copies()}) {
      if (weights.defined()) state_.push_back(weights);
    }
    state_.push_back(optimizer_->device_state());
    starts_ = copies_of(state_);
    results_ = state_;
    results_.push_back(instance_.arena.grads());
    results_.push_back(step_.loss());
  }

  void run() {
    for (size_t i = 0; i < state_.size(); ++i) copy(state_[i], starts_[i]);
    instance_.arena.refresh_copies();
    step_.run(tokens_, targets_, {});
  }
  void remember() { expected_ = copies_of(results_); }
  void change_the_batch() { copy(tokens_, targets_); }

  // Bytes of weights, moments, gradients and loss that are not the remembered ones.
  int32_t differences() {
    const auto stream = static_cast<cudaStream_t>(context_->cuda_stream().handle);
    fill(count_, 0.0);
    for (size_t i = 0; i < results_.size(); ++i) {
      const int64_t bytes =
          results_[i].numel() * static_cast<int64_t>(size_of(results_[i].dtype()));
      count_differences<<<264, 256, 0, stream>>>(
          count_.data<int32_t>(), static_cast<const uint8_t*>(results_[i].raw_data()),
          static_cast<const uint8_t*>(expected_[i].raw_data()), bytes);
    }
    return count_.to_vector<int32_t>()[0];
  }

 private:
  static Config optimizer_config(const OptimizerSection& optimizer) {
    Config config;
    config.optimizer = optimizer;
    return config;
  }
  static std::vector<Tensor> copies_of(const std::vector<Tensor>& tensors) {
    std::vector<Tensor> copies;
    for (const Tensor& tensor : tensors) copies.push_back(tensor.clone());
    return copies;
  }

  std::unique_ptr<Context> context_;
  ContextScope scope_;
  ModelInstance instance_;
  std::unique_ptr<Optimizer> optimizer_;
  TrainingStep step_;
  Tensor tokens_, targets_;
  Tensor count_ = zeros({1}, DType::i32);
  std::vector<Tensor> state_, starts_;  // what a step changes and the next reads
  std::vector<Tensor> results_, expected_;
};

class RepeatsGpu : public GpuTest {};

// The first step is launched kernel by kernel, the second is captured, the others are replays.
TEST_F(RepeatsGpu, StepsAreBitEqualBesideOtherWork) {
  for (const StepCase& c : step_cases()) {
    SCOPED_TRACE(c.name);
    RepeatedStep step(c);
    step.run();
    step.remember();
    const OtherWork other_work;
    for (int i = 0; i < repeats(); ++i) {
      step.run();
      ASSERT_EQ(step.differences(), 0) << "repetition " << i;
    }
    step.change_the_batch();
    step.run();
    EXPECT_GT(step.differences(), 1000) << "the comparison sees nothing";
  }
}

TEST_F(RepeatsGpu, OpsAreBitEqualBesideOtherWork) {
  using namespace testing_support;
  Context gpu(Device{DeviceType::cuda, 0});
  const ContextScope scope(gpu);
  const OtherWork other_work;
  for (const OpCase& c : op_cases()) {
    SCOPED_TRACE(cat(c.op, ": ", c.label));
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const auto expected = run_case(c, dtype);
      for (int i = 0; i < repeats(); ++i) ASSERT_EQ(run_case(c, dtype), expected) << i;
    }
  }
}

}  // namespace
}  // namespace quern::test
