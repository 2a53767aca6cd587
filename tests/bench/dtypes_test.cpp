#include "bench/dtypes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "model/model_config.h"
#include "support/files.h"
#include "tensor/context.h"

namespace quern {
namespace {

using namespace testing_support;

constexpr DtypeModel kModels[] = {DtypeModel::toy, DtypeModel::lm};

std::set<DType> dtypes_of(const std::vector<DtypeEntry>& entries, const std::string& kind) {
  std::set<DType> dtypes;
  for (const DtypeEntry& entry : entries) {
    if (entry.kind == kind) dtypes.insert(entry.dtype);
  }
  return dtypes;
}

const DtypeEntry& find(const std::vector<DtypeEntry>& entries, const std::string& kind,
                       const std::string& name) {
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const DtypeEntry& entry) {
    return entry.kind == kind && entry.name == name;
  });
  if (found != entries.end()) return *found;
  std::string all;
  for (const DtypeEntry& entry : entries) all += entry.kind + " " + entry.name + "\n";
  throw Error(cat("no ", kind, " ", name, " among\n", all));
}

using Types = std::set<DType>;
const Types kF32{DType::f32}, kBf16{DType::bf16};

TEST(BenchDtypes, Fp32AndTf32AreFp32Throughout) {
  for (const DtypeModel model : kModels) {
    for (const Precision precision : {Precision::fp32, Precision::tf32}) {
      const auto entries = observe_dtypes(model, precision);
      for (const char* kind : {"parameter", "activation", "logits", "loss", "gradient"}) {
        EXPECT_EQ(dtypes_of(entries, kind), kF32) << name_of(model) << " " << kind;
      }
      EXPECT_EQ(dtypes_of(entries, "copy"), Types{});
    }
  }
}

TEST(BenchDtypes, Bf16KeepsMastersLossAndTheirGradientsInFp32) {
  for (const DtypeModel model : kModels) {
    const auto entries = observe_dtypes(model, Precision::bf16);
    EXPECT_EQ(dtypes_of(entries, "parameter"), kF32) << name_of(model);
    EXPECT_EQ(dtypes_of(entries, "copy"), kBf16) << name_of(model);
    EXPECT_EQ(dtypes_of(entries, "activation"), kBf16) << name_of(model);
    EXPECT_EQ(dtypes_of(entries, "logits"), kBf16) << name_of(model);
    EXPECT_EQ(dtypes_of(entries, "loss"), kF32) << name_of(model);
    for (const DtypeEntry& parameter : entries) {
      if (parameter.kind != "parameter") continue;
      const DtypeEntry& gradient = find(entries, "gradient", parameter.name);
      EXPECT_EQ(gradient.dtype, DType::f32) << parameter.name;
      EXPECT_EQ(gradient.shape, parameter.shape) << parameter.name;
    }
  }
}

// The course's questions on its toy model, and the gradients on the way back.
TEST(BenchDtypes, TheToyModelTensorByTensor) {
  const auto entries = observe_dtypes(DtypeModel::toy, Precision::bf16);
  EXPECT_EQ(find(entries, "input", "x").dtype, DType::f32);
  EXPECT_EQ(find(entries, "activation", "cast").dtype, DType::bf16);
  EXPECT_EQ(find(entries, "activation", "fc1.linear").shape, (Shape{4, 16}));
  EXPECT_EQ(find(entries, "activation", "relu.relu").dtype, DType::bf16);
  EXPECT_EQ(find(entries, "activation", "ln.layer_norm").dtype, DType::bf16);
  EXPECT_EQ(find(entries, "logits", "fc2.linear").shape, (Shape{4, 5}));
  EXPECT_EQ(find(entries, "loss", "cross_entropy").shape, Shape{});
  EXPECT_EQ(find(entries, "gradient", "cross_entropy").dtype, DType::f32);
  for (const char* name : {"fc2.linear", "ln.layer_norm", "relu.relu", "fc1.linear"}) {
    EXPECT_EQ(find(entries, "gradient", name).dtype, DType::bf16) << name;
  }
  for (const char* name : {"fc1.weight", "ln.weight", "ln.bias", "fc2.weight"}) {
    EXPECT_EQ(find(entries, "gradient", name).dtype, DType::f32) << name;
  }
}

