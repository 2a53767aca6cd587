#include "bench/golden_case.h"

#include "base/error.h"
#include "model/model_cost.h"
#include "run/weights.h"

namespace quern {

namespace {

namespace fs = std::filesystem;

constexpr const char* kExpected = "expected.safetensors";

SafetensorsFile open_expected(const fs::path& folder) {
  std::error_code ignored;  // a folder that cannot be accessed counts as missing
  QUERN_CHECK(fs::is_directory(folder, ignored), "verify: ", folder.string(),
              " is not a folder, expected a golden case");
  QUERN_CHECK(fs::exists(folder / kExpected, ignored), "verify: ", folder.string(), " has no ",
              kExpected, ", expected a case as make_golden.py writes it");
  return SafetensorsFile::open(folder / kExpected);
}

// The tensor `name`, of that dtype and number of dimensions.
TensorView expected_tensor(const SafetensorsFile& file, const std::string& name, DType dtype,
                           int ndim) {
  const TensorView view = file.tensor(name);
  QUERN_CHECK(view.dtype == dtype, file.path().string(), ": tensor '", name, "' is ", view.dtype,
              ", expected ", dtype);
  QUERN_CHECK(view.shape.ndim() == ndim, file.path().string(), ": tensor '", name, "' has shape ",
              view.shape, ", expected ", ndim, ndim == 1 ? " dimension" : " dimensions");
  return view;
}

void check_shape(const SafetensorsFile& file, const TensorView& view, const Shape& expected) {
  QUERN_CHECK(view.shape == expected, file.path().string(), ": tensor '", view.name, "' has shape ",
              view.shape, ", expected ", expected);
}

std::vector<int32_t> read_tokens(const SafetensorsFile& file, const std::string& name, int64_t V) {
  std::vector<int32_t> tokens;
  for (const int64_t token :
       tensor_of(expected_tensor(file, name, DType::i64, 2)).to_vector<int64_t>()) {
    QUERN_CHECK(token >= 0 && token < V, file.path().string(), ": tensor '", name, "' has token ",
                token, " at position ", tokens.size(), ", expected less than the vocabulary of ",
                V);
    tokens.push_back(static_cast<int32_t>(token));
  }
  return tokens;
}

}  // namespace

std::vector<float> floats_of(const TensorView& view) {
  QUERN_CHECK(view.dtype == DType::f32, "tensor '", view.name, "' is ", view.dtype,
              ", expected f32");
  return tensor_of(view).to_vector<float>();
}

std::vector<float> GoldenCase::reference(const std::string& name) const {
  TensorView view = expected.tensor(name);
  std::vector<std::byte> turned;
  if (is_conv1d(name, view.shape)) view.data = turned = transposed(view);
  return floats_of(view);
}

GoldenCase GoldenCase::open(const fs::path& folder) {
  SafetensorsFile expected = open_expected(folder);
  GoldenCase golden{folder.string(), read_hf_config(folder), TensorSource::open(folder),
                    std::move(expected)};
  model_weights(golden.weights, golden.config);  // throws when the weights do not fit the model
  const SafetensorsFile& file = golden.expected;
  const int64_t V = golden.config.vocab_size;
  const Shape batch = expected_tensor(file, "input_ids", DType::i64, 2).shape;
  golden.B = batch[0];
  golden.T = batch[1];
  QUERN_CHECK(golden.B > 0 && golden.T > 0 && golden.T <= golden.config.context,
              file.path().string(), ": tensor 'input_ids' has shape ", batch,
              ", expected at least one token and at most the model's context of ",
              golden.config.context, " a row");
  check_shape(file, file.tensor("targets"), batch);
  golden.tokens = read_tokens(file, "input_ids", V);
  golden.targets = read_tokens(file, "targets", V);
  check_shape(file, expected_tensor(file, "logits", DType::f32, 3), {golden.B, golden.T, V});
  check_shape(file, expected_tensor(file, "loss", DType::f32, 1), {1});
  golden.losses = floats_of(expected_tensor(file, "losses", DType::f32, 1));
  golden.grad_norms = floats_of(expected_tensor(file, "grad_norms", DType::f32, 1));
  QUERN_CHECK(!golden.losses.empty(), file.path().string(), ": tensor 'losses' is empty");
  check_shape(file, file.tensor("grad_norms"), {static_cast<int64_t>(golden.losses.size())});
  for (const auto& [name, shape, begin] : parameter_table(golden.config).slices()) {
    for (const char* prefix : {"grad.", "final."}) {
      check_shape(file, expected_tensor(file, prefix + name, DType::f32, shape.ndim()),
                  is_conv1d(name, shape) ? transposed(shape) : shape);
    }
  }
  return golden;
}

}  // namespace quern
