// `quern bench dtypes`: the dtype of every tensor of a training step, read from the tensors of a
// forward and backward that really ran. Shows what mixed precision keeps in FP32.
#pragma once

#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/shape.h"
#include "bench/table.h"
#include "nn/options.h"

namespace quern {

// toy: Linear, ReLU, LayerNorm, Linear, cross-entropy. lm: a TransformerLM of two blocks.
enum class DtypeModel { toy, lm };

const char* name_of(DtypeModel model);

// input: what the step was given. parameter: FP32 masters. copy: what matrix products read in their
// place, where it is another tensor. activation: an op's output, named by its module path and op.
// logits, loss. gradient: of the tensor of that name.
struct DtypeEntry {
  std::string kind, name;
  Shape shape;
  DType dtype = DType::f32;
};

// The tensors of one forward and backward on the current Context's device, in the order in which
// they were made; gradients of activations in the order of the backward, those of parameters last.
std::vector<DtypeEntry> observe_dtypes(DtypeModel model, Precision precision,
                                       KernelKind kernels = KernelKind::fused);

// One tensor's dtypes under several precisions; empty where there is no such tensor.
struct DtypeRow {
  DtypeModel model = DtypeModel::toy;
  std::string kind, name;
  Shape shape;
  std::vector<std::string> dtypes;
};

// Observes under each precision, and puts equal tensors into one row.
std::vector<DtypeRow> bench_dtypes(DtypeModel model, const std::vector<Precision>& precisions,
                                   KernelKind kernels = KernelKind::fused);

// `precisions`: those of the row's dtypes.
TableRow table_row(const DtypeRow& row, const std::vector<Precision>& precisions);
// What the table shows, and what it cannot: TF32.
std::string dtype_lesson();

}  // namespace quern