// One gradient a tensor: outputs of one op have different names.
TEST(BenchDtypes, EveryTensorIsThereOnce) {
  for (const KernelKind kernels : {KernelKind::fused, KernelKind::naive}) {
    std::set<std::string> seen;
    for (const DtypeEntry& entry : observe_dtypes(DtypeModel::lm, Precision::bf16, kernels)) {
      EXPECT_TRUE(seen.insert(entry.kind + " " + entry.name).second) << entry.kind << entry.name;
    }
  }
}

// Each gradient is that of the activation whose name it has.
TEST(BenchDtypes, GradientsHaveTheirTensorsShapesAndTypes) {
  for (const DtypeModel model : kModels) {
    for (const KernelKind kernels : {KernelKind::fused, KernelKind::naive}) {
      const auto entries = observe_dtypes(model, Precision::bf16, kernels);
      size_t checked = 0;
      for (const DtypeEntry& made : entries) {
        if (made.kind != "activation" && made.kind != "loss") continue;
        const auto found =
            std::find_if(entries.begin(), entries.end(), [&](const DtypeEntry& entry) {
              return entry.kind == "gradient" && entry.name == made.name;
            });
        if (found == entries.end()) continue;  // no gradient reached it
        EXPECT_EQ(found->shape, made.shape) << made.name;
        EXPECT_EQ(found->dtype, made.dtype) << made.name;
        ++checked;
      }
      EXPECT_GE(checked, model == DtypeModel::toy ? 4u : 15u);
    }
  }
}

TEST(BenchDtypes, TheModelsTensorsHaveTheirModulesNames) {
  const auto entries = observe_dtypes(DtypeModel::lm, Precision::bf16);
  EXPECT_EQ(find(entries, "input", "tokens").dtype, DType::i32);
  EXPECT_EQ(find(entries, "parameter", "model.layers.1.mlp.down_proj.weight").shape,
            (Shape{32, 64}));
  EXPECT_EQ(find(entries, "activation", "model.layers.1.self_attn.qkv_proj.linear").shape,
            (Shape{2, 16, 96}));
  EXPECT_EQ(find(entries, "logits", "model.logits").shape, (Shape{2, 16, 61}));
  // The naive norms compute in FP32, which shows: their small ops have tensors of their own.
  const auto naive = observe_dtypes(DtypeModel::lm, Precision::bf16, KernelKind::naive);
  EXPECT_EQ(dtypes_of(naive, "activation"), (Types{DType::f32, DType::bf16}));
  EXPECT_GT(naive.size(), entries.size());
}

TEST(BenchDtypes, LeavesNoObserverBehind) {
  observe_dtypes(DtypeModel::toy, Precision::tf32);
  const Context& context = Context::current();
  EXPECT_EQ(context.observer<OutputObserver>(), nullptr);
  EXPECT_EQ(context.observer<GradientObserver>(), nullptr);
  EXPECT_EQ(context.options.precision, Precision::fp32);
}

// bf16 has copies of the parameters, and a cast that fp32 lacks.
TEST(BenchDtypes, PutsPrecisionsBesideEachOther) {
  const std::vector<Precision> precisions{Precision::fp32, Precision::bf16};
  const auto rows = bench_dtypes(DtypeModel::toy, precisions);
  const auto row = [&](const std::string& kind, const std::string& name) {
    const auto found = std::find_if(rows.begin(), rows.end(), [&](const DtypeRow& one) {
      return one.kind == kind && one.name == name;
    });
    EXPECT_NE(found, rows.end()) << kind << " " << name;
    return found;
  };
  using Dtypes = std::vector<std::string>;
  EXPECT_EQ(row("parameter", "fc1.weight")->dtypes, (Dtypes{"f32", "f32"}));
  EXPECT_EQ(row("copy", "fc1.weight")->dtypes, (Dtypes{"", "bf16"}));
  EXPECT_EQ(row("activation", "cast")->dtypes, (Dtypes{"", "bf16"}));
  EXPECT_EQ(row("logits", "fc2.linear")->dtypes, (Dtypes{"f32", "bf16"}));
  EXPECT_LT(row("activation", "cast"), row("activation", "fc1.linear"));

  Table json(TableFormat::json, kTextWidth, "quern-test");
  const auto parsed =
      nlohmann::json::parse(json.add(table_row(*row("copy", "fc1.weight"), precisions)));
  EXPECT_EQ(parsed.at("model"), "toy");
  EXPECT_EQ(parsed.at("shape"), (std::vector<int64_t>{16, 8}));
  EXPECT_EQ(parsed.at("bf16"), "bf16");
  EXPECT_FALSE(parsed.contains("fp32"));
}

}  // namespace
}  // namespace quern
