// Weights and optimizer state between files and the arena.
#pragma once

#include <string>
#include <vector>

#include "hf/huggingface.h"
#include "optim/optimizer.h"

namespace quern {

// Every weight of the arena from the tensor of its name (F32, BF16, F16 or F64, converted to FP32),
// and from it the BF16 copies. Throws naming the file or folder and the tensor when one is missing,
// is not the model's, has another shape, is not floating point or holds a NaN or an infinity (in
// FP32). A tied model's lm_head.weight may be there when it equals the embedding; rotary tables of
// old Hugging Face files are passed over.
void load_weights(ParameterArena& arena, const TensorSource& source);
void load_weights(ParameterArena& arena, const SafetensorsFile& file);

// An optimizer's buffer from the tensors named prefix + slice name, with the same checks except for
// finite values; tensors without the prefix are ignored.
void load_buffer(const OptimizerBuffer& buffer, const SafetensorsFile& file);

// A buffer's named slices in host memory, in arena order.
struct HostTensors {
  Tensor memory;                  // the whole buffer, f32 on the CPU; the views point into it
  std::vector<TensorView> views;  // named prefix + slice name
};

// A buffer on the host: itself when it lies there, else a copy that waits for the device.
HostTensors host_tensors(const OptimizerBuffer& buffer);
HostTensors weights_of(const ParameterArena& arena);
HostTensors gradients_of(const ParameterArena& arena);  // of trainable parameters

}  // namespace quern
