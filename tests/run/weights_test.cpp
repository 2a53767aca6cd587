#include "run/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "bench/golden_copy.h"
#include "nn/linear.h"
#include "optim/adamw.h"
#include "run/model_instance.h"
#include "tensor/factory.h"

namespace quern {
namespace {

using namespace testing_support;

ModelInstance make_instance(const std::filesystem::path& folder,
                            Precision precision = Precision::fp32, bool training = true) {
  ModelOptions options;
  options.precision = precision;
  return {read_hf_config(folder), options, InitScheme::normal, training, 1};
}

bool same_bytes(const TensorView& a, const TensorView& b) {
  return a.shape == b.shape && a.dtype == b.dtype &&
         std::equal(a.data.begin(), a.data.end(), b.data.begin(), b.data.end());
}

TEST(Weights, LoadsWhatTheFileHolds) {
  for (const char* name : {"mha", "gqa_tied"}) {
    const auto folder = golden_folder() / name;
    ModelInstance instance = make_instance(folder);
    const TensorSource source = TensorSource::open(folder);
    load_weights(instance.arena, source);
    const HostTensors host = weights_of(instance.arena);
    EXPECT_EQ(host.views.size(), source.names().size());
    for (const TensorView& view : host.views) {
      EXPECT_TRUE(same_bytes(view, source.tensor(view.name))) << view.name;
    }
  }
}

// What ops read of a file's weights: copies, and vectors exactly.
TEST(Weights, OpsReadWhatTheFileHolds) {
  const auto folder = golden_folder() / "mha";
  ModelInstance exact = make_instance(folder);
  load_weights(exact.arena, TensorSource::open(folder));
  const std::vector<float> values = exact.arena.values().to_vector<float>();
  for (const bool training : {true, false}) {
    ModelInstance instance = make_instance(folder, Precision::bf16, training);
    const ParameterArena& arena = instance.arena;
    load_weights(instance.arena, TensorSource::open(folder));
    const std::vector<bfloat16> copies = arena.copies().to_vector<bfloat16>();
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(copies[i].bits, kernels::rounded_weight(values[i]).bits) << i;
    }
    int vectors = 0;
    for (const Parameter* parameter : arena.parameters()) {
      if (!parameter->fp32) {
        EXPECT_THROW(parameter->master(), Error) << parameter->name();
        continue;
      }
      const auto begin = values.begin() + parameter->begin();
      EXPECT_EQ(parameter->value().to_vector<float>(),
                std::vector<float>(begin, begin + parameter->numel()));
      ++vectors;
    }
    EXPECT_GT(vectors, 0);
    EXPECT_EQ(arena.low().defined(), training);
    if (training) {
      EXPECT_EQ(arena.exact_values().to_vector<float>(), values);
    } else {
      expect_error([&] { arena.exact_values(); }, {"its weights are rounded"});
    }
  }
}

TEST(Weights, WidensBfloat16) {
  GoldenCopy copy("mha");
  const char* name = "model.norm.weight";
  std::vector<bfloat16> narrow(64);
  for (size_t i = 0; i < narrow.size(); ++i) narrow[i] = bfloat16(0.1f * static_cast<float>(i));
  copy.edit("model.safetensors", [&](std::vector<TensorView>& views) {
    for (TensorView& view : views) {
      if (view.name != name) continue;
      view.dtype = DType::bf16;
      view.data = std::as_bytes(std::span<const bfloat16>(narrow));
    }
  });
  ModelInstance instance = make_instance(copy.path());
  load_weights(instance.arena, TensorSource::open(copy.path()));
  for (const TensorView& view : weights_of(instance.arena).views) {
    if (view.name != name) continue;
    std::vector<float> found(narrow.size());
    std::memcpy(found.data(), view.data.data(), view.data.size());
    for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i], static_cast<float>(narrow[i]));
  }
}

// Loads a case whose weights were edited, and expects the error.
void expect_refusal(const char* name, const std::function<void(std::vector<TensorView>&)>& edit,
                    std::initializer_list<std::string> parts) {
  GoldenCopy copy(name);
  copy.edit("model.safetensors", edit);
  ModelInstance instance = make_instance(copy.path());
  const TensorSource source = TensorSource::open(copy.path());
  expect_error([&] { load_weights(instance.arena, source); }, parts);
}

TEST(Weights, RefusesWhatIsNotTheModel) {
  expect_refusal("mha",
                 [](auto& views) {
                   std::erase_if(views,
                                 [](const TensorView& v) { return v.name == "model.norm.weight"; });
                 },
                 {"case", "has no tensor 'model.norm.weight'"});
  expect_refusal("mha", [](auto& views) { views[0].name = "model.layers.9.mlp.up_proj.weight"; },
                 {"case"});
  expect_refusal(
      "mha",
      [](auto& views) {
        for (TensorView& v : views) {
          if (v.name == "model.layers.0.mlp.up_proj.weight") std::swap(v.shape[0], v.shape[1]);
        }
      },
      {"case", "'model.layers.0.mlp.up_proj.weight' has shape (64, 160), expected (160, 64)"});
  expect_refusal("mha",
                 [](auto& views) {
                   for (TensorView& v : views) {
                     if (v.name == "model.norm.weight") v.dtype = DType::i32;
                   }
                 },
                 {"'model.norm.weight' is i32"});
  static const std::vector<float> kExtra(4);
  expect_refusal(
      "mha",
      [](auto& views) {
        views.push_back({"model.extra", DType::f32, {4}, std::as_bytes(std::span(kExtra))});
      },
      {"'model.extra' is not one of the model's"});
}

