#include "optim/muon.h"

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <set>

#include "dist/layout.h"
#include "nn/linear.h"
#include "nn/sequential.h"
#include "optim/muon_cases.h"
#include "run/make_optimizer.h"
#include "support/thread_ranks.h"
#include "support/training.h"

namespace quern {
namespace {

using namespace testing_support;

class MuonGolden : public testing::TestWithParam<MuonParameter> {};

TEST_P(MuonGolden, AgreesWithTorch) {
  expect_muon_case(DeviceChoice::cpu, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Golden, MuonGolden, all_muon_parameters(), muon_case_name);

// The iteration in double.
std::vector<float> exact(const Tensor& x, const NewtonSchulz& options) {
  return naive_orthogonalize(x.to(DType::f64), options).to(DType::f32).to_vector<float>();
}

TEST(Muon, IterationsErrAtMostTwiceAsMuchAsSmallOps) {
  const int64_t count = 3;
  for (const auto& [rows, cols] :
       // From 512 on, in steps of 128, symmetric products are mirrored.
       {std::pair<int64_t, int64_t>{1, 9},
        {8, 8},
        {5, 12},
        {33, 7},
        {64, 160},
        {130, 70},
        {512, 520},
        {600, 512},
        {576, 576}}) {
    const int64_t stride = (rows * cols + 127) / 128 * 128;
    const Tensor x = zeros({count * stride}, DType::bf16);
    const auto matrix = [&, rows = rows, cols = cols](const Tensor& of, int64_t i) {
      return of.slice(0, i * stride, i * stride + rows * cols).reshape({rows, cols});
    };
    std::vector<Tensor> inputs;
    for (int64_t i = 0; i < count; ++i) {
      // Norms around a half: the iteration diverges above 1.
      const double deviation = 0.5 / std::sqrt(static_cast<double>(rows * cols));
      inputs.push_back(normal({rows, cols}, 0.0, deviation, DType::bf16));
      copy(matrix(x, i), inputs.back());
    }
    const NewtonSchulz options;
    const Tensor found = orthogonalize(x, {rows, cols, count, stride}, options);
    for (int64_t i = 0; i < count; ++i) {
      const Tensor& input = inputs[static_cast<size_t>(i)];
      const std::vector<float> expected = exact(input, options);
      const auto floats = [](const Tensor& t) { return t.to(DType::f32).to_vector<float>(); };
      const double naive = error_of(floats(naive_orthogonalize(input, options)), expected);
      // One singular value alone: nothing averages its BF16 roundings, and the first slope is 3.4.
      const double alone = std::min(rows, cols) == 1 ? 5 * 3.4 * 0x1p-8 : 1e-3;
      EXPECT_LE(error_of(floats(matrix(found, i).clone("result")), expected), 2 * naive + alone)
          << rows << " x " << cols << ", matrix " << i;
    }
  }
}

// Singular values come near 1, as far as the coefficients allow: between about 0.68 and 1.14.
TEST(Muon, MakesAMatrixNearlyOrthogonal) {
  const Tensor x = normal({16, 16}, 0.0, 1.0 / 16.0, DType::f64);
  NewtonSchulz options;
  options.iterations = 12;
  const Tensor y = naive_orthogonalize(x, options);
  double squares = 0.0;
  for (const float v : y.to(DType::f32).to_vector<float>()) squares += double{v} * v;
  EXPECT_NEAR(squares / 16.0, 0.85, 0.35);
}

// Two matrices of one shape, a third of another shape that is frozen, biases, and one matrix that
// is not hidden.
struct Model {
  explicit Model(Precision precision = Precision::fp32) {
    auto& first = net.append<Linear>(5, 5, Init::normal(1.0), true);
    net.append<Linear>(5, 5, Init::normal(1.0), true);
    auto& third = net.append<Linear>(5, 7, Init::normal(1.0), true);
    auto& fourth = net.append<Linear>(7, 3, Init::normal(1.0), true);
    first.weight.group.lr_scale = 0.5;
    third.weight.group.frozen = true;
    fourth.weight.group.kind = ParameterKind::head;
    arena.emplace(net, ParameterArena::Options{precision, true, 7});
  }
  Sequential net;
  std::optional<ParameterArena> arena;
};

void set_gradients(ParameterArena& arena, uint64_t seed) {
  Context context(kCpu, seed);
  const ContextScope scope(context);
  for (const Parameter* parameter : arena.parameters()) {
    if (parameter->group.frozen) continue;
    copy(parameter->grad(), normal(parameter->shape(), 0.0, 2.0));
    parameter->leaf()->fresh = false;
  }
}

MuonOptions options_of(KernelKind kernels) {
  MuonOptions options;
  options.adamw.kernels = kernels;
  return options;
}

TEST(Muon, NamesTheStateOfEachParameter) {
  Model model;
  const Muon optimizer(*model.arena, {});
  std::map<std::string, std::set<int64_t>> elements;
  for (const OptimizerBuffer& buffer : optimizer.buffers()) {
    for (const NamedSlice& slice : buffer.slices) {
      elements[buffer.prefix].insert(slice.shape.numel());
      EXPECT_LE(slice.begin + slice.shape.numel(), buffer.data.numel());
    }
  }
  EXPECT_EQ(elements["momentum."], std::set<int64_t>{25});
  EXPECT_EQ(elements["moment1."], (std::set<int64_t>{3, 5, 7, 21}));
  EXPECT_EQ(elements["moment2."], elements["moment1."]);
}

// No buffer has space for the state of parameters that it leaves out: beyond the slices, which lie
// in order, it is as much as alignment needs.
TEST(Muon, TheStateIsPacked) {
  constexpr int64_t kMostPadding = 256;  // elements: 1 KiB
  Model model;
  const Muon optimizer(*model.arena, {});
  for (const OptimizerBuffer& buffer : optimizer.buffers()) {
    int64_t end = 0;
    for (const NamedSlice& slice : buffer.slices) {
      EXPECT_GE(slice.begin, end) << buffer.prefix << slice.name;
      EXPECT_LT(slice.begin, end + kMostPadding) << buffer.prefix << slice.name;
      end = slice.begin + slice.shape.numel();
    }
    EXPECT_GE(buffer.data.numel(), end) << buffer.prefix;
    EXPECT_LT(buffer.data.numel(), end + kMostPadding) << buffer.prefix;
  }
}

ArenaLayoutOf zero1_layout(int ranks, int rank) {
  return [=](const ParameterTable& table) {
    return layout_of(table, Parallel::zero1, BucketExchange::naive, ranks, rank);
  };
}

TEST(Muon, RanksNeedAnExchange) {
  Linear layer(5, 5, Init::normal(1.0));
  ParameterArena::Options options;
  options.layout = zero1_layout(2, 0);
  ParameterArena arena(layer, options);
  expect_error([&] { Muon(arena, {}); }, {"muon", "exchange"});
}

// Matrices of three shapes and one that is frozen, cut at the ranks' slices of multiples of 512
// elements; there are more ranks than any shape has matrices.
TEST(Muon, RanksUpdateTheBitsOfOne) {
  using State = std::map<std::string, std::vector<float>>;  // zeros where others have it
  const auto train = [](const MuonOptions& options, Communicator* group) {
    Context context(kCpu);
    const ContextScope scope(context);
    Sequential net;
    const std::pair<int64_t, int64_t> shapes[] = {{31, 40}, {40, 31}, {31, 40},
                                                  {40, 31}, {9, 7},   {31, 40}};
    for (const auto& [rows, cols] : shapes) net.append<Linear>(cols, rows, Init::normal(1.0));
    net.append<Linear>(40, 31, Init::normal(1.0), true).weight.group.frozen = true;
    ParameterArena::Options arena_options{Precision::bf16, true, 7};
    if (group != nullptr) arena_options.layout = zero1_layout(group->size(), group->rank());
    ParameterArena arena(net, arena_options);
    Muon optimizer(arena, options, muon_exchange(group));
    for (uint64_t step = 0; step < 3; ++step) {
      set_gradients(arena, step + 1);
      optimizer.step(0.05);
    }
    State state;
    std::vector<OptimizerBuffer> buffers = optimizer.buffers();
    buffers.push_back(values_of(arena));
    for (const OptimizerBuffer& buffer : buffers) {
      for (const NamedSlice& slice : buffer.slices) {
        state[buffer.prefix + slice.name] = spread(buffer, slice).to_vector<float>();
      }
    }
    return state;
  };
  for (const KernelKind kernels : {KernelKind::fused, KernelKind::naive}) {
    for (const int64_t most : {int64_t{1} << 29, int64_t{2600}}) {  // all, and two of the largest
      MuonOptions options = options_of(kernels);
      options.most_elements = most;
      const State one = train(options, nullptr);
      // Weights of all, momentum of the six trainable matrices, two moments of the bias.
      EXPECT_EQ(one.size(), 16u);
      for (const int ranks : {1, 2, 3, 5}) {
        State all;
        std::mutex mutex;
        const auto texts = run_thread_ranks(ranks, {}, [&](Communicator& group) {
          const State own = train(options, &group);
          const std::lock_guard lock(mutex);
          for (const auto& [name, part] : own) {
            std::vector<float>& whole = all[name];
            whole.resize(part.size());
            for (size_t i = 0; i < part.size(); ++i) {  // of a frozen one every rank has all
              EXPECT_TRUE(whole[i] == 0.0f || part[i] == 0.0f || whole[i] == part[i]) << name;
              if (part[i] != 0.0f) whole[i] = part[i];
            }
          }
          return std::string();
        });
        EXPECT_EQ(texts, std::vector<std::string>(static_cast<size_t>(ranks)));
        EXPECT_EQ(all, one) << ranks << " ranks";
      }
    }
  }
}

TEST(Muon, FusedAndNaiveAgree) {
  Model fused(Precision::bf16), naive(Precision::bf16);
  Muon a(*fused.arena, options_of(KernelKind::fused));
  Muon b(*naive.arena, options_of(KernelKind::naive));
  const std::vector<float> before = fused.arena->exact_values().to_vector<float>();
  for (uint64_t step = 0; step < 5; ++step) {
    for (Model* model : {&fused, &naive}) set_gradients(*model->arena, step + 1);
    a.step(0.05);
    b.step(0.05);
    EXPECT_NEAR(a.state().norm, b.state().norm, 1e-5 * b.state().norm);
  }
  const std::vector<float> after = fused.arena->exact_values().to_vector<float>();
  EXPECT_NE(after, before);
  // Five steps of 0.05 with errors of BF16 products.
  EXPECT_LE(error_of(after, naive.arena->exact_values().to_vector<float>()), 2e-3);
}

// The split of a group bounds the workspace and changes no bit.
TEST(Muon, AGroupInPartsIsTheSame) {
  Model whole(Precision::bf16), parts(Precision::bf16);
  MuonOptions options = options_of(KernelKind::fused);
  Muon a(*whole.arena, options);
  options.most_elements = 1;
  Muon b(*parts.arena, options);
  for (uint64_t step = 0; step < 3; ++step) {
    for (Model* model : {&whole, &parts}) set_gradients(*model->arena, step + 1);
    a.step(0.05);
    b.step(0.05);
  }
  EXPECT_EQ(parts.arena->exact_values().to_vector<float>(),
            whole.arena->exact_values().to_vector<float>());
  EXPECT_EQ(b.buffers().back().data.to_vector<float>(), a.buffers().back().data.to_vector<float>());
}

class MuonTest : public testing::TestWithParam<KernelKind> {};

TEST_P(MuonTest, ANonfiniteGradientOrLossChangesNothing) {
  for (const bool in_loss : {false, true}) {
    Model model;
    ParameterArena& arena = *model.arena;
    Muon optimizer(arena, options_of(GetParam()));
    const auto everything = [&] {
      std::vector<float> all = arena.exact_values().to_vector<float>();
      for (const OptimizerBuffer& buffer : optimizer.buffers()) {
        const std::vector<float> state = buffer.data.to_vector<float>();
        all.insert(all.end(), state.begin(), state.end());
      }
      return all;
    };
    const float nan = std::numeric_limits<float>::quiet_NaN();
    set_gradients(arena, 1);
    if (!in_loss) arena.parameters()[0]->grad().data<float>()[2] = nan;
    const std::vector<float> before = everything();
    optimizer.step(0.1, full({}, in_loss ? nan : 1.0));
    EXPECT_EQ(everything(), before);
    EXPECT_EQ(optimizer.state().skipped, 1);
    set_gradients(arena, 2);
    optimizer.step(0.1, full({}, 1.0));
    EXPECT_EQ(optimizer.state().step, 1);
    EXPECT_NE(everything(), before);
  }
}

TEST_P(MuonTest, FrozenWeightsAndPaddingStay) {
  Model model;
  ParameterArena& arena = *model.arena;
  std::vector<bool> trained(static_cast<size_t>(arena.size()), false);
  for (const Parameter* parameter : arena.parameters()) {
    if (parameter->group.frozen) continue;
    for (int64_t i = 0; i < parameter->numel(); ++i) {
      trained[static_cast<size_t>(parameter->begin() + i)] = true;
    }
  }
  const std::vector<float> before = arena.exact_values().to_vector<float>();
  Muon optimizer(arena, options_of(GetParam()));
  for (uint64_t step = 0; step < 3; ++step) {
    set_gradients(arena, step + 1);
    optimizer.step(0.1);
  }
  const std::vector<float> after = arena.exact_values().to_vector<float>();
  for (size_t i = 0; i < after.size(); ++i) EXPECT_EQ(after[i] != before[i], trained[i]) << i;
}

INSTANTIATE_TEST_SUITE_P(Kernels, MuonTest, testing::Values(KernelKind::naive, KernelKind::fused),
                         [](const auto& info) {
                           return info.param == KernelKind::naive ? "naive" : "fused";
                         });

Config muon_config(const TemporaryFolder& folder) {
  write_corpus(folder / "text.txt", 20000);
  Config config = tiny_config(folder / "text.txt", folder / "run");
  config.optimizer.kind = OptimizerKind::muon;
  return config;
}

TEST(Muon, ResumesBitForBit) {
  const TemporaryFolder folder;
  Config config = muon_config(folder);
  config.compute.precision = Precision::bf16;
  config.train.steps = 20;
  expect_resume_is_exact(config, folder.path());
}

// The validation that follows a save rewrites the checkpoint's state.
TEST(Muon, ACheckpointThatIsTheBestResumes) {
  const TemporaryFolder folder;
  Config config = muon_config(folder);
  config.train.steps = 2;
  config.train.checkpoint_every = config.train.eval_every = 2;
  Recorded recorded;
  EXPECT_EQ(train(config, recorded).best_step, 2);
  config.run.resume = config.run.out;
  config.train.steps = 3;
  EXPECT_EQ(train(config, recorded).steps, 3);
}

TEST(Muon, AnotherOptimizersCheckpointIsRefused) {
  const TemporaryFolder folder;
  Config config = muon_config(folder);
  config.train.steps = 2;
  Recorded recorded;
  train(config, recorded);
  config.run.resume = config.run.out;
  config.train.steps = 3;
  config.optimizer.kind = OptimizerKind::adamw;
  expect_error([&] { train(config, recorded); },
               {"trained with optimizer = muon", "found optimizer = adamw"});
}

TEST(Muon, VectorsAndUndecayedMatrices) {
  Sequential net;
  auto& layer = net.append<Linear>(5, 5, Init::normal(1.0), true);
  layer.weight.group.decay = false;
  layer.bias->group.kind = ParameterKind::hidden_matrix;  // a vector all the same
  ParameterArena arena(net, {});
  MuonOptions options;
  options.adamw.weight_decay = 1.0;
  Muon optimizer(arena, options);
  ASSERT_EQ(optimizer.buffers().size(), 3u);
  EXPECT_EQ(optimizer.buffers()[0].slices[0].name, "0.bias");
  const std::vector<float> before = arena.exact_values().to_vector<float>();
  fill(arena.grads(), 0.0);
  for (const Parameter* parameter : arena.parameters()) parameter->leaf()->fresh = false;
  optimizer.step(0.1);
  EXPECT_EQ(arena.exact_values().to_vector<float>(), before) << "no gradient and no decay";
  options.adjust = static_cast<MuonAdjust>(99);
  EXPECT_THROW(Muon(arena, options), Error);
}

}  // namespace
}  // namespace quern
