// Weights and optimizer state between files and the arena.
#pragma once

#include <string>
#include <vector>

#include "dist/sharded_weights.h"
#include "hf/huggingface.h"
#include "optim/optimizer.h"

namespace quern {

// A copy on the CPU: data in files is not aligned.
Tensor tensor_of(const TensorView& view);

// Loads every weight of the arena from the tensor of its name (F32, BF16, F16 or F64, converted to
// FP32), and refreshes what ops read. Throws with the file or folder and the tensor when one is
// missing, unknown to the model, has another shape, is not floating point or holds a NaN or an
// infinity (in FP32). A tied model may have an lm_head.weight that equals the embedding; rotary
// tables of old Hugging Face files are ignored. `first_rows` names a tensor that may have more rows
// than the arena takes (positions beyond the context); empty: none.
void load_weights(ParameterArena& arena, const TensorSource& source,
                  const std::string& first_rows = {});
void load_weights(ParameterArena& arena, const SafetensorsShards& files,
                  const std::string& first_rows = {});

// Loads an optimizer's buffer, or its share of one, from the tensors named prefix + slice name,
// with the same checks except for finite values; tensors without the prefix are ignored.
void load_buffer(const OptimizerBuffer& buffer, const SafetensorsShards& files);

// One slice of the buffer; of a share in host memory, with zeros for other ranks' elements.
Tensor spread(const OptimizerBuffer& buffer, const NamedSlice& slice);

// The weights: the arena's values or this rank's share, or their parts. Under bf16 an arena without
// gradients has the rounded ones.
OptimizerBuffer values_of(const ParameterArena& arena);

// A buffer's named slices in host memory.
struct HostTensors {
  Tensor memory;  // the range that they lie in, f32 on the CPU; the views point to it
  std::vector<TensorView> views;  // named prefix + slice name
};

// The buffer in host memory with split weights joined. Copies it, waiting for the device, unless it
// already has this form. Where ranks have shares, every rank calls this with the same buffer and
// its own slices.
HostTensors host_tensors(const OptimizerBuffer& buffer, const ShardedWeights* shards = nullptr);
HostTensors weights_of(const ParameterArena& arena);
HostTensors gradients_of(const ParameterArena& arena);  // of trainable parameters

}  // namespace quern