TEST(Weights, ATiedHeadMayBeThereWhenItIsTheEmbedding) {
  const auto add_head = [](std::vector<TensorView>& views, const char* from) {
    TensorView head = *std::find_if(views.begin(), views.end(),
                                    [&](const TensorView& v) { return v.name == from; });
    head.name = "lm_head.weight";
    views.push_back(head);
  };
  GoldenCopy copy("gqa_tied");
  copy.edit("model.safetensors",
            [&](auto& views) { add_head(views, "model.embed_tokens.weight"); });
  ModelInstance instance = make_instance(copy.path());
  EXPECT_NO_THROW(load_weights(instance.arena, TensorSource::open(copy.path())));

  expect_refusal("gqa_tied", [&](auto& views) { add_head(views, "model.norm.weight"); },
                 {"'lm_head.weight' differs from 'model.embed_tokens.weight'"});
}

// More elements than are split, or joined for a file, at a time.
TEST(Weights, PiecesOfALargeMatrix) {
  Linear layer(4100, 4100, false);
  ParameterArena arena(layer, {.precision = Precision::bf16});
  ASSERT_GT(arena.size(), int64_t{1} << 24);
  const std::vector<float> values = normal({arena.size()}, 0.0, 1.0).to_vector<float>();
  arena.set_exact_values(from_vector(values, {arena.size()}));
  EXPECT_TRUE(arena.exact_values().to_vector<float>() == values);
  const HostTensors host = weights_of(arena);
  ASSERT_EQ(host.views.size(), 1u);
  EXPECT_EQ(std::memcmp(host.views[0].data.data(), values.data(), host.views[0].data.size()), 0);
}

class SavedWeights : public testing::TestWithParam<Precision> {};

TEST_P(SavedWeights, AndMomentsComeBackFromAFile) {
  const auto folder = golden_folder() / "gqa_tied";
  ModelInstance saved = make_instance(folder, GetParam());
  const AdamW optimizer(saved.arena, {});
  fill(optimizer.moment1(), 0.25);
  const TemporaryFolder files;
  write_safetensors(files / "weights.safetensors", weights_of(saved.arena).views);
  write_safetensors(files / "moments.safetensors", host_tensors(optimizer.buffers()[0]).views);

  ModelInstance loaded = make_instance(folder, GetParam());
  loaded.arena.set_exact_values(zeros({loaded.arena.size()}));
  load_weights(loaded.arena, SafetensorsShards::open(files.path(), "weights"));
  EXPECT_EQ(loaded.arena.exact_values().to_vector<float>(),
            saved.arena.exact_values().to_vector<float>());
  const OptimizerBuffer moment = AdamW(loaded.arena, {}).buffers()[0];
  load_buffer(moment, SafetensorsShards::open(files.path(), "moments"));
  for (const TensorView& view : host_tensors(moment).views) {
    float first = 0.0f;
    std::memcpy(&first, view.data.data(), sizeof first);
    EXPECT_EQ(first, 0.25f) << view.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Precisions, SavedWeights,
                         testing::Values(Precision::fp32, Precision::bf16));

TEST(Weights, RefusesWhatIsNotFinite) {
  for (const auto& [amount, found] :
       {std::pair{std::nanf(""), "nan"}, {std::numeric_limits<float>::infinity(), "inf"}}) {
    GoldenCopy copy("mha");
    copy.add("model.safetensors", "model.layers.1.mlp.up_proj.weight", 7, amount);
    ModelInstance instance = make_instance(copy.path());
    const TensorSource source = TensorSource::open(copy.path());
    expect_error([&] { load_weights(instance.arena, source); },
                 {copy.path().string(),
                  cat("tensor 'model.layers.1.mlp.up_proj.weight' holds ", found, " at element 7"),
                  "expected finite numbers"});
  }
}

TEST(Weights, AMomentOfNoParameterIsRefused) {
  ModelInstance instance = make_instance(golden_folder() / "mha");
  const OptimizerBuffer moment = AdamW(instance.arena, {}).buffers()[0];
  const TemporaryFolder files;
  std::vector<TensorView> views = host_tensors(moment).views;
  TensorView more = views[0];
  more.name = "moment1.more";
  views.push_back(more);
  write_safetensors(files / "moments.safetensors", views);
  expect_error([&] { load_buffer(moment, SafetensorsShards::open(files.path(), "moments")); },
               {"'moment1.more' is not one of the model's"});
}

// Only a longer matrix of the same width gives its first rows.
TEST(Weights, FirstRowsComeFromALongerMatrixAlone) {
  for (const Shape& shape : {Shape{64}, Shape{2, 2, 16}, Shape{16, 4}, Shape{1, 64}}) {
    GoldenCopy copy("mha");
    ModelInstance instance = make_instance(copy.path());
    const std::string name = "model.norm.weight";
    copy.edit("model.safetensors", [&](auto& views) {
      for (TensorView& view : views) {
        if (view.name == name) view.shape = shape;
      }
    });
    const TensorSource source = TensorSource::open(copy.path());
    if (shape == Shape{64}) {
      EXPECT_NO_THROW(load_weights(instance.arena, source, name));
      continue;
    }
    expect_error([&] { load_weights(instance.arena, source, name); }, {name, "has shape"});
  }
  GoldenCopy copy("mha");
  ModelInstance instance = make_instance(copy.path());
  const std::string name = "model.layers.0.mlp.up_proj.weight";  // (160, 64)
  copy.edit("model.safetensors", [&](auto& views) {
    for (TensorView& view : views) {
      if (view.name == name) view.shape = {320, 32};
    }
  });
  const TensorSource source = TensorSource::open(copy.path());
  expect_error([&] { load_weights(instance.arena, source, name); }, {"(320, 32)"});
}

}  // namespace
}  // namespace quern
