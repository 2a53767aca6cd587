// What `quern profile` can run: training, its forward alone, or one of the parts that `quern bench`
// measures.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "config/config.h"

namespace quern {

// "train", "attention", "matmul", "mlp", then the kernels of `bench kernels`: "softmax", "gelu",
// ...
std::vector<std::string> profile_targets();

// Throws UsageError, naming the nearest.
void check_profile_target(const std::string& target);

// A part of a training step, with its inputs in memory.
struct ProfilePart {
  std::function<void()> run;
  std::function<void()> prepare = [] {};  // before each run, outside of what is timed
};

// On the current Context's device. Precision and variants are the configuration's, and so are the
// shapes of the first three:
// - attention: one layer's, forward and backward, (batch, ctx, heads, head_dim)
// - matmul: (batch x ctx, d_model) by (d_model, d_ff)
// - mlp: Linear and GELU, as many as layers, d_model wide, on batch x ctx rows; forward, backward
// - a kernel: in the shape of `bench kernels`, in the precision's dtype where there is a choice;
//   before a backward its forward is recorded, and that is not timed
// Throws UsageError for an unknown one, and for "train", which is no part.
ProfilePart make_part(const std::string& target, const Config& config);

}  // namespace quern
