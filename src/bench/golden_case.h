// A reference case: a folder with a Hugging Face model (config.json, model.safetensors) and the
// results of transformers (expected.safetensors). make_golden.py and make_golden_gpt2.py in
// tests/fixtures/golden write it. Contents: input_ids and targets (B, T) i64; logits (B, T, V),
// loss (1), grad.<name> of every parameter, losses and grad_norms (steps) of AdamW steps on that
// one batch, and final.<name>, all f32.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "hf/huggingface.h"

namespace quern {

struct GoldenCase {
  std::string name;  // the folder as given
  ModelConfig config;
  TensorSource weights;
  SafetensorsFile expected;
  int64_t B = 0, T = 0;
  std::vector<int32_t> tokens = {}, targets = {};   // (B, T)
  std::vector<float> losses = {}, grad_norms = {};  // one value a step

  // An expected tensor of floats, in the layout of the model's parameters.
  std::vector<float> reference(const std::string& name) const;

  // Reads and checks all inputs of verify. Throws an Error with the folder or file, the tensor, the
  // value found and the value expected.
  static GoldenCase open(const std::filesystem::path& folder);
};

// The elements of an f32 view, which need not be aligned.
std::vector<float> floats_of(const TensorView& view);

}  // namespace quern
